# SPDX-License-Identifier: MIT
"""Tests what SGLang's decode side gets from `qwenvit serve --sglang-peers`: the requests are its receiver's own, and the pickles must be
the bytes that it accepted. tools/reference/sglang_receiver.py recorded both, and runs here on SGLang's own code, if QV_SGLANG names an
environment that tools/reference/sglang_env.sh has made."""
import base64
import json
import os
import re
import socket
import subprocess
import threading

import numpy as np
import pytest

import qwenvit
from conftest import GOLDEN, SITE, Values, refused, wait_until
from serving import image, started, url

for needed in ("httptools", "uvicorn", "prometheus_client", "blake3"):
    pytest.importorskip(needed)
from qwenvit.serve import sglang  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
REFERENCE = os.path.join(HERE, "..", "..", "tools", "reference")
with open(os.path.join(HERE, "sglang_requests.json"), encoding="utf-8") as f:
    GIVEN = json.load(f)
DTYPES = {"bf16": b"bfloat16", "f32": b"float32"}  # the frames are of a CPU that computes in bf16
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
READY = b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04"


class Pull:
    """A PULL socket that introduces itself as libzmq does, or with other bytes, and keeps what it receives."""

    def __init__(self, says=GREETING + READY + b"PULL"):
        self.says, self.got, self.now, self.most = says, [], 0, 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            threading.Thread(target=self.read, args=self.server.accept()[:1], daemon=True).start()

    def read(self, s):
        self.now += 1
        self.most = max(self.most, self.now)
        s.sendall(self.says)
        data = b""
        try:
            while piece := s.recv(1 << 20):
                data += piece
        except OSError:
            pass
        self.now -= 1
        self.got.append(data)
        s.close()

    def received(self):
        wait_until(lambda: self.got)
        return self.got.pop()

    def message(self):
        """Returns the frames of the message that was received."""
        data, frames = self.received(), []
        assert data[:12] == GREETING[:11] + b"\0" and data[12:64] == GREETING[12:] and data[64:92] == READY + b"PUSH"
        data = data[92:]
        while data:
            size = int.from_bytes(data[1:9], "big")
            frames.append(data[9 : 9 + size])
            assert data[0] == (3 if len(data) > 9 + size else 2)
            data = data[9 + size :]
        return frames


def body(port, *items, **more):
    return {"mm_items": list(items), "num_parts": 1, "part_idx": 0, "req_id": "a_local_part_0", "modality": "IMAGE",
            "prefill_host": "127.0.0.1", "embedding_port": port, "time_stats_json": None, "encoder_idx": 0, **more}


def ask(server, what):
    status, _, answer = server.ask(json.dumps(what), path="/encode", content_type="application/json")
    return status, json.loads(answer)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    with started(tmp_path_factory) as start_of:
        yield lambda family, *arguments, **more: start_of(os.path.join(GOLDEN, family), *arguments, **more)


@pytest.fixture(scope="module")
def served(start):
    return start("qwen3_vl", "--sglang-peers", "::1, 127.0.0.1", slow=True)  # slow: 2 connections, 1 s each


@pytest.mark.parametrize("family", GIVEN["requests"])
def test_requests_of_its_receiver(start, family):
    server, pull = start(family, "--sglang-peers", "127.0.0.1"), Pull()
    model = qwenvit.load(os.path.join(GOLDEN, family))
    encoder = qwenvit.AsyncEncoder(model, dtype=model.info["dtype"])
    assert {case["body"]["modality"] for case in GIVEN["requests"][family]} == {"IMAGE", "VIDEO"}
    try:
        for case in GIVEN["requests"][family]:
            assert ask(server, {**case["body"], "embedding_port": pull.port}) == (200, None)
            embedding, rows = pull.message()
            assert embedding == base64.b64decode(case["frame"]).replace(b"bfloat16", DTYPES[model.info["dtype"]])
            items = [one if isinstance(one, str) else one["url"] for one in case["body"]["mm_items"]]
            own = [encoder.submit({"bytes": base64.b64decode(one.partition(",")[2])}).result() for one in items]
            wanted = np.concatenate([one.packed() for one in own])
            wanted = wanted.view(np.uint16) if model.info["dtype"] == "bf16" else wanted
            assert Values(np.frombuffer(rows, wanted.dtype).reshape(wanted.shape)) == Values(wanted)
    finally:
        encoder.close()


