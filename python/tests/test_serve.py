# SPDX-License-Identifier: MIT
"""Tests `python -m qwenvit serve` over sockets: what it answers, refuses, keeps, and how it ends."""
import asyncio
import base64
import contextlib
import functools
import glob
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
import zlib

import pytest

import qwenvit
import serving
from conftest import COMMAND, another_tower, bits_depend_on_place, command, read_safetensors, together, wait_until
from qwenvit import _decoder
from serving import message, started, url

pytest.importorskip("httptools")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
pytest.importorskip("blake3")

HERE = os.path.dirname(os.path.abspath(__file__))
TIGHT = ["--max-body", 20000, "--max-bodies", 30000, "--max-items", 2, "--max-frames", 20, "--max-pixels", 10000,
         "--max-seconds", 0.5, "--idle-seconds", 0.5, "--max-connections", 12]


def image(seed, height=70, width=90):
    return serving.image(seed, height, width)


def gif(width, height, frames):
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0" + (b"\x2c" + bytes(9) + b"\2\1\0\0") * frames + b";"


def tiny_png(width, height, *chunks):
    """Returns a PNG of one color, with further chunks in front of its pixels."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(height * (1 + 3 * width))))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunk(*one) for one in chunks) + pixels + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def start(golden, tmp_path_factory):
    """Returns a function that starts a server, which is killed at the end."""
    with started(tmp_path_factory) as start_of:
        yield functools.partial(start_of, golden)


@pytest.fixture(scope="module")
def served(start, tmp_path_factory):
    """Returns a server with a cache, and an encoder that can be slow."""
    server = start("--cache", tmp_path_factory.mktemp("cache") / "tokens", "--queue", 4, slow=True)
    yield server
    server.wait_for("under_way_items", 0)
    assert (server.metric("body_bytes"), server.metric("queue_items")) == (0, 0)


@pytest.fixture(scope="module")
def tight(start):
    return start(*TIGHT, "--served-model-name", "tiny/tower")


@pytest.fixture(scope="module")
def same(golden, tmp_path_factory):
    """Returns whether a file has the bytes of that which `encode` writes for a source in memory."""
    model, folder = qwenvit.load(golden), tmp_path_factory.mktemp("same")

    def is_same(file, data, name, **options):
        key = name.removesuffix(".safetensors")
        model.encode({"frames" if isinstance(data, list) else "bytes": data, "key": key}, **options).save(folder / "own")
        if not bits_depend_on_place():
            return (folder / "own").read_bytes() == file
        (folder / "other").write_bytes(file)
        return read_safetensors(folder / "own")[1] == read_safetensors(folder / "other")[1]

    return is_same


# ---- what it answers -------------------------------------------------------------------------------


def test_answers_are_the_files_that_encode_writes(served, same, clip):
    sources = [(image(1), {}), (image(2), {"min_pixels": 1, "max_pixels": 4096}), (clip.read_bytes(), {"fps": 5, "end": 0.6}),
               (clip.read_bytes(), {"num_frames": 4, "like": "qwen-vl-utils"}), (clip.read_bytes(), {"first_frame": True})]
    for data, options in sources:
        query = "?" + "&".join(f"{k}={v}" for k, v in options.items())
        status, headers, file = served.ask(data, query)
        assert (status, headers.get("x-qwenvit-found")) == (200, "miss"), file[:300]
        status, _, body = served.ask(data, query + "&store=1")
        [row] = json.loads(body)["items"]
        assert (row["status"], row["found"], row["bytes"]) == (200, "folder", len(file))
        assert same(file, data, row["name"], **options)
        folder = served.process.args[served.process.args.index("--cache") + 1]
        with open(os.path.join(folder, row["name"]), "rb") as f:
            assert f.read() == file
        assert served.ask(data, query)[1]["x-qwenvit-found"] == "memory"
    # the same options in other words are the same tokens
    assert served.ask(image(1), "?start=0&first_frame=false&cap_pixels=0")[1]["x-qwenvit-found"] == "memory"
    row = {"data": url(clip.read_bytes()), "fps": 5}
    status, _, body = served.ask(json.dumps({"items": [row], "end": 0.6}), content_type="application/json")
    [row] = json.loads(body)["items"]
    assert (status, row["found"]) == (200, "memory")
    assert base64.b64decode(row["safetensors"]) == served.ask(clip.read_bytes(), "?fps=5&end=0.6")[2]


def test_items_of_a_request_fail_alone(served):
    rows = [{"data": url(image(3))}, {"data": url(b"nonsense" * 50)}, {"data": url(image(3)), "fps": "x"}, {}, 3, {"data": "data:,\ud800"}]
    status, _, body = served.ask(json.dumps({"items": rows}), "?store=1", content_type="application/json")
    answers = json.loads(body)["items"]
    assert status == 207 and [a["status"] for a in answers] == [200, 422, 422, 422, 422, 422]
    words = [a["error"]["message"] for a in answers[1:]]
    for text, wanted in zip(words, ("not a clip or image", "fps is 'x'; it must be a number", "must be a data: URL", "an item is 3",
                                  "surrogates")):
        assert wanted in text
    assert all("name" not in a for a in answers[1:])


def frames_url(n=4, size=(96, 128)):
    return "data:video/jpeg;base64," + ",".join(base64.b64encode(image(i, *size)).decode() for i in range(n))


def items(server, *rows, query=""):
    status, _, body = server.ask(json.dumps({"items": rows}), query, content_type="application/json")
    return status, json.loads(body)["items"]


def test_frames_that_a_client_sampled(served, same):
    frames = [image(i, 96, 128) for i in range(4)]
    status, [row, part] = items(served, {"data": frames_url()}, {"type": "video_url", "video_url": {"url": frames_url()}})
    assert (status, row["status"], {row["found"], part["found"]}) == (200, 200, {"miss", "flight"}), row
    assert part["safetensors"] == row["safetensors"]
    [stored] = items(served, {"data": frames_url()}, query="?store=1")[1]
    assert same(base64.b64decode(row["safetensors"]), frames, stored["name"])
    assert items(served, {"data": frames_url(), "fps": 2})[1][0]["safetensors"] != row["safetensors"]
    listed = {"frames": [url(frame) for frame in frames]}
    places = {"frames_indices": [0, 5, 10, 15], "total_num_frames": 20, "fps": 10}
    status, rows = items(served, listed, {**listed, **places}, {**listed, "frames_indices": [0, 5, 30, 15], "total_num_frames": 20, "fps": 10},
                         {"frames": [*listed["frames"], "/etc/passwd"]}, {"frames": [listed["frames"]]}, {**listed, "frames_indices": "x"},
                         {"data": url(frames[0]), **places})
    assert [r["status"] for r in rows] == [200] * 2 + [422] * 5
    assert rows[0]["safetensors"] == row["safetensors"] != rows[1]["safetensors"]
    [stored] = items(served, {**listed, **places}, query="?store=1")[1]
    assert same(base64.b64decode(rows[1]["safetensors"]), frames, stored["name"], **places)
    for r, words in zip(rows[2:], ("must be less than total_num_frames, 20", "frames 4 is '/etc/passwd'; it must be a data", "frames 0 is a list",
                                   "frames_indices is 'x'; it must be a list of numbers", "is for frames only")):
        assert words in r["error"]["message"], r
    status, rows = items(served, {"data": frames_url() + "," + base64.b64encode(image(9, 64, 96)).decode()},
                         {"data": frames_url() + "," + base64.b64encode(b"nonsense" * 50).decode()}, {"data": frames_url() + ",#"},
                         {"data": frames_url(), "start": 1}, {"type": "image_url", "image_url": {"url": frames_url()}})
    assert [r["status"] for r in rows] == [422] * 5
    for r, words in zip(rows, ("frame 4 is 64 high", "frame 4: not an image", "not valid base64", "frames accept only", "not an image of a known")):
        assert words in r["error"]["message"], r


def test_frames_are_bounded(tight):
    wide = b"P4\n112 100\n" + bytes(1400)
    rows = (({"data": frames_url(20, (8, 8))}, ""), ({"data": frames_url(21, (8, 8))}, "data: 21 frames; at most 20"),
            ({"frames": [url(image(1, 8, 8))] * 21}, "21 frames; at most 20"),
            ({"data": "data:video/jpeg;base64," + "," * 50}, "51 frames; at most 20"),
            ({"data": "data:video/jpeg;base64," + base64.b64encode(wide).decode()}, "frame 0: "))
    for row, words in rows:
        status, [answer] = items(tight, row)
        assert status == (422 if words else 200) and words in answer.get("error", {"message": ""})["message"], answer


def test_chats_items(served):
    data = url(image(3))
    status, rows = items(served, {"data": data}, {"type": "image_url", "image_url": {"url": data}}, {"type": "image_url", "image_url": data},
                         {"type": "input_image", "image_url": data, "detail": "low"}, {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
                         {"type": "image_url", "image_url": {"url": data}, "fpss": 1}, {"type": "image_url"})
    assert [r["status"] for r in rows] == [200] * 4 + [422] * 3
    assert len({r["safetensors"] for r in rows[:4]}) == 1
    for r, words in zip(rows[4:], ("paths are not opened", "unknown option 'fpss'; did you mean fps?", "data is None")):
        assert words in r["error"]["message"], r


def test_paths_for_machines(served, tight, golden):
    model, named = (json.loads(s.ask("", method="GET", path="/v1/models")[2])["data"][0] for s in (served, tight))
    assert model["model_type"] == "qwen3_vl" and model["limits"]["items"] == 64
    assert (model["id"], named["id"]) == (os.path.basename(golden), "tiny/tower")
    for path in ("/health", "/ready"):
        assert served.ask("", method="GET", path=path)[0] == 200
    served.ask(image(4))
    time.sleep(0.2)  # lines are written some at once
    line = [line for line in served.lines() if line.get("path") == "/v1/encode"][-1]
    assert (line["status"], line["found"], line["client"], line["method"]) == (200, ["miss"], "127.0.0.1", "POST")
    assert served.metric('requests_total{path="/v1/encode",status="200"}') > 0
    assert served.metric('stage_seconds_count{stage="encode"}') > 0 and served.metric("tokens_total") > 0
    assert 0 < served.metric("chunk_rows") <= served.metric("chunk_capacity_rows")


# ---- what it refuses -------------------------------------------------------------------------------

JSON = {"content_type": "application/json"}
BAD = [  # body, query, headers, status, words
    (b"", "", {}, 422, "the file is empty"),
    (b"nonsense" * 50, "", {}, 422, "not a clip or image of a known format"),
    (image(1)[:-100], "", {}, 422, ""),
    (image(1), "?fps=-1", {}, 422, "fps"),
    (image(1), "?fps=1e999", {}, 422, "fps"),
    (image(1), "?max_pixels=-3", {}, 422, "max_pixels is -3; it must be"),
    (image(1), "?max_pixels=1.5", {}, 422, "must be an integer"),
    (image(1), "?like=someone", {}, 422, "like is 'someone'; it must be"),
    (image(1), "?first_frame=maybe", {}, 422, "must be true or false"),
    (image(1), "?path=/etc/passwd", {}, 422, "unknown option 'path'"),
    (image(1), "?threads=64", {}, 422, "unknown option 'threads'"),
    (image(1), "?store=2", {}, 422, "store is '2'"),
    (image(1), "?timeout=nan", {}, 422, "timeout is 'nan'"),
    (image(1), "?timeout=-1", {}, 422, "timeout is '-1'"),
    (image(1), "?max_frames=769", {}, 422, "max_frames is 769; it must be from 1 to 768"),
    (image(1), "", {"content_encoding": "gzip"}, 415, "Content-Encoding"),
    (image(1), "", {"content_type": "multipart/form-data; boundary=x"}, 415, "multipart"),
    (b"{", "", JSON, 400, "not JSON"),
    (b"[" * 2000, "", JSON, 400, "not JSON"),
    (b"[" * 100000, "", JSON, 413, "the JSON has 100000 values; at most 65536"),
    (b'{"items": [' + b"{}," * 100000 + b"{}]}", "", JSON, 413, "values; at most 65536"),
    (b'{"items": [NaN]}', "", JSON, 400, "NaN"),
    (b"\xff\xfe", "", JSON, 400, "not JSON"),
    (b"[]", "", JSON, 400, "the body must be"),
    (b'{"items": []}', "", JSON, 400, "the body must be"),
    (b'{"items": [{}], "url": "x"}', "", JSON, 422, "unknown option 'url'"),
    (b'{"items": [{}]}', "?fps=2", JSON, 422, "with JSON, options belong in the body"),
    (json.dumps({"items": [{}] * 65}), "", JSON, 413, "65 items; at most 64"),
]
ITEMS = [  # an item, words
    ({"data": "http://127.0.0.1:9/a.png"}, "must be a data: URL"),
    ({"data": "file:///etc/passwd"}, "paths are not opened"),
    ({"data": "/etc/passwd"}, "paths are not opened"),
    ({"path": "/etc/passwd"}, "unknown option 'path'"),
    ({"data": 3}, "data is 3"),
    ({"data": "data:"}, "must be a data: URL"),
    ({"data": "data:image/png;base64,####"}, "not valid base64"),
    ({"data": url(image(1)), "fps": True}, "fps is True; it must be a number"),
    ({"data": url(image(1)), "max_pixels": 10**400}, "max_pixels"),
    ({"data": url(image(1)), "decode": "gpu"}, "unknown option 'decode'"),
]


def test_bad_requests(served):
    for body, query, headers, wanted, words in BAD:
        status, _, answer = served.ask(body, query, **headers)
        assert status == wanted and words in message(answer) and message(answer).isprintable(), (query, status, answer)
    for row, words in ITEMS:
        if "path" in row:
            row = {"data": url(image(1)), **row}
        status, _, answer = served.ask(json.dumps({"items": [row]}), content_type="application/json")
        [item] = json.loads(answer)["items"]
        assert status == item["status"] == 422 and words in item["error"]["message"], (row, answer)
    for method, path, wanted in (("GET", "/v1/encode", 405), ("POST", "/ready", 405), ("GET", "/etc/passwd", 404)):
        status, _, answer = served.ask("", method=method, path=path)
        assert status == wanted and "paths are /v1/encode" in message(answer)
    assert served.ask(image(1))[0] == 200


def test_no_url_is_fetched(served):
    """Not even looked at: nobody connects to the address that a request names."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = f"http://127.0.0.1:{listener.getsockname()[1]}/a.png"
        listener.settimeout(0.3)
        for body, headers in ((json.dumps({"items": [{"data": there}]}), JSON), (there.encode(), {})):
            assert served.ask(body, **headers)[0] == 422
        with pytest.raises(TimeoutError):
            listener.accept()


