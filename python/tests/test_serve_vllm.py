# SPDX-License-Identifier: MIT
"""Tests what vLLM's decode side gets of `qwenvit serve --ec-path`: requests are those of its example's proxy and of llm-d's
router, and keys those of its hasher; tools/reference/engines_vllm.py made both, and tries the answers on vLLM's own code."""
import base64
import io
import json
import os
import time

import numpy as np
import pytest

import qwenvit
from conftest import Values, another_tower, read_safetensors, wait_until
from serving import Server, image, message, started, url

for needed in ("httptools", "uvicorn", "prometheus_client", "blake3"):
    pytest.importorskip(needed)
from qwenvit.serve.vllm import image_key  # noqa: E402
from qwenvit.serve.items import Refused  # noqa: E402
from qwenvit.media import FrameFiles  # noqa: E402

with open(os.path.join(os.path.dirname(__file__), "vllm_requests.json"), encoding="utf-8") as f:
    GIVEN = json.load(f)
CHAT = "/v1/chat/completions"


def part(data, uuid=None, kind="image", **more):
    named = {} if uuid is None else {"uuid": uuid}
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url(data)}, **named, **more}


def ask(server, *parts, **more):
    body = {"model": "any", "messages": [{"role": "user", "content": list(parts)}], **more}
    status, headers, answer = server.ask(json.dumps(body), path=CHAT, content_type="application/json")
    return status, headers, json.loads(answer)


def files_in(folder):
    return sorted(name for name in os.listdir(folder) if os.path.exists(folder / name / "encoder_cache.safetensors"))


@pytest.fixture(scope="module")
def start(golden, tmp_path_factory):
    """Returns a function that starts a server with a folder; further arguments are the command's."""
    with started(tmp_path_factory) as start_of:

        def starts(*arguments, folder=None, **more):
            folder = folder or tmp_path_factory.mktemp("ec")
            server = start_of(golden, "--ec-path", folder, "--vllm-model-id", GIVEN["model_id"], *arguments, **more)
            server.folder = folder
            return server

        yield starts


@pytest.fixture(scope="module")
def served(start):
    return start(slow=True)


@pytest.fixture(scope="module")
def own(golden):
    """Returns the tokens that encode() gives."""
    model = qwenvit.load(golden)
    encoder = qwenvit.AsyncEncoder(model, dtype=model.info["dtype"])
    yield lambda data, **options: encoder.submit({"bytes": data}, **options).result()
    encoder.close()


def holds(server, key, tokens):
    tensors, _ = read_safetensors(server.folder / key / "encoder_cache.safetensors")
    rows = np.asarray(tokens.packed())
    return list(tensors) == ["ec_cache"] and Values(tensors["ec_cache"]) == Values(rows.view(np.uint16 if tokens.dtype == "bf16" else rows.dtype))


# ---- what it answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GIVEN["requests"], ids=lambda case: case["name"])
def test_requests_of_proxies(served, own, case):
    status, _, body = served.ask(json.dumps(case["body"]), path=CHAT, content_type="application/json")
    answer = json.loads(body)
    assert status == 200, body
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": ""} and choice["finish_reason"] == "stop"
    params, parts = answer["ec_transfer_params"], case["body"]["messages"][0]["content"]
    assert list(params) == list(dict.fromkeys(case["keys"]))
    n = 0
    for index, (key, one) in enumerate(zip(case["keys"], parts)):
        kind = one["type"].removesuffix("_url")
        tokens = own(base64.b64decode(one[one["type"]]["url"].partition(",")[2]))
        metadata = {f"{kind}_grid_thw": tokens.grid_thw[0].tolist()}
        if kind == "video":
            seconds = tokens.timestamps
            seconds = np.append(seconds, seconds[-1:]) if len(seconds) % 2 else seconds  # the last is a pair with itself
            metadata["timestamps"] = ((seconds[0::2] + seconds[1::2]) / 2).tolist()
        assert index in params[key]["item_indices"] and params[key]["modality"] == kind
        assert params[key]["metadata"] == metadata
        assert holds(served, key, tokens)
        n += len(tokens)
    assert answer["usage"] == {"prompt_tokens": n, "completion_tokens": 0, "total_tokens": n}


def test_frames_that_a_client_sampled(served, own):
    frames = [image(i, 96, 128) for i in range(4)]
    clip = "data:video/jpeg;base64," + ",".join(base64.b64encode(f).decode() for f in frames)
    status, _, answer = ask(served, {"type": "video_url", "video_url": {"url": clip}, "uuid": "frames"})
    assert status == 200, answer
    tokens = own(FrameFiles.of(iter(frames)))
    assert not tokens.is_image and tokens.timestamps.tolist() == [0, 1, 2, 3] and holds(served, "frames", tokens)
    assert answer["ec_transfer_params"]["frames"]["metadata"] == {"video_grid_thw": tokens.grid_thw[0].tolist(), "timestamps": [0.5, 2.5]}
    assert ask(served, {"type": "video_url", "video_url": {"url": clip.replace(",", ",AA==,", 1)}, "uuid": "frames"})[0] == 409
    status, _, answer = ask(served, {"type": "image_url", "image_url": {"url": clip}, "uuid": "frame"})
    assert status == 422 and "not an image of a known format" in answer["error"]["message"]


