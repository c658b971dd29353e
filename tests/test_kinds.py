# SPDX-License-Identifier: MIT
"""Tests how the command classifies odd files (make_odd.py): an image, an image with a remark, or nothing that it
reads."""
import json

from command_runs import MODEL, run
from make_odd import MORE, ODD, UNKNOWN

BY_COMMAND = [name for name in ODD if name != "tar.bin"]  # the command lists what is in a tar file


def set_up():
    for name in BY_COMMAND:
        with open(name, "wb") as f:
            f.write(ODD[name][0])


def wrong(records):
    """Returns the records of files that were classified wrongly."""
    said = {r["clip"]: r for r in records if "clip" in r}
    found = []
    for name in BY_COMMAND:
        wanted, r = ODD[name][1], said[name]
        if wanted in ("image", MORE):
            right = r.get("kind") == "image" and r["remark"].startswith(MORE) == (wanted == MORE)
        else:
            right = r.get("error", "").endswith(UNKNOWN) if wanted == UNKNOWN else f"{wanted} images are not supported" in r.get("error", "")
        found += [] if right else [(name, wanted, r)]
    return found


def json_of(line, code):
    return [json.loads(text) for text in run(line, code=code).out.splitlines()]


def test_info():
    assert not wrong(json_of(f"info --model {MODEL} --json {' '.join(BY_COMMAND)}", 1))


def test_encode_and_cache():
    refused = [name for name in BY_COMMAND if ODD[name][1] not in ("image", MORE)]
    for line in (f"encode --model {MODEL} -o out --json", f"cache fill --model {MODEL} -o cache --json"):
        records = json_of(f"{line} {' '.join(refused)}", 1)
        failed = {r.get("clip", r.get("key")) for r in records if r.get("error")} - {None}
        assert failed == set(refused), set(refused) - failed
    run(f"encode --model {MODEL} clip.mjpeg -o clip.safetensors", MORE)
