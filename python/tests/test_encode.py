# SPDX-License-Identifier: MIT
import json
import os
import signal

import numpy as np
import pytest

import qwenvit
from conftest import ON_CPU, command, distances, python, read_safetensors, refused


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("given", [None, "f32"])
def test_a_saved_clip_is_the_commands_file(golden, native, clip, frames, tmp_path, dtype, given):
    image, odd = tmp_path / "image.ppm", os.fsencode(tmp_path) + b"/odd \xff.gif"
    image.write_bytes(b"P6\n90 70\n255\n" + frames[0].tobytes())
    with open(odd, "wb") as f:
        f.write(clip.read_bytes())
    model = qwenvit.load(golden, backend=native, dtype=dtype, threads=2)
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    for path in (clip, image, os.fsdecode(odd)):
        asked = ["--dtype", dtype, "--max-frames", 4, *(["--output-dtype", given, "--hidden-states"] if given else [])]
        command("encode", "--model", golden, "--backend", native, "--threads", 2, *asked, path, "-o", theirs)
        tokens = model.encode(path, max_frames=4, hidden_states=given is not None)
        tokens.save(ours, dtype=given)
        assert ours.read_bytes() == theirs.read_bytes()
        if not given:
            model.encode(path, max_frames=4, dtype=dtype).save(ours)
            assert ours.read_bytes() == theirs.read_bytes()
        tokens.save(ours, {"source": "mine", "note": "é"}, dtype=given)
        meta = read_safetensors(ours)[1]
        assert (meta["source"], meta["note"], meta["precision"]) == ("mine", "é", dtype)


def test_hidden_states_are_the_last_blocks_rows(golden, model, clip, frames, tmp_path):
    """One per patch, in the order of pixel_values, whatever shares a chunk, and in however many chunks a clip is."""
    sources, path = [frames, frames[0], clip], tmp_path / "t.safetensors"
    alone = [model.encode(s, hidden_states=True).hidden_states for s in sources]
    for source, rows, tokens in zip(sources, alone, model.encode(sources, hidden_states=True), strict=True):
        assert rows.shape == (4 * len(tokens), model.info["hidden"]) and np.array_equal(rows, tokens.hidden_states)
        of_patches = model.forward(*model.preprocess(source), hidden_states=True)
        assert distances(rows, of_patches.hidden_states).max() < 2e-5
    command("encode", "--model", golden, "--backend", "cpu", "--dtype", "f32", "--hidden-states", "--chunk-rows", 64, clip, "-o", path)
    assert distances(read_safetensors(path)[0]["hidden"], alone[2]).max() < 2e-5
    with qwenvit.AsyncEncoder(model, hidden_states=True) as encoder:
        assert np.array_equal(encoder.submit(frames).result(60).hidden_states, alone[0])
    assert model.encode(frames).hidden_states is None and model.forward(*model.preprocess(frames)).hidden_states is None
    refused(lambda: model.encode(frames, hidden_states="yes"), "hidden_states is 'yes'")


def test_what_is_no_file_is_saved_with_its_model(golden, native, frames, expected, tmp_path):
    model = qwenvit.load(golden, backend=native, dtype="bf16", threads=1)
    for tokens, source in ((model.encode({"frames": frames, "key": "a"}), "a"),
                           (model.forward(expected["pixel_values"], expected["grid_thw"]), "")):
        tokens.save(tmp_path / "t.safetensors")
        tensors, meta = read_safetensors(tmp_path / "t.safetensors")
        assert tensors["tokens"].dtype == np.uint16 and meta["weights_digest"] == model.info["digest"]
        wide = (tensors["tokens"].astype(np.uint32) << 16).view(np.float32)
        assert (wide == tokens.tokens).all()  # nothing was lost
        assert (meta["source"], meta["model"], meta["precision"]) == (source, "qwen3_vl", "bf16")
        assert "preprocessing" not in meta and meta["backend"] == native
        refused(lambda: tokens.save(tmp_path / "t.safetensors", dtype="f16"), "dtype is .f16")