def test_keys_are_those_of_vllms_hasher():
    assert len(GIVEN["keys"]) >= 12
    for name, (data, key) in GIVEN["keys"].items():
        assert image_key(base64.b64decode(data), GIVEN["model_id"]) == key, name
    for data in (image(1), b"BM" + bytes(100), b"\x89PNG", b"\xff\xd8\xff\xe0", b"nonsense"):
        with pytest.raises(Refused, match="send a uuid"):
            image_key(data, "any")


def test_what_is_there_is_not_computed_again(served):
    before = served.metric("tokens_total")
    assert ask(served, part(image(20), "twenty"), part(image(20), "twenty"))[2]["ec_transfer_params"]["twenty"]["item_indices"] == [0, 1]
    once = served.metric("tokens_total") - before
    assert ask(served, part(image(20), "twenty"))[0] == 200 and served.metric("tokens_total") == before + once > before


# ---- what it refuses -------------------------------------------------------------------------------

REFUSED = [  # parts, what else is in the body, status, words
    ([part(image(1))], {}, 400, "send a uuid"),
    ([part(b"GIF89a", kind="video")], {}, 400, "a clip needs a uuid"),
    ([part(image(1), "a", mm="x")], {"mm_processor_kwargs": {"fps": 2}}, 400, "mm_processor_kwargs is not supported"),
    ([part(image(1), "a")], {"media_io_kwargs": {"video": {"fps": 1}}}, 400, "media_io_kwargs is not supported"),
    ([part(image(1), "a")], {"stream": True}, 400, "stream is not supported"),
    ([part(image(1), "a")], {"ec_transfer_params": {"consumer_zmq": "tcp://x"}}, 400, "ec_transfer_params is not supported"),
    ([part(image(1), "../a")], {}, 400, "uuid is '../a'; it must be a folder's name"),
    ([part(image(1), ".unfinished")], {}, 400, "must be a folder's name"),
    ([part(image(1), "a" * 201)], {}, 400, "must be a folder's name"),
    ([part(image(1), "a\0b")], {}, 400, "must be a folder's name"),
    ([part(image(1), 3)], {}, 400, "uuid is 3"),
    ([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}, "uuid": "a"}], {}, 422, "other URLs are not fetched"),
    ([{"type": "image_url", "uuid": "a"}], {}, 422, "image_url's url is None"),
    ([{"type": "image_embeds", "image_embeds": {}, "uuid": "a"}], {}, 400, "unknown part type 'image_embeds'"),
    ([{"type": ["image_url"]}], {}, 400, "unknown part type a list"),
    ([{"type": "text", "text": "hello"}], {}, 400, "without a language model"),
    ([part(image(1), f"u{i}") for i in range(65)], {}, 413, "65 images and clips; at most 64"),
    ([part(image(1), "still", kind="video")], {}, 422, "video_url contains an image"),
    ([part(b"nonsense" * 50, "b")], {}, 422, "image_url's url is not an image of a known format; send a clip as a video"),
    ([part(b"nonsense" * 50, "b", kind="video")], {}, 422, "not a clip or image"),
]


def test_requests_that_are_refused(served):
    before = files_in(served.folder)
    for parts, more, wanted, words in REFUSED:
        status, _, answer = ask(served, *parts, **more)
        assert status == wanted and words in answer["error"]["message"], (status, answer)
    for body, wanted, words in (("[]", 400, "the body must be"), ('{"messages": 3}', 400, "no image_url")):
        status, _, answer = served.ask(body, path=CHAT, content_type="application/json")
        assert status == wanted and words in message(answer)
    assert files_in(served.folder) == before
    # one that fails fails the request, and what another item has made stays
    assert ask(served, part(image(30), "good"), part(b"nonsense" * 50, "bad", kind="video"))[0] == 422
    assert {"good"} == set(files_in(served.folder)) - set(before)