def test_each_limit(tight, clip):
    def refused(body, query="", **headers):
        status, headers, answer = tight.ask(body, query, **headers)
        return status, message(answer)

    assert refused(bytes(20001)) == (413, "the body has 20001 bytes; at most 20000")
    assert refused(iter([bytes(9000)] * 3)) == (413, "the body has 27000 bytes; at most 20000")  # chunked
    assert refused(json.dumps({"items": [{}] * 3}), **JSON) == (413, "3 items; at most 2 per request")
    assert refused(image(1), "?max_frames=21") == (422, "max_frames is 21; it must be from 1 to 20 on this server")
    assert refused(tiny_png(200, 200)) == (422, "its frames have 40000 pixels; at most 10000 are allowed")
    bmp = b"BM" + struct.pack("<IHHIIHHHH", 26 + 64 * 48, 0, 0, 26, 12, 32, 32, 1, 24) + bytes(64 * 48)  # OS/2's
    assert tight.ask(bmp)[0] == 200
    assert tight.ask(image(5, 32, 32))[0] == 200


def test_a_refused_request_has_no_traceback_and_one_line(tight):
    post = b"POST /v1/encode HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
    time.sleep(0.2)  # lines are written some at once, and few of refused requests
    before = len(tight.lines())
    for _ in range(3):
        assert b" 400 " in tight.raw(post)
    time.sleep(0.2)
    lines = tight.lines()[before:]
    assert [line["status"] for line in lines if line.get("message")] == [400] * 3 and not any("exception" in line for line in lines)
    assert tight.metric('requests_total{path="/v1/encode",status="500"}') == 0


