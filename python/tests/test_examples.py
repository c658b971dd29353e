# SPDX-License-Identifier: MIT
"""Starts the examples in python/examples as users would, with a stand-in for a scheduler."""
import os
import re
import subprocess
import sys

import pytest

import qwenvit
from conftest import ON_CPU, SITE, command, contents

EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "examples")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Returns a folder for PATH, with qwenvit and with an srun that runs its command here."""
    folder = tmp_path_factory.mktemp("bin")
    for name, line in [("qwenvit", f'exec "{sys.executable}" -m qwenvit "$@"'), ("srun", 'exec "$@"')]:
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        os.chmod(folder / name, 0o755)
    return str(folder)


def start(command, programs, **variables):
    environment = {**os.environ, **variables, "PATH": f"{programs}:{os.environ['PATH']}"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


@pytest.fixture(scope="module")
def whole(golden, listed, programs, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "cache"
    assert start(["qwenvit", "cache", "fill", "--quiet", *arguments(golden, listed, out)], programs)[0] == 1
    return contents(out)


def arguments(golden, listed, out):
    return ["--model", golden, "--list", str(listed), "-o", str(out)]


def test_slurm(golden, listed, whole, programs, tmp_path):
    command = ["sh", f"{EXAMPLES}/slurm.sh", *arguments(golden, listed, tmp_path), "--quiet"]
    code, words = start(command, programs)
    assert code != 0 and "SLURM_ARRAY_TASK_ID" in words and not os.listdir(tmp_path)
    for task in (1, 0, 1):  # the last task was requeued
        code, words = start(command, programs, SLURM_ARRAY_TASK_ID=str(task), SLURM_ARRAY_TASK_COUNT="2")
        assert code in (0, 1), words
    assert " 0 done" in words and contents(tmp_path) == whole
    assert {p.name[:19] for p in tmp_path.glob("part-*")} == {"part-00000-of-00002", "part-00001-of-00002"}


def test_kubernetes(golden, listed, whole, programs, tmp_path):
    """Finds the command in a YAML file without a YAML parser, which may be missing."""
    with open(f"{EXAMPLES}/kubernetes.yaml") as f:
        (script,) = re.findall(r"command: \[sh, -c, '([^']*)'\]", f.read())
    mine = {"MODEL": golden, "LIST": str(listed), "OUT": str(tmp_path), "SHARDS": "2"}
    for index in ("0", "1"):
        code, words = start(["sh", "-c", " ".join(script.split())], programs, **mine, JOB_COMPLETION_INDEX=index)
        assert code in (0, 1), words
    assert contents(tmp_path) == whole


def test_kubernetes_job():
    yaml = pytest.importorskip("yaml")
    with open(f"{EXAMPLES}/kubernetes.yaml") as f:
        job = yaml.safe_load(f)
    spec = job["spec"]
    pod = spec["template"]["spec"]
    assert (job["kind"], spec["completionMode"], pod["restartPolicy"]) == ("Job", "Indexed", "Never")
    container = pod["containers"][0]
    variables = {v["name"]: v["value"] for v in container["env"]}
    assert int(variables["SHARDS"]) == spec["completions"], "as many shards as indexes"
    mounts = {m["name"] for m in container["volumeMounts"]}
    assert mounts == {v["name"] for v in pod["volumes"]}
    assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [1, 2, 3]
    assert set(variables) == {"MODEL", "LIST", "OUT", "SHARDS"}
    assert container["command"][:2] == ["sh", "-c"] and " --shard " in container["command"][2]


@pytest.fixture
def on_ray():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=100 << 20,
             runtime_env={"env_vars": {"PYTHONPATH": f"{SITE}:{os.path.abspath(EXAMPLES)}"}}, ignore_reinit_error=True)
    yield ray
    ray.shutdown()


def test_ray(golden, listed, rows, on_ray, tmp_path, monkeypatch):
    """An actor ends its process once, after it sealed the batch with the key "small"."""
    theirs = tmp_path / "theirs"  # on as many threads as an actor has
    command("cache", "fill", "--model", golden, *ON_CPU[:-1], 1, "--quiet", "--list", listed, "-o", theirs, code=1)
    monkeypatch.syspath_prepend(EXAMPLES)
    import ray_cache

    marker, out = str(tmp_path / "died"), str(tmp_path / "cache")

    class Dying(ray_cache.Writer):
        def __call__(self, batch):
            done = super().__call__(batch)
            if "small" in batch["key"].to_pylist() and not os.path.exists(marker):
                open(marker, "w").close()
                os._exit(1)
            return done

    two = {"actors": 2, "num_cpus": 1, "batch_size": 3, "load": {"backend": "cpu", "dtype": "f32"}}
    data = on_ray.data.from_items([{"other": 1, **dict.fromkeys(ray_cache.FIELDS), **row} for row in rows])
    monkeypatch.setattr(ray_cache, "Writer", Dying)
    counts = ray_cache.write_cache(data, golden, out, **two)
    assert os.path.exists(marker) and counts["there"] > 0, "a batch that was sealed is not done again"
    assert counts["done"] + counts["there"] == len(rows) - 2 and counts["failed"] + counts["failed_before"] == 2
    assert contents(out) == contents(theirs)
    monkeypatch.undo()
    again = {"done": 0, "tokens": 0, "failed": 0, "there": len(rows) - 2, "failed_before": 2}
    assert ray_cache.write_cache(data, golden, out, **two) == again
    cache = qwenvit.Cache(out)
    read = ray_cache.read_cache(out).take_all()
    assert sorted(row["key"] for row in read) == sorted(cache)
    for row in read:
        tokens = cache[row["key"]].packed()
        assert row["tokens"] == tokens.tobytes() and list(row["shape"]) == list(tokens.shape) and row["dtype"] == cache.dtype
        assert list(row["grid_thw"]) == cache[row["key"]].grid_thw[0].tolist()


def test_curator(golden, rows, on_ray, tmp_path, monkeypatch):
    pytest.importorskip("nemo_curator")
    from nemo_curator.backends.ray_data import RayDataExecutor
    from nemo_curator.pipeline import Pipeline
    from nemo_curator.stages.file_partitioning import FilePartitioningStage
    from nemo_curator.stages.resources import Resources

    monkeypatch.syspath_prepend(EXAMPLES)
    import curator_stage as stage

    tokens = stage.VisionTokens(
        golden, str(tmp_path), load={"backend": "cpu", "dtype": "f32"}, resources=Resources(cpus=1))
    files = FilePartitioningStage(
        os.path.dirname(rows[0]["path"]), files_per_partition=2, file_extensions=[".ppm", ".mp4"])
    tasks = Pipeline(name="tokens", stages=[files, tokens]).run(RayDataExecutor())
    counts = [task._metadata["vision_tokens"] for task in tasks]
    assert sum(c["done"] for c in counts) == 6 and sum(c["failed"] for c in counts) == 1
    cache = qwenvit.Cache(tmp_path)
    assert set(cache) == {row["path"] for row in rows[:6]} and set(cache.failed) == {rows[-2]["path"]}