def test_a_clip_is_not_stored_as_an_image(served, movie):
    pil, jpeg = pytest.importorskip("PIL.Image"), io.BytesIO()
    pil.new("RGB", (90, 60)).save(jpeg, "JPEG")
    before, data = files_in(served.folder), movie.read_bytes()
    pdf = b"%PDF-1.4\n1 0 obj<</Filter/DCTDecode>>stream\n" + jpeg.getvalue() + b"\nendstream endobj\n%%EOF\n"
    for sent, kind, words in ((data, "image", "not an image of a known format"), (pdf, "image", "not an image of a known format"),
                              (pdf, "video", "not a clip or image of a known format")):
        status, _, answer = ask(served, part(sent, f"{kind}-{len(sent)}", kind=kind))
        assert status == 422 and words in answer["error"]["message"], answer
    status, _, answer = served.ask(pdf)
    assert status == 422 and "not a clip or image" in message(answer)
    assert files_in(served.folder) == before
    assert ask(served, part(data, "a-clip", kind="video"))[0] == 200


def test_a_uuid_stands_for_its_bytes(served, own):
    assert ask(served, part(image(40), "mine"))[0] == 200
    status, _, answer = ask(served, part(image(41), "mine"))
    assert status == 409 and "already names a different file" in answer["error"]["message"]
    assert holds(served, "mine", own(image(40)))
    # also while the first is in progress
    body = [json.dumps({"messages": [{"content": [part(image(seed, 96), "both")]}]}) for seed in (42, 43)]
    asked = [served.later(one, "", "POST", CHAT) for one in body]
    assert sorted(one.result()[0] for one in asked) == [200, 409]


def test_a_server_without_a_folder(golden, tmp_path_factory):
    with started(tmp_path_factory) as start_of:
        status, _, answer = ask(start_of(golden), part(image(1), "a"))
    assert status == 404 and "--ec-path" in answer["error"]["message"]


# ---- how long files stay ---------------------------------------------------------------------------


def test_a_full_folder_is_told_until_files_may_go(start, own):
    def large(seed):
        return image(seed, 256)

    server = start("--ec-bytes", int(2.5 * own(large(1)).packed().nbytes), "--ec-seconds", 1.5, "--timeout", 1.5)
    assert [ask(server, part(large(i), f"u{i}"))[0] for i in (1, 2)] == [200, 200]
    status, headers, answer = ask(server, part(large(3), "u3"))
    assert status == 503 and 1 <= int(headers["retry-after"]) <= 2 and "--ec-path is full" in answer["error"]["message"]
    time.sleep(1.6)
    assert files_in(server.folder) == ["u1", "u2"]  # they stay as long as nobody needs their room
    assert ask(server, part(large(1), "u1"))[0] == 200  # whose time begins anew
    assert ask(server, part(large(3), "u3"))[0] == 200
    wait_until(lambda: not os.path.exists(server.folder / "u2"))  # a thread removes what gives its room, after the answer
    assert files_in(server.folder) == ["u1", "u3"]
    assert os.listdir(server.folder / "u3") == ["encoder_cache.safetensors"]
    status, _, answer = ask(start("--ec-bytes", 1000), part(large(1), "u4"))
    assert status == 507 and "--ec-bytes" in answer["error"]["message"]
    time.sleep(1.6)
    assert ask(server, part(large(5), "u2"))[0] == 200  # its file is gone, and other bytes may have its uuid


def test_a_server_that_starts_again_knows_its_files(start):
    server = start()
    assert ask(server, part(image(1), "one"))[0] == 200
    left = server.folder / "one" / "encoder_cache.safetensors.1-ab"
    left.write_bytes(b"half")
    (server.folder / "theirs").mkdir()
    (server.folder / "theirs" / "encoder_cache.safetensors").write_bytes(b"not ours")
    server.kill()
    again = start(folder=server.folder)
    assert not left.exists() and files_in(server.folder) == ["one", "theirs"]
    assert ask(again, part(image(2), "one"))[0] == 409
    before = again.metric("tokens_total")
    assert ask(again, part(image(1), "one"))[2]["ec_transfer_params"]["one"]["metadata"] == {"image_grid_thw": [1, 16, 16]}
    assert again.metric("tokens_total") == before


def test_a_server_of_another_tower_takes_over_no_file(golden, tmp_path, tmp_path_factory):
    other = another_tower(golden, tmp_path / "other", "preprocessor_config.json", size={"longest_edge": 65536})
    with started(tmp_path_factory) as start_of:
        for model, grid in ((golden, [1, 24, 32]), (other, [1, 12, 18])):
            server = start_of(model, "--ec-path", tmp_path / "ec", "--vllm-model-id", "m")
            answer = ask(server, part(image(1, 384, 512), "one"))[2]
            assert answer["ec_transfer_params"]["one"]["metadata"] == {"image_grid_thw": grid}
            server.kill()


@pytest.mark.parametrize("arguments, words", [
    (["--no-shared-cache"], "cannot be used together"), (["--ec-seconds", "5"], "--ec-seconds is 5; it must be at least --timeout, 60"),
])
def test_options_that_do_not_go_together(golden, tmp_path, arguments, words):
    with pytest.raises(AssertionError, match=words):
        Server(golden, tmp_path / "log", "--ec-path", tmp_path, *arguments)