def test_damage_is_told_as_the_command_tells_it(model, golden, torn, tmp_path):
    (whole, path), out = torn, tmp_path / "torn.safetensors"
    run = command("encode", "--model", golden, *ON_CPU, path, "-o", out)
    tokens, pixels = model.encode(path), model.preprocess(path)
    theirs = json.loads(read_safetensors(out)[1]["preprocessing"])["damaged_frames"]
    assert tokens.damaged_frames == pixels.damaged_frames == theirs > 0
    assert f"{tokens.damage}" in run.stderr and tokens.damage in repr(tokens) and pixels.damage == tokens.damage
    tokens.save(tmp_path / "ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == out.read_bytes()
    good = model.encode(whole)
    assert (tokens.decoded_by, tokens.not_gpu) == ("cpu", "")
    assert (good.damaged_frames, good.damage) == (0, "") and "replaced" not in repr(good)


def test_what_a_source_raises_comes_out(model, frames):
    def sources():
        yield frames
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        list(model.encode(sources()))
    assert len(model.encode(frames))


CTRL_C = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
for _ in many:
    pass
"""


@pytest.mark.parametrize("end, code", [("", 0), ("raise KeyboardInterrupt", -signal.SIGINT), (CTRL_C, -signal.SIGINT), ("1 / 0", 1)])
def test_the_interpreter_ends_with_a_generator_open(golden, clip, end, code):
    program = f"""
import itertools, os, signal, threading, qwenvit
many = qwenvit.load({golden!r}, backend="cpu").encode(itertools.repeat({str(clip)!r}))
next(many)
{end}
"""
    run = python(program)
    assert run.returncode == code, run.stderr


BLOCKED = """
import itertools, os, queue, signal, sys, threading, time, qwenvit
m = qwenvit.load({golden!r}, backend="cpu")
blocks = threading.Event()
def sources():
    yield {clip!r}
    blocks.set()
    queue.Queue().get()  # nothing ever comes
began = time.monotonic()
many = m.encode(sources())
next(many)
blocks.wait()
{end}
print("done", flush=True)
"""


@pytest.mark.parametrize(
    "end, code, said",
    [
        ("many.close(); m.encode({clip!r}); m.close()", 0, "done"),
        ("del many; m.encode({clip!r})", 0, "done"),
        ("", 0, "done"),
        (CTRL_C, -signal.SIGINT, ""),
    ],
    ids=["close", "dropped", "interpreter's end", "Ctrl-C"],
)
def test_a_source_that_never_comes_holds_nobody(golden, clip, end, code, said):
    program = BLOCKED.format(golden=golden, clip=str(clip), end=end.format(clip=str(clip)))
    run = python(program)
    assert (run.returncode, run.stdout.strip()) == (code, said), run.stderr


FORKED = """
import itertools, os, sys, time, numpy, qwenvit
from qwenvit import _decoder
m = qwenvit.load({golden!r}, backend="cpu")
many = m.encode(itertools.repeat({clip!r}))
next(many)
pid = os.fork()
if pid:
    try:
        for _ in range(600):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            time.sleep(0.1)
        else:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            status = 9
        assert len(next(many))  # the parent's go on
    finally:
        many.close()
    sys.exit(os.waitstatus_to_exitcode(status) % 256)
def refused(call):
    try:
        call()
    except qwenvit.Error as e:
        assert e.status == "QV_ESTATE" and "process" in str(e), e
    else:
        raise AssertionError(call)
{child}
"""


@pytest.mark.parametrize(
    "child",
    ["del many", "many.close()", "refused(lambda: next(many)); del many, m", "refused(m.close); del m, many", "",
     "raise SystemExit(0)", "os._exit(0)", "del many; import gc; gc.collect(); _decoder._started.clear()",
     "refused(lambda: qwenvit.load({golden!r})); m2 = qwenvit.load({golden!r}, backend='cpu', threads=1)\n"
     "assert len(m2.encode({clip!r})); del many"],
    ids=["drop", "close", "use", "close the model", "interpreter's end", "exit", "_exit", "decoder", "another model"],
)
def test_a_forked_child_leaves_its_parents_generator_alone(golden, clip, child):
    child = child.format(golden=golden, clip=str(clip))
    program = FORKED.format(golden=golden, clip=str(clip), child=child)
    for _ in range(3):  # at each fork, the parent's threads are somewhere else
        run = python(program)
        assert (run.returncode, run.stderr) == (0, ""), run


@pytest.mark.parametrize("kind", ["path", "frames", "bytes"])
def test_keys_are_texts_and_none_is_lost(model, clip, frames, kind):
    own = {"path": str(clip), "frames": frames, "bytes": clip.read_bytes()}[kind]
    good = ["k", "0", "a b", "é", clip.parent / "as a path", b"raw \xff"]
    bad = [0, 1, False, 0.0, "", b"", (), "a\0b", "\ud800"]
    results = list(model.encode([{kind: own, "key": key} for key in [*good, *bad]], errors="yield"))
    done = {r.key for r in results if not isinstance(r, qwenvit.Error)}
    assert done == {*good[:4], str(good[4]), "raw \\xff"}
    failed = {r.key: r for r in results if isinstance(r, qwenvit.Error)}
    assert set(failed) == {str(i) for i in range(len(good), len(results))} and len(results) == len(good + bad)
    assert all(r.status == "QV_EINVAL" and "key" in str(r) for r in failed.values())
    assert "source 6: key is 0; it must be a non-empty string" in str(failed["6"])
    default = model.encode({kind: own, "key": None}).key
    assert default == (str(clip) if kind == "path" else "0")


@pytest.mark.parametrize(
    "source, options, words",
    [
        (np.zeros((9, 64, 64), np.uint8), {}, r"the array is \[9, 64, 64\]"),
        (np.zeros((0, 64, 64, 3), np.uint8), {}, "uint8"),
        (np.zeros((1, 2, 4000, 3), np.uint8), {}, "200"),
        (np.zeros((64, 64, 3), np.uint8), {"min_pixels": 1 << 31, "max_pixels": 1 << 40}, "would be resized to 46368x46368"),
        (np.zeros((64, 64, 3), np.uint8), {"max_pixels": (1 << 63) - 1}, "each must be from 1 to 1099511627776"),
        (np.zeros((64, 64, 3), np.uint8), {"nonsense": 1}, "unknown option nonsense"),
        (b"", {}, "the bytes are empty"),
        (b"x", {"fsp": 1}, "unknown option fsp; did you mean fps?"),
        (b"x", {"like": "mine"}, "like is 'mine'"),
        (b"x", {"start": 2, "end": 2.0}, "end .2. must be greater than start .2."),
        (np.zeros((4, 64, 64, 3), np.uint8), {"start": 1}, "only the options fps, max_pixels, min_pixels, frames_indices, total_num_frames and timestamps"),
        ({"key": "a"}, {}, "one of path, bytes, frames, image"),
        ({"path": 3}, {}, "source 0: path is 3"),
        ("\ud800.mp4", {}, "source 0: path is"),
        ("a\0b", {}, "NUL"),
        (b"x", {"errors": "ignore"}, "errors is 'ignore'"),
        (b"x", {"dtype": "f16"}, "dtype is 'f16'"),
    ],
)
def test_bad_sources_are_refused_in_words(model, source, options, words):
    refused(lambda: model.encode(source, **options), words, "QV_EINVAL")


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Returns make(major, text), which puts a script in place of the wheel's decoders for that
    FFmpeg."""
    from qwenvit import _decoder

    wheel = _decoder.find()

    def make(major, text=None):
        program = tmp_path / f"ffmpeg-{major}" / "qwenvit-decoder"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n" + (text or f'exec "{wheel}" "$@"') + "\n")
        os.chmod(program, 0o755)
        return str(program)

    monkeypatch.setattr(_decoder, "FOLDER", str(tmp_path))
    monkeypatch.setattr(_decoder, "_started", {})
    return make


NOT_HERE = "echo libavformat.so.59: cannot open shared object file >&2; exit 127"


def test_without_ffmpeg_files_say_what_to_install_and_arrays_work(model, clip, frames, programs):
    programs(59, NOT_HERE)
    programs(60, "exit 3")
    refused(lambda: model.encode(clip), "apt-get install ffmpeg.*ffmpeg-60: .* 3; ffmpeg-59: libavf", "QV_EBACKEND")
    assert len(model.encode(frames))


@pytest.mark.parametrize("number, words", [(9, "Killed\\), perhaps because memory ran out;"), (11, "Segmentation fault\\);")])
def test_a_decoder_that_is_killed_is_not_missing(model, clip, programs, number, words):
    programs(59, NOT_HERE)
    programs(60, f"kill -{number} $$")
    refused(lambda: model.encode(clip), f"was killed at its start .*ffmpeg-60: killed by signal {number} \\({words}", "QV_EBACKEND")
    with pytest.raises(qwenvit.Error) as e:
        model.encode(clip)
    assert "install" not in str(e.value)


def test_without_ffmpeg_the_command_does_what_needs_no_clip(golden, clip, programs):
    from qwenvit import _decoder

    programs(9, NOT_HERE)
    program = programs(59, NOT_HERE)
    assert _decoder.find_any() == program
    assert "vision tower" in command("info", golden, QWENVIT_DECODER=program).stdout
    for program, words in (program, "the FFmpeg libraries may be missing"), (programs(60, "kill -9 $$"), "killed by signal 9"):
        done = command("info", clip, code=4, QWENVIT_DECODER=program)
        assert f"has ended without an answer: {words}" in done.stderr


def test_without_decoders_too(model, clip, programs):
    refused(lambda: model.encode(clip), "no decoder was built")


def test_the_newest_ffmpeg_that_starts_is_taken(model, clip, programs):
    from qwenvit import _decoder

    programs(9)  # compared as a number, 6 is below 59
    expected = programs(59)
    programs(60, "echo symbol lookup error >&2; exit 1")
    programs(61, NOT_HERE)
    os.makedirs(os.path.join(_decoder.FOLDER, "ffmpeg-none"))
    assert _decoder.find() == expected
    assert len(model.encode(clip))


@pytest.mark.parametrize("conda", [True, False])
def test_a_conda_environments_libraries_are_found_and_no_others(model, clip, programs, tmp_path, monkeypatch, conda):
    from qwenvit import _decoder

    seen = tmp_path / "seen"
    program = programs(59)
    with open(program) as f:
        runs = f.read().splitlines()[1]
    with open(program, "w") as f:
        f.write(f'#!/bin/sh\necho "$LD_LIBRARY_PATH" >> "{seen}"\n{runs}\n')
    if conda:
        (tmp_path / "conda-meta").mkdir()
    monkeypatch.setattr(_decoder.sys, "prefix", str(tmp_path))
    before = os.environ.get("LD_LIBRARY_PATH")
    assert len(model.encode(clip))
    asked, started = seen.read_text().splitlines()
    assert asked == started and asked.endswith(f"{tmp_path}/lib") == conda
    assert os.environ.get("LD_LIBRARY_PATH") == before