def test_lines_of_refused_requests_are_limited(capsys):
    from qwenvit.serve.metrics import AccessLog

    async def flood():
        log = AccessLog()
        for i in range(10000):
            log.add(status=400 if i % 10 else 200)
        log.write()

    asyncio.run(flood())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [sum(line.get("status") == status for line in lines) for status in (200, 400)] == [1000, 10]
    assert lines[-1]["without_line"] == 8990


def test_a_clip_of_too_many_seconds(start, torn):
    server = start("--max-seconds", 0.5)
    status, _, answer = server.ask(open(torn[0], "rb").read())
    assert status == 422 and "at most 0.5 s are allowed; choose a shorter" in message(answer)
    assert server.metric("tokens_total") == 0  # it was not encoded
    assert server.ask(open(torn[0], "rb").read(), "?end=0.4")[0] == 200
    assert server.ask(image(1), "?store=1")[0] == 422  # it has no folder


def test_clients_that_stall(tight):
    began = time.monotonic()
    head = b"POST /v1/encode HTTP/1.1\r\nHost: x\r\n"
    for data in (b"", b"POST /v1/en", head + b"Content-Length: 5000\r\n\r\n" + bytes(100)):
        with contextlib.suppress(ConnectionResetError):
            assert tight.raw(data) == b""
    assert tight.metric('requests_total{path="none",status="408"}') == 3
    time.sleep(0.2)  # lines are written some at once
    assert [line["client"] for line in tight.lines() if line.get("status") == 408][:2] == ["127.0.0.1"] * 2
    assert b" 400 Bad Request" in tight.raw(b"nonsense\r\n\r\n")
    assert b" 400 " in tight.raw(head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    # the rest of a body that was refused is read for a while, so that the answer arrives
    assert b" 413 " in tight.raw(head + b"Content-Length: 999999\r\n\r\n" + bytes(200000))
    assert b" 413 " in tight.raw(head + b"Connection: close\r\nContent-Length: 9000000\r\n\r\n" + bytes(9000000))
    assert time.monotonic() - began < 20


def test_requests_that_http_does_not_allow(tight):
    get, post = b"GET /health HTTP/1.1\r\nHost: x\r\n", b"POST /v1/encode HTTP/1.1\r\nHost: x\r\n"
    chunked, many = post + b"Transfer-Encoding: chunked\r\n", b"the headers have more than 16384 bytes"
    for data, words in (
        (post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b"Invalid HTTP"),
        (chunked + b"Content-Length: 5\r\n\r\n0\r\n\r\n", b"Invalid HTTP"),
        (get + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", b"Upgrade is not accepted"),
        (get + b"A: " + b"a" * 40000, many),
        (b"GET /" + b"a" * 40000, many),
        (get + b"A: bbbb\r\n" * 6000 + b"\r\n", b"Invalid HTTP"),  # which comes in one piece
        (chunked + b"\r\n5\r\nhello\r\n0\r\nA: " + b"a" * 600000, many),  # a trailer
        (chunked + b"\r\n5;" + b"a" * 600000, many),
    ):
        got = tight.raw(data)
        assert b" 400 " in got and words in got, (data[:99], got)
    # a trailer is no header
    assert b" 422 " in tight.raw(chunked + b"Connection: close\r\n\r\n5\r\nhello\r\n0\r\nContent-Encoding: x\r\n\r\n")
    # requests in advance are answered in order, and so many that no connection's memory grows
    file = image(7, 32, 32)
    got = tight.raw(post + b"Content-Length: %d\r\n\r\n" % len(file) + file + (get + b"\r\n") * 1000)
    assert got.count(b"HTTP/1.1 200 OK") == 17 and got.index(b"octet-stream") < got.index(b'"ok"')
    assert b" 200 " in tight.raw(get + b"\r\nnonsense\r\n\r\n")
    assert tight.raw(b"HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n").endswith(b"\r\n\r\n")


def test_a_body_goes_with_its_request(start):
    """Garbage collection does not see that a request which failed, or whose client left, holds megabytes."""
    server = start("--max-bodies", 8 << 20, "--max-body", 4 << 20)
    before = 0
    for i in range(24):
        status = server.ask(b"nonsense" * (480 << 10) + b"%d" % i, "?timeout=0.02" if i % 2 else "")[0]
        assert status in (422, 504)
        before = before or server.memory()
    assert server.memory() - before < 30, (before, server.memory())


def test_a_client_that_does_not_read_is_cut(start, tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGB", (2000, 2000)).save(tmp_path / "large.png")
    server = start("--idle-seconds", 0.5)
    body = json.dumps({"items": [{"data": url((tmp_path / "large.png").read_bytes())}] * 16}).encode()
    descriptors = f"/proc/{server.process.pid}/fd"
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", server.port))
        s.sendall(b"POST /v1/encode HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert s.recv(12) == b"HTTP/1.1 200"
        began, there = time.monotonic(), len(os.listdir(descriptors))
        while len(os.listdir(descriptors)) >= there:
            assert time.monotonic() - began < 10
            time.sleep(0.05)
        assert time.monotonic() - began > 0.3


def test_json_counts_as_what_it_takes(start):
    server = start("--max-bodies", 1 << 20, "--max-body", 500_000)
    text = {"items": [{"data": "data:;base64," + "A" * 300_000}]}
    assert server.ask(json.dumps(text), **JSON)[0] == 422
    text["items"].append({"like": "\U0001f600"})  # for which Python has every character in four bytes
    status, _, answer = server.ask(json.dumps(text, ensure_ascii=False).encode(), **JSON)
    assert status == 413 and "bytes of bodies" in message(answer)


def test_answers_are_counted(start):
    size = len(start().ask(image(1))[2])
    server = start("--max-answers", 6 * size)
    for _ in range(2):  # of what is computed, and of what is kept
        status, headers, answer = server.ask(json.dumps({"items": [{"data": url(image(1))}] * 4}), **JSON)
        rows = json.loads(answer)["items"]
        assert (status, [row["status"] for row in rows]) == (207, [200, 200, 200, 429]) and int(headers["retry-after"]) >= 1
        assert "bytes of answers are in use" in rows[3]["error"]["message"]
    assert server.metric("answer_bytes") == 0
    status, _, answer = server.ask(image(1, 700, 700))
    assert status == 413 and "bytes of answers" in message(answer)
    assert server.metric("answer_bytes") == 0 and server.ask(image(2))[0] == 200


def test_an_answer_is_written_in_pieces():
    from qwenvit.serve import app
    from qwenvit.serve.cache import Kept

    data = os.urandom((5 << 20) + 1)
    reply = app._rows_reply([app.Answer(200, Kept("name", len(data), data), "memory")] * 3, False)
    pieces = [bytes(piece) for piece in reply.pieces()]
    assert max(map(len, pieces)) <= 1 << 20 and reply.size() == sum(map(len, pieces))
    rows = json.loads(b"".join(pieces))["items"]
    assert [base64.b64decode(row["safetensors"]) for row in rows] == [data] * 3


def test_what_is_announced_is_not_counted(tight):
    head = b"POST /v1/encode HTTP/1.1\r\nHost: x\r\nContent-Length: 19000\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(("127.0.0.1", tight.port))).sendall(head)
        time.sleep(0.1)
        assert tight.ask(bytes(19000))[0] == 422  # the decoder has read it


def test_bodies_and_connections_are_counted(tight):
    head = b"POST /v1/encode HTTP/1.1\r\nHost: x\r\nContent-Length: 19000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", tight.port)) as s:
        s.sendall(head + bytes(18000))
        tight.wait_for("body_bytes", 18000)
        status, headers, answer = tight.ask(bytes(19000))
        assert (status, headers["retry-after"]) == (429, "1") and "bytes of bodies are in use" in message(answer)
    tight.wait_for("body_bytes", 0)
    many = [socket.create_connection(("127.0.0.1", tight.port)) for _ in range(6)]  # half of all
    with pytest.raises(OSError):
        tight.ask("", method="GET", path="/health")
    with socket.create_connection(("127.0.0.1", tight.port), source_address=("127.0.0.2", 0)) as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in s.recv(1000)
    for s in many:
        s.close()
    time.sleep(0.1)
    assert tight.ask(image(6, 32, 32))[0] == 200


def test_a_key_is_its_bytes_in_utf_8(start, golden):
    server = start("--api-key", "schl\u00fcssel", key="schl\u00fcssel".encode().decode("latin-1"))  # as http.client sends it
    assert server.ask("", method="GET", path="/v1/models")[0] == 200
    assert server.ask("", method="GET", path="/v1/models", Authorization="Bearer schl\u00fcssel")[0] == 401
    assert "a key must not be empty" in command("serve", "--model", golden, "--port", 0, code=2, QWENVIT_API_KEY="").stderr


def test_keys(start):
    server = start("--api-key", "one", "--api-key", "two", "--no-shared-cache", key="two")
    assert server.ask("", method="GET", path="/health")[0] == 200
    for path in ("/v1/encode", "/ready", "/metrics", "/v1/models", "/nothing"):
        for given in ({"Authorization": "Bearer "}, {"Authorization": "Bearer three"}, {"Authorization": "one"}):
            status, headers, answer = server.ask("", method="GET", path=path, **given)
            assert (status, headers["www-authenticate"]) == (401, "Bearer") and "no valid API key" in message(answer)
    found = [server.ask(image(1), Authorization=f"Bearer {key}")[1]["x-qwenvit-found"] for key in ("one", "two", "one", "two")]
    assert found == ["miss", "miss", "memory", "memory"]  # nobody learns what another has asked
    assert "one" not in open(server.log, encoding="utf-8").read().replace('"path"', "")


# ---- many at once ----------------------------------------------------------------------------------


def test_equal_requests_are_computed_once(served):
    tokens = served.metric("tokens_total")
    impatient = served.later(image(10), "?max_frames=706&timeout=0.2")
    served.wait_for("under_way_items", 1)
    status, headers, _ = served.later(image(10), "?max_frames=706").result()
    assert (status, headers["x-qwenvit-found"]) == (200, "flight")  # the other's deadline was not its
    status, _, answer = impatient.result()
    assert status == 504 and "the request timed out" in message(answer)
    one = served.metric("tokens_total") - tokens
    assert served.ask(image(11), "?max_frames=700")[0] == 200 and served.metric("tokens_total") - tokens == 2 * one


@pytest.mark.parametrize("width", [90, 2000])  # uvicorn stops reading after a large piece
def test_what_nobody_waits_for_ends(served, width):
    with socket.create_connection(("127.0.0.1", served.port)) as s:
        body = image(12, width=width)
        s.sendall(b"POST /v1/encode?max_frames=768 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
        time.sleep(0.1)
        s.sendall(body + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        served.wait_for("under_way_items", 1)
    began = time.monotonic()
    served.wait_for("under_way_items", 0)
    assert time.monotonic() - began < 4  # it would have taken 6.8 s
    assert served.metric("body_bytes") == 0 and served.ask(body, "?max_frames=700")[1]["x-qwenvit-found"] == "miss"
    assert not any("without starting" in line.get("message", "") for line in served.lines())


def test_errors_are_not_kept(served):
    bad, before = b"nonsense" * 60, served.metric("decode_errors_total")
    for _ in range(2):
        assert served.ask(bad)[0] == 422
    assert served.metric("decode_errors_total") - before == 2


def test_a_client_has_half_of_the_queue(golden):
    from qwenvit.serve.items import Refused
    from qwenvit.serve.accounts import Turns

    async def run():
        turns, order, release = Turns(4, 8), [], asyncio.Event()

        async def one(client, is_image):
            async with turns.turn(client, is_image):
                order.append((client, is_image))
                await release.wait()

        async def begin(*items):
            tasks = [asyncio.ensure_future(one(*item)) for item in items]
            await asyncio.sleep(0)
            return tasks

        # clips alone have all decoders; as an image waits, only half
        tasks = await begin(*[("a", False)] * 8)
        assert (turns.clips.under_way, turns.queue.total()) == (4, 4)
        with pytest.raises(Refused) as e:  # the client has half of the queue
            await one("a", False)
        assert e.value.status == 429 and "8 places in the queue are in use, 4 of them by this client" in str(e.value) and 1 <= int(e.value.headers["Retry-After"]) <= 60
        tasks += await begin(("b", False), ("b", False), ("c", True))
        assert order[-1] == ("c", True)
        tasks[0].cancel()
        await asyncio.sleep(0)
        assert turns.clips.under_way == 3  # no clip follows while an image is in progress
        release.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        # who has less than half first, then they take turns
        assert [client for client, is_image in order[4:] if not is_image][:3] == ["b", "a", "b"]
        assert not (turns.queue.total() or turns.images.under_way or turns.clips.under_way or turns.clips.clients)

    asyncio.run(run())


def test_turns_of_a_request_that_leaves_end_at_once(golden):
    from qwenvit.serve.accounts import Turns

    async def run():
        turns = Turns(2, 100)

        async def one():
            async with turns.turn("a", False):
                await asyncio.sleep(60)

        tasks = [asyncio.ensure_future(one()) for _ in range(10)]
        await asyncio.sleep(0)
        assert (turns.clips.under_way, turns.queue.total()) == (2, 8)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError} and turns.clips.under_way == turns.queue.total() == 0

    asyncio.run(run())


def test_a_full_queue(start):
    server = start("--queue", 2, "--decoders", 1, slow=True)
    clips = [gif(8, 8, 2) + bytes([n]) for n in range(3)]
    waiting = [server.later(clips[0], "?max_frames=710")]
    server.wait_for("under_way_items", 1)
    waiting.append(server.later(clips[1], "?max_frames=701"))
    server.wait_for("queue_items", 1)
    status, headers, answer = server.ask(clips[2])
    assert status == 429 and 1 <= int(headers["retry-after"]) <= 60 and "places in the queue are in use" in message(answer)
    assert server.ask(image(1))[0] == 429  # of this client; an image of another has its turn
    assert [one.result()[0] for one in waiting] == [422, 422]


def test_an_image_does_not_wait_for_a_clip_that_waits_for_room(served):
    waits = served.later(gif(8, 8, 2) + b"696", "?max_frames=696")
    served.wait_for("under_way_items", 1)
    began = time.monotonic()
    assert served.ask(image(22))[0] == 200 and time.monotonic() - began < 1.5 and not waits.done()
    assert waits.result()[0] == 422


def test_a_client_has_half_of_the_encoders_sources(golden):
    from qwenvit.serve.accounts import Bound, Hold
    from qwenvit.serve.items import Refused

    bound = Bound("bytes", 100, one=10)
    one, two = Hold("a"), Hold("a")
    one.take(bound, 30)
    two.take(bound, 20)
    for client, size, words in (("a", 1, "50 of 100 bytes are in use, 50 of them by this client"), ("b", 51, "at most 50 per client")):
        with pytest.raises(Refused, match=words):
            Hold(client).take(bound, size)
    other = Hold("b")
    other.take(bound, 50)
    with pytest.raises(Refused, match="100 of 100"):
        Hold("c").take(bound)
    for hold in (one, two, other):
        hold.close()
    assert bound.total() == 0 and not bound.held
    with pytest.raises(Refused):  # a thread that is late takes nothing
        one.take(bound)
    assert not bound.held


def test_a_client_with_slow_clips_leaves_half_of_the_places():
    from qwenvit.serve.accounts import Line

    async def run(alone, wanted):
        line, order, ends = Line(lambda: 4, alone), [], {}

        async def one(client, end):
            async with line.place(client):
                order.append(client)
                await end.wait()

        async def begin(client, n):
            ends.setdefault(client, asyncio.Event())
            tasks = [asyncio.ensure_future(one(client, ends[client])) for _ in range(n)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return tasks

        tasks = await begin("slow", 9)
        assert order == ["slow"] * wanted
        tasks += await begin("quick", 3)
        for task in tasks[:2] if alone else ():
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert order[wanted:] == ["quick"] * 2  # though slow ones have waited for longer
        for end in ends.values():
            end.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not line.places and not line.clients

    asyncio.run(run(True, 4))
    asyncio.run(run(False, 2))


def test_what_is_an_image_is_decided_by_its_signature():
    """No loop of Python's runs over a client's bytes, and what stands in an image's metadata says nothing."""
    from qwenvit.serve.items import Limits, make_item

    limits, began = Limits(1 << 30, 1, 768, 60, 1000), time.process_time()
    walk = b"GIF89a\1\0\1\0\0\0\0\x21\xfe" + b"\1a" * (16 << 20)
    animated = tiny_png(8, 8, (b"acTL", struct.pack(">II", 2, 0)))
    for data, is_image in ((tiny_png(8, 8), True), (tiny_png(8, 8, (b"tEXt", b"fcTL fcTL")), True), (animated, False), (walk, False),
                           (b"\xff\xd8\xff" + b"\xff" * (32 << 20), True), (b"P6G" + bytes(99), False), (b"P6\n9", True)):
        assert make_item(data, {}, limits).is_image == is_image, data[:60]
    assert make_item(animated, {"first_frame": True}, limits).is_image
    assert time.process_time() - began < 1


def test_rare_codecs_are_refused(start, tmp_path):
    if not shutil.which("ffmpeg"):
        pytest.skip("no ffmpeg")
    for name, codec in (("rare", "ffv1"), ("usual", "mpeg4")):
        subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc=size=64x48:rate=5:duration=1", "-c:v", codec,
                        tmp_path / f"{name}.mkv"], check=True)
    rare, usual = ((tmp_path / f"{name}.mkv").read_bytes() for name in ("rare", "usual"))
    server = start()
    status, _, answer = server.ask(rare)
    assert status == 422 and "codec 'ffv1' is not one of the usual codecs" in message(answer)
    assert server.ask(usual)[0] == 200
    assert start("--all-codecs").ask(rare)[0] == 200


def test_what_has_its_turn_waits_for_room(served):
    both = [served.later(image(seed), f"?max_frames={n}") for seed, n in ((20, 698), (21, 697))]
    assert [one.result()[0] for one in both] == [200, 200]


# ---- what it keeps ---------------------------------------------------------------------------------


def test_the_folder_outlives_the_server_and_has_a_bound(start, golden, tmp_path):
    folder = tmp_path / "tokens"
    server = start("--cache", folder)
    size = len(server.ask(image(1))[2])
    assert "another server is using it" in command("serve", "--model", golden, "--port", 0, "--cache", folder, code=3).stderr
    assert server.end() == 0
    left = folder / f"{'0' * 64}.safetensors.tmp.1.0"  # of a server that was killed
    left.write_bytes(b"x")
    (folder / "a stranger's").write_bytes(b"x")
    server = start("--cache", folder, "--cache-bytes", 2 * size, "--cache-memory", 0)
    assert server.ask(image(1))[1]["x-qwenvit-found"] == "folder" and not left.exists()
    for seed in (2, 1, 3):  # 2 is the one that was not used since
        server.ask(image(seed))
    assert [server.ask(image(seed))[1]["x-qwenvit-found"] for seed in (1, 3, 2)] == ["folder", "folder", "miss"]
    wait_until(lambda: len(list(folder.glob("*.safetensors"))) == 2)  # a thread removes files, after the answer
    assert (folder / "a stranger's").exists()
    for f in folder.glob("*.safetensors"):
        f.unlink()
    assert server.ask(image(2))[1]["x-qwenvit-found"] == "miss"  # it does not miss what is gone
    status, _, answer = server.ask(image(9, 700, 700))
    assert status == 507 and "--cache-bytes is" in message(answer)


def test_the_folder_has_nothing_for_another_tower_or_ffmpeg(golden, tmp_path, tmp_path_factory):
    pixels = another_tower(golden, tmp_path / "pixels", "preprocessor_config.json", size={"longest_edge": 65536})
    means = another_tower(golden, tmp_path / "means", "preprocessor_config.json", image_mean=[0.1, 0.2, 0.3])
    heads = another_tower(golden, tmp_path / "heads", "config.json", vision_config={"num_heads": 1})
    decoder = tmp_path / "decoder"
    decoder.write_text("#!/bin/sh\n[ \"$1\" != --version ] || { printf 'qwenvit-decoder 1\\n  FFmpeg   0.1\\n' >&0; exit; }\n"
                       f"exec '{_decoder.find()}' \"$@\"\n")
    decoder.chmod(0o755)
    with started(tmp_path_factory) as start_of:
        found = []
        for model, environment in ((golden, {}), (pixels, {}), (means, {}), (heads, {}), (golden, {"QWENVIT_DECODER": str(decoder)}), (golden, {})):
            server = start_of(model, "--cache", tmp_path / "tokens", "--cache-memory", 0, **environment)
            status, headers, _ = server.ask(image(1))
            assert status == 200 and server.end() == 0
            found.append(headers["x-qwenvit-found"])
    assert found == ["miss"] * 5 + ["folder"]


def test_kill_9_under_load(start, tmp_path, same):
    folder = tmp_path / "tokens"
    server = start("--cache", folder)

    def load(first):
        with contextlib.suppress(OSError):
            for seed in itertools.count(first, 10):
                server.ask(image(seed), "?store=1")

    together(*(functools.partial(load, 100 + i) for i in range(4)), lambda: time.sleep(1) or server.process.kill())
    server = start("--cache", folder)
    files = {f for f in os.listdir(folder) if f.endswith(".safetensors")}
    assert len(files) > 3
    for seed in range(100, 120):
        row = json.loads(server.ask(image(seed), "?store=1")[2])["items"][0]
        assert row["found"] == ("folder" if row["name"] in files else "miss")
        assert same((folder / row["name"]).read_bytes(), image(seed), row["name"])
    for f in files:
        read_safetensors(folder / f)


# ---- how it begins and ends ------------------------------------------------------------------------


def test_a_killed_servers_scratch_folder_goes_with_the_next_start(start):
    def scratch(server):
        fds = f"/proc/{server.process.pid}/fd"
        [folder] = {os.readlink(f"{fds}/{fd}") for fd in os.listdir(fds)} & set(glob.glob("/dev/shm/qwenvit-serve-*"))
        os.utime(folder, (0, 0))  # as of a server that was started long ago
        return folder

    lives, killed = start(), start()
    folders = scratch(lives), scratch(killed)
    killed.kill()
    start().kill()
    assert [os.path.exists(folder) for folder in folders] == [True, False]
    assert lives.ask(image(1))[0] == 200 and lives.end() == 0 and not os.path.exists(folders[0])


def test_sigterm_drains(start):
    server = start("--drain-seconds", 20, slow=True)
    under_way = server.later(image(1), "?max_frames=712")
    server.wait_for("under_way_items", 1)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert server.ask("", method="GET", path="/health")[0] == 200
    assert server.ask("", method="GET", path="/ready")[0] == 503
    status, headers, answer = server.ask(image(2))
    assert (status, headers["connection"]) == (503, "close") and "shutting down" in message(answer)
    assert under_way.result()[0] == 200 and server.process.wait(10) == 0


def test_draining_has_a_bound(start):
    server = start("--drain-seconds", 0.3, slow=True)
    under_way = server.later(image(1), "?max_frames=768")
    server.wait_for("under_way_items", 1)
    began = time.monotonic()
    assert server.end() == 0 and time.monotonic() - began < 5
    status, _, answer = under_way.result()
    assert status == 503 and "shutting down" in message(answer)


def test_without_a_device_it_asks_to_be_started_again(start):
    server = start(slow=True)
    assert server.ask(image(1), "?max_frames=699")[0] == 500
    for method, path in (("GET", "/health"), ("GET", "/ready"), ("POST", "/v1/encode")):
        status, _, answer = server.ask(image(2) if method == "POST" else "", method=method, path=path)
        assert status == 503 and "must be restarted: no device is left" in message(answer)


def test_its_help_is_short():
    told = command("serve", "--help", COLUMNS="80")
    lines = told.stdout.splitlines()
    assert len(lines) <= 40 and "--idle-seconds" in told.stdout and max(map(len, lines)) <= 120


def test_wrong_starts(golden, tmp_path):
    wrong = (
        (["--model", golden, "--workers", "4"], {2}, "unknown option --workers"),
        (["--model", golden, "--ssl-keyfile", "key"], {2}, "unknown option --ssl-keyfile"),
        (["--model", golden, "--api-key", "a", "--api-key", ""], {2}, "a key must not be empty"),
        ([], {2}, "--model is required"),
        (["--cach-memory", "1"], {2}, "unknown option --cach-memory; did you mean --cache-memory?"),
        (["--model", golden, "--port", "70000"], {2}, "invalid port value"),
        (["--model", golden, "--max-body", "-1"], {2}, "--max-body"),
        (["--model", str(tmp_path / "none"), "--port", "0"], {3, 4}, "none"),
        (["--model", golden, "--port", "0", "--cache", "/proc/none"], {4}, "--cache /proc/none"),
        (["--model", golden, "--host", "192.0.2.1"], {4}, ""),
    )
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    runs = [subprocess.Popen([*COMMAND, "serve", *arguments], **pipes) for arguments, _, _ in wrong]
    for run, (arguments, codes, words) in zip(runs, wrong):
        told = run.communicate(timeout=60)[1]
        assert run.returncode in codes and words in told, (arguments, run.returncode, told)


def answers(golden, connect, *options, then=lambda: True):
    """Returns whether a server with these options, which cannot be asked as others are, answers, then() is true, and it ends."""
    server = subprocess.Popen([*COMMAND, "serve", "--model", golden, *map(str, options)], stdout=subprocess.DEVNULL)

    def is_right():
        with contextlib.suppress(OSError), connect() as s:
            s.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
            return b" 200 " in s.recv(1000)

    try:
        wait_until(is_right)
        is_wanted = then()
    finally:
        server.terminate()
    return is_wanted and server.wait(30) == 0


def test_nginx_in_front(served, tmp_path):
    """By the page's configuration."""
    if not os.environ.get("CI") and not (shutil.which("openssl") and shutil.which("nginx")):
        pytest.skip("no openssl and nginx")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2",
                    "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    with open(os.path.join(HERE, "..", "..", "docs", "serving.md"), encoding="utf-8") as f:
        text = f.read().partition("```nginx\n")[2].partition("```")[0]
    for old, new in (("443", f"127.0.0.1:{port}"), ("/etc/ssl/certs/serve.pem", certificate), ("/etc/ssl/private/serve.key", key),
                     (":8000", f":{served.port}")):
        assert text.count(old) == 1
        text = text.replace(old, str(new))
    folders = "".join(f"{name}_temp_path {tmp_path}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (tmp_path / "nginx.conf").write_text(text.replace("http {", "http {\naccess_log off;\n" + folders))
    own = f"daemon off; master_process off; pid {tmp_path}/pid; error_log {tmp_path}/log;"
    nginx = subprocess.Popen(["nginx", "-p", tmp_path, "-c", tmp_path / "nginx.conf", "-e", tmp_path / "log", "-g", own])
    context = ssl.create_default_context(cafile=certificate)

    def status():
        with contextlib.suppress(OSError):
            c = http.client.HTTPSConnection("localhost", port, context=context, timeout=20)
            c.request("POST", "/v1/encode", image(1))
            return c.getresponse().status

    try:
        wait_until(lambda: status() == 200)
    finally:
        nginx.terminate()
        nginx.wait(20)


def test_a_unix_socket(golden, tmp_path):
    def connect():
        s = socket.socket(socket.AF_UNIX)
        s.connect(str(tmp_path / "s"))
        return s

    def found():
        with connect() as s:
            data = image(1)
            s.sendall(b"POST /v1/encode HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            return s.recv(1000).partition(b"x-qwenvit-found: ")[2][:4]

    # nobody has a name there
    assert answers(golden, connect, "--uds", tmp_path / "s", "--no-shared-cache", then=lambda: found() == found() == b"miss")


def test_the_clients_of_the_page(served, torn, tmp_path):
    with open(os.path.join(HERE, "..", "..", "docs", "serving.md"), encoding="utf-8") as f:
        page = f.read().replace(":8000/", f":{served.port}/").replace("htons(8000)", f"htons({served.port})")
    shutil.copy(torn[0], tmp_path / "clip.mp4")
    out = tmp_path / "clip.safetensors"

    def run(*command):
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60).stdout

    run(sys.executable, "-c", page.partition("```python\n")[2].partition("```")[0])
    tokens = out.read_bytes()
    assert len(read_safetensors(out)[0]["timestamps"]) == 4
    if shutil.which("curl"):
        out.unlink()
        run("sh", "-c", page.partition("    curl ")[2].partition("\n")[0].join(["curl ", ""]))
        assert out.read_bytes() == tokens
    if shutil.which("cc"):
        (tmp_path / "client.c").write_text(page.partition("```c\n")[2].partition("```")[0])
        run("cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "client.c", "-o", "client")
        [row] = json.loads(run("./client", "clip.mp4").partition(b"\r\n\r\n")[2])["items"]
        assert (row["status"], row["bytes"]) == (200, len(tokens)) and row["name"].endswith(".safetensors")


def test_nothing_is_lost_under_clients_of_all_kinds():
    run = subprocess.run([sys.executable, os.path.join(HERE, "serve_soak.py"), "250"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