def test_frames_that_a_client_sampled(served):
    from qwenvit.media import FrameFiles

    pull, frames = Pull(), [image(i, 96, 128) for i in range(4)]
    clip = "data:video/jpeg;base64," + ",".join(base64.b64encode(f).decode() for f in frames)
    assert ask(served, body(pull.port, clip, modality="VIDEO")) == (200, None)
    _, rows = pull.message()
    model = qwenvit.load(os.path.join(GOLDEN, "qwen3_vl"))
    with qwenvit.AsyncEncoder(model, dtype=model.info["dtype"]) as encoder:
        wanted = encoder.submit({"bytes": FrameFiles.of(iter(frames))}).result().packed()
    wanted = wanted.view(np.uint16) if model.info["dtype"] == "bf16" else wanted
    assert Values(np.frombuffer(rows, wanted.dtype).reshape(wanted.shape)) == Values(wanted)
    status, answer = ask(served, body(pull.port, clip))
    assert status == 422 and "not an image of a known format" in answer["message"]


def test_what_is_there_is_not_computed_again(served):
    pull, before = Pull(), served.metric("tokens_total")
    assert ask(served, body(pull.port, url(image(1)), {"url": url(image(1)), "detail": "high", "content_hash": "x"}))[0] == 200
    first, once = pull.message(), served.metric("tokens_total") - before
    assert ask(served, body(pull.port, url(image(1)), url(image(1))))[0] == 200
    assert pull.message() == first and served.metric("tokens_total") == before + once > before
    assert first[1][: len(first[1]) // 2] == first[1][len(first[1]) // 2 :]


REFUSED = [  # what is in the body, status, words
    ({"req_id": ""}, 400, "req_id is ''; it must be a string"),
    ({"req_id": 3}, 400, "req_id is 3"),
    ({"req_id": "\ud800"}, 400, "req_id is"),
    ({"req_id": "a" * 1001}, 400, "1 to 1000"),
    ({"modality": "AUDIO"}, 400, "modality is 'AUDIO'; it must be IMAGE or VIDEO"),
    ({"modality": ["IMAGE"]}, 400, "modality is a list"),
    ({"mm_items": []}, 400, "mm_items is a list; it must be a non-empty list of URLs"),
    ({"mm_items": "data:,x"}, 400, "must be a non-empty list of URLs"),
    ({"num_parts": 0}, 400, "num_parts is 0"),
    ({"num_parts": True}, 400, "num_parts is True"),
    ({"part_idx": -1}, 400, "part_idx is -1"),
    ({"part_idx": 1}, 400, "part_idx is 1; it must be less than num_parts, 1"),
    ({"embedding_port": None}, 400, "embedding_port is None; it must be a port, as --encoder-transfer-backend zmq_to_tokenizer"),
    ({"embedding_port": [1]}, 400, "embedding_port is a list"),
    ({"embedding_port": 65536}, 400, "embedding_port is 65536"),
    ({"mm_items": [url(image(1))] * 65}, 413, "65 images and clips; at most 64"),
    ({"mm_items": [{"url": url(image(1)), "max_long_side_pixel": 99}]}, 400, "unknown field 'max_long_side_pixel' of an item"),
    ({"mm_items": ["http://127.0.0.1:9/a.png"]}, 422, "other URLs are not fetched"),
    ({"mm_items": ["/etc/passwd"]}, 422, "paths are not opened"),
    ({"mm_items": [None]}, 422, "mm_items: url is None"),
    ({"mm_items": [url(b"nonsense" * 50)]}, 422, "mm_items: url is not an image of a known format"),
    ({"mm_items": [url(image(1))], "modality": "VIDEO"}, 422, "modality is VIDEO, but item 0 of mm_items is not"),
]


def test_requests_that_are_refused(served):
    pull = Pull()
    for more, wanted, words in REFUSED:
        status, answer = ask(served, body(pull.port, url(image(1)), **more) if "embedding_port" not in more else
                             body(0, url(image(1)), **more))
        assert status == wanted and answer["status"] == "error" and words in answer["message"], (status, answer)
        assert answer["req_id"] == (None if "req_id" in more and more["req_id"] in (3, "\ud800") else
                                    more.get("req_id", "a_local_part_0"))
    status, _, answer = served.ask("[]", path="/encode", content_type="application/json")
    assert status == 400 and "the body must be" in json.loads(answer)["message"]
    assert not pull.got and not pull.most


def test_it_is_off_unless_hosts_are_named(start):
    status, answer = ask(start("qwen3_vl"), body(1, url(image(1))))
    assert status == 404 and answer["status"] == "error" and "--sglang-peers" in answer["message"]
    with pytest.raises(AssertionError, match="SGLang sends no key"):
        start("qwen3_vl", "--sglang-peers", "127.0.0.1", "--api-key", "a")


# ---- whom it connects to -------------------------------------------------------------------------


def test_only_hosts_that_are_named_are_connected_to(served):
    pull = Pull()
    for host in ("localhost", "127.0.0.2", "127.1", "", None, ["127.0.0.1"]):
        status, answer = ask(served, body(pull.port, url(image(1)), prefill_host=host))
        assert status == 403 and "--sglang-peers" in answer["message"]
    assert not pull.most


@pytest.mark.parametrize("says, words", [
    (b"HTTP/1.1 400 Bad Request\r\n" + bytes(99), "not an unencrypted ZMQ socket"),
    (GREETING.replace(b"NULL", b"CURVE")[:64] + READY + b"PULL", "not an unencrypted ZMQ socket"),
    (GREETING + READY + b"PUSH", "not a PULL socket"), (GREETING + READY + b"PULL" + b"cposix\nsystem\n", "not a PULL socket"),
    (b"", "timed out after 1 s"),
], ids=["http", "encrypted", "push", "talks", "silent"])
def test_other_sockets_get_no_tokens(served, says, words):
    pull = Pull(says)
    status, answer = ask(served, body(pull.port, url(image(1))))
    assert status == 502 and words in answer["message"] and f"127.0.0.1:{pull.port}" in answer["message"]
    if words != "not a PULL socket":
        assert len(pull.received()) <= 64  # the greeting, which may be lost with the connection


def test_nobody_listens(served):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    status, answer = ask(served, body(port, url(image(1))))
    assert status == 502 and "did not accept the tokens" in answer["message"]


def test_connections_are_bounded(served):
    pull = Pull(b"")
    asked = [served.later(json.dumps(body(pull.port, url(image(1)))), "", "POST", "/encode") for _ in range(6)]
    assert [one.result()[0] for one in asked] == [502] * 6
    assert pull.most <= 4  # two, and two that are not yet seen to have ended


def test_a_client_has_half_of_the_connections(served):
    mute, pull = Pull(b""), Pull()
    asked = [served.later(json.dumps(body(mute.port, url(image(1)))), "", "POST", "/encode") for _ in range(3)]
    wait_until(lambda: mute.now)
    assert served.ask(json.dumps(body(pull.port, url(image(1)))), path="/encode", source="127.0.0.2")[0] == 200
    assert pull.message() and not all(one.done() for one in asked)
    assert [one.result()[0] for one in asked] == [502] * 3


def test_nothing_is_unpickled():
    folder = os.path.dirname(sglang.__file__)
    for name in os.listdir(folder):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                assert not re.search(r"pickle\.load|Unpickler|from pickle", f.read()), name


# ---- SGLang --------------------------------------------------------------------------------------


def test_another_version_is_a_warning(monkeypatch, caplog):
    for version in (None, GIVEN["sglang"], "0.5.24"):
        monkeypatch.setattr(sglang, "installed", lambda engine: version)
        sglang.Peers("127.0.0.1", "qwen3_vl")
    assert [r.message for r in caplog.records] == [f"sglang 0.5.24 has not been tested; {sglang.VERSION} has"]
    refused(lambda: sglang.Peers("127.0.0.1", "glm4v"), "no precomputed tokens of glm4v")


def test_sglangs_own_code(torn):
    folder = os.environ.get("QV_SGLANG")
    if not folder:
        pytest.skip("QV_SGLANG names no environment with SGLang; tools/reference/sglang_env.sh makes one")
    command = [os.path.join(folder, "run"), os.path.join(REFERENCE, "sglang_receiver.py"), torn[0]]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": SITE}, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr[-3000:]
