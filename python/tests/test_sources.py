# SPDX-License-Identifier: MIT
"""Tests clips and images in every form in which people have them, and devices by every name."""
import base64
import io
import os
import sys
import types

import numpy as np
import pytest

import fake_torch
import qwenvit
from conftest import GOLDEN, added, plain_clip, read_safetensors, refused

FAMILIES = sorted(os.listdir(GOLDEN))
RGBA = np.random.default_rng(2).integers(0, 256, (70, 90, 4), dtype=np.uint8)


def same(result, other):
    return result.is_image == other.is_image and (result.tokens == other.tokens).all()


def tensors(frames):
    torch = pytest.importorskip("torch")
    return torch.from_numpy(frames)


def images(frames):
    image = pytest.importorskip("PIL.Image")
    return [image.fromarray(f) for f in frames]


CLIPS = {
    "[n, 3, h, w]": lambda f: np.ascontiguousarray(f.transpose(0, 3, 1, 2)),
    "transposed": lambda f: np.asfortranarray(f),
    "every second": lambda f: np.repeat(f, 2, axis=0)[::2],
    "backwards": lambda f: f[::-1].copy()[::-1],
    "read-only": lambda f: np.frombuffer(f.tobytes(), np.uint8).reshape(f.shape),
    "torch": tensors,
    "torch, permuted": lambda f: tensors(f).permute(0, 3, 1, 2),
    "torch, [n, 3, h, w]": lambda f: tensors(f).permute(0, 3, 1, 2).contiguous(),
    "a list": list,
    "a list of [3, h, w]": lambda f: [np.ascontiguousarray(one.transpose(2, 0, 1)) for one in f],
    "a list of stacks": lambda f: [f[:1], f[1:]],
    "a tuple of tensors": lambda f: tuple(tensors(f)),
    "a list of PIL images": images,
    "opaque": lambda f: np.concatenate([f, np.full((*f.shape[:3], 1), 255, np.uint8)], axis=3),
}


@pytest.mark.parametrize("form", CLIPS)
def test_a_clip_in_every_form_is_the_same(model, frames, form):
    clip, plain = CLIPS[form](frames), model.encode(frames)
    assert same(model.encode(frames=clip), plain) and not plain.is_image
    assert all(same(r, plain) for r in model.encode([clip, {"frames": clip}]))


@pytest.mark.parametrize("form", ["[h, w, 3]", "[3, h, w]", "[1, h, w, 3]", "a list of one"])
def test_an_image_in_every_form(model, frames, form):
    one = frames[0]
    made = {"[h, w, 3]": one, "[3, h, w]": one.transpose(2, 0, 1), "[1, h, w, 3]": {"image": one[None]},
            "a list of one": {"image": images(frames)[0]}}[form]
    assert same(model.encode(made), model.encode({"image": one})) and model.encode(made).is_image


IMAGES = {
    "path": str, "Path": lambda path: path, "bytes": lambda path: path.read_bytes(), "file": lambda path: open(path, "rb"),
    "bytearray": lambda path: bytearray(path.read_bytes()), "buffer": lambda path: memoryview(path.read_bytes()),
}
BUFFERS = {
    "4-D": lambda f: memoryview(f), "4-D, cast": lambda f: memoryview(f.tobytes()).cast("B", f.shape),
    "a list of 3-D": lambda f: [memoryview(one) for one in f],
}


@pytest.mark.parametrize("form", IMAGES)
def test_an_image_in_a_dict_may_be_a_file(model, frames, tmp_path, form):
    path = tmp_path / "image.ppm"
    path.write_bytes(b"P6\n90 70\n255\n" + frames[0].tobytes())
    plain = model.encode(path)
    for wrap in (lambda s: [model.encode(s)], lambda s: model.encode([s]), lambda s: model.encode(iter([s]))):
        assert [same(r, plain) for r in wrap({"image": IMAGES[form](path), "key": "k"})] == [True]
    results = model.encode([frames, {"image": IMAGES[form](path)}, frames])
    assert [r.is_image for r in results] == [False, True, False]
    assert same_pixels(model.preprocess({"image": IMAGES[form](path)}), model.preprocess(path))
    if "ath" not in form:
        assert added(model, tmp_path / "cache", [{"image": IMAGES[form](path), "key": "k"}])["done"] == 1


@pytest.mark.parametrize("form", BUFFERS)
def test_a_buffer_of_several_dimensions_is_frames(model, frames, tmp_path, form):
    made, plain = BUFFERS[form](frames), model.encode(frames)
    assert same(model.encode(frames=made), plain) and same(model.encode({"frames": made}), plain)
    assert all(same(r, plain) for r in model.encode([made, {"frames": made}, frames]))
    assert all(same(r, plain) for r in model.encode(iter([made, {"frames": made}])))
    assert same_pixels(model.preprocess({"frames": made}), model.preprocess(frames))
    assert added(model, tmp_path / "cache", [{"frames": made, "key": "k"}])["done"] == 1


def test_frames_in_every_form_need_no_decoder(model, frames, monkeypatch):
    from qwenvit import _decoder

    def start():
        raise AssertionError("a decoder was started")

    monkeypatch.setattr(_decoder, "start", start)
    forms = [frames, {"frames": frames}, {"image": frames[0]}, memoryview(frames), list(frames)]
    assert len(list(model.encode(forms))) == len(forms) and all(len(model.encode({"frames": f})) for f in forms[::3])


def same_pixels(a, b):
    return a.is_image == b.is_image and all(map(np.array_equal, a, b))


def test_a_flat_list_is_many_images_and_a_list_in_it_a_clip(model, frames):
    pictures = images(frames)
    many = list(model.encode([*pictures, pictures]))
    assert [r.is_image for r in many] == [True] * len(frames) + [False]
    assert same(many[-1], model.encode(frames)) and same(many[0], model.encode(frames[0]))
    assert [r.is_image for r in model.encode(list(frames))] == [True] * len(frames)


def test_gray_and_transparent_arrays_are_what_pil_images_are(model):
    image = pytest.importorskip("PIL.Image")
    gray = RGBA[:, :, 0].copy()
    assert same(model.encode(RGBA), model.encode(image.fromarray(RGBA)))
    assert same(model.encode(RGBA.transpose(2, 0, 1)), model.encode(RGBA))
    for made in (gray, gray[..., None], gray[None], np.stack([gray] * 3, axis=2)):
        assert same(model.encode(made), model.encode(image.fromarray(gray)))
    clip = np.stack([gray, gray])
    assert same(model.encode(frames=list(clip)), model.encode(clip[..., None]))


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_a_path_bytes_and_an_object_have_the_same_pixels(model, tmp_path):
    """Transparency is dropped, EXIF turns the image, and CMYK and gray of 16 bits are converted as
    Pillow does."""
    image = pytest.importorskip("PIL.Image")
    exif = image.Exif()
    exif[274] = 6
    value, alpha = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    table = np.stack([value, value.T, value, alpha], axis=2)
    rgba = image.fromarray(table)
    files = {
        "alpha.png": saved(rgba, "PNG"), "turned.png": saved(rgba, "PNG", exif=exif),
        "turned.jpg": saved(rgba.convert("RGB"), "JPEG", exif=exif), "cmyk.jpg": saved(rgba.convert("CMYK"), "JPEG"),
        "wide.png": saved(image.fromarray(value.astype(np.uint16) * 257), "PNG"),
    }
    made = {}
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        made[name] = model.preprocess(path)
        for source in (data, image.open(path), image.open(io.BytesIO(data))):
            assert (model.preprocess(source).pixel_values == made[name].pixel_values).all(), name
        assert bool(made[name].remark) == (name == "wide.png") and not made[name].damage
    assert "levels above 255 are white" in made["wide.png"].remark == model.encode(tmp_path / "wide.png").remark
    added(model, tmp_path / "cache", [tmp_path / "wide.png", tmp_path / "alpha.png"])
    assert [entry.remark for entry in qwenvit.Cache(tmp_path / "cache").values()].count(made["wide.png"].remark) == 1
    for source in (table, table[..., :3]):
        assert (model.preprocess(source).pixel_values == made["alpha.png"].pixel_values).all()


def test_damage_of_an_image_is_told_everywhere(model, tmp_path):
    image = pytest.importorskip("PIL.Image")
    data = saved(image.effect_noise((256, 256), 90), "JPEG")
    path = tmp_path / "cut.jpg"
    path.write_bytes(data[: len(data) // 2])
    added(model, tmp_path / "cache", [path])
    entry = qwenvit.Cache(tmp_path / "cache")[str(path)]
    results = [model.encode(path), model.encode(path.read_bytes()), model.preprocess(path), entry]
    assert [r.damaged_frames for r in results] == [1] * 4 and entry.record["damaged_frames"] == 1
    assert all("image is damaged" in r.damage for r in results)
    whole = model.encode(data)
    assert (whole.damaged_frames, whole.damage) == (0, "")


def test_the_first_frame_of_an_animation(model, tmp_path):
    image = pytest.importorskip("PIL.Image")
    frames = [image.effect_noise((64, 64), 90).convert("RGB") for _ in range(3)]
    for kind in ("GIF", "PNG"):
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:])
        assert not model.encode(data).is_image
        first = model.encode(data, first_frame=True)
        assert first.is_image and same(first, model.encode(image.open(io.BytesIO(data))))
    refused(lambda: model.encode(data, first_frame=1), "first_frame is 1; it must be true or false")


@pytest.mark.parametrize(
    "frames, words",
    [
        (np.zeros((2, 64, 64, 3), np.float32), r'float32; it must be.*\(frames \* 255\).round\(\).astype\("uint8"\)'),
        (np.zeros((2, 64, 64, 3), np.int16), "int16; it must be uint8, from 0 to 255"),
        ([np.zeros((64, 64, 3), np.uint8), np.zeros((64, 60, 3), np.uint8)], "frame 1 is 64 high and 60 wide"),
        ([np.zeros((64, 64, 3), np.uint8), 3], "frame 1 is of type int; it must be an array"),
        ([], "the list is empty"),
        (np.zeros((2, 64, 64, 5), np.uint8), r"the array is \[2, 64, 64, 5\]"),
        (3, "an? int"),
    ],
)
def test_frames_that_are_none(model, frames, words):
    refused(lambda: model.encode(frames=frames), words, "QV_EINVAL")


def test_torch_is_told_its_own_line(model):
    torch = pytest.importorskip("torch")
    refused(lambda: model.encode(torch.zeros(2, 64, 64, 3)), r"\(frames \* 255\).round\(\).to\(torch.uint8\)")
    model.encode((torch.rand(2, 64, 64, 3) * 255).round().to(torch.uint8))


def test_an_input_that_wants_a_gradient_is_refused_in_one_way(model, monkeypatch):
    fake_torch.install(monkeypatch, "5.23.0")
    frames = fake_torch.Tensor(np.zeros((2, 64, 64, 3), np.float32), requires_grad=True)
    rows = fake_torch.Tensor(np.zeros((16, model.info["row_dim"]), np.float32), requires_grad=True)
    calls = [(model.encode, frames), (model.preprocess, frames), (lambda x: model.encode(frames=[x]), frames),
             (lambda x: model.forward(x, [[1, 4, 4]]), rows)]
    for call, x in calls:
        refused(lambda: call(x), "requires a gradient, but this tower computes none; call .detach", "QV_EINVAL")


def test_torchs_own_tensors_are_held_to_it_too(model):
    torch = pytest.importorskip("torch")
    rows = torch.zeros(16, model.info["row_dim"], requires_grad=True)
    refused(lambda: model.forward(rows, [[1, 4, 4]]), "requires a gradient")
    assert len(model.forward(rows.detach(), [[1, 4, 4]])[0]) == 4


# ---- seconds ---------------------------------------------------------------------------------------


def test_frames_have_seconds_if_somebody_says_them(model, frames):
    by_rate = model.encode(frames, fps=2)
    assert by_rate.timestamps.tolist() == [0, 0.5, 1, 1.5]
    assert (by_rate.sampled_fps, by_rate.second_per_grid_ts) == (2, 1)
    assert "<0.2 seconds>" in qwenvit.prompt(by_rate) and "<1.2 seconds>" in qwenvit.prompt(by_rate)
    own = {"frames": frames, "timestamps": np.array([3, 4, 5, 7.5])}
    odd, rated, bare = model.encode([own, frames, {"image": frames[0]}], fps=4)
    assert odd.timestamps.tolist() == [3, 4, 5, 7.5] and odd.sampled_fps == 3 / 4.5
    assert rated.sampled_fps == 4 and (bare.timestamps, bare.sampled_fps) == (None, None)
    assert model.encode(frames, timestamps=[1, 1, 1, 1]).sampled_fps is None
    assert model.encode(frames).timestamps is None


@pytest.mark.parametrize(
    "options, words",
    [
        ({"timestamps": [0, 1]}, "timestamps: 2 values for 4 frames"),
        ({"timestamps": [0, 1, 2, float("nan")]}, "must be finite numbers"),
        ({"timestamps": "0123"}, "must be finite numbers"),
        ({"timestamps": [0, 2, 1, 3]}, "timestamps: 1 at index 2; they must be seconds that never decrease"),
        ({"timestamps": [0, 1, 2, 3], "fps": 1}, "cannot be used together"),
        ({"fps": -1}, "fps is -1"),
        ({"fps": float("nan")}, "fps is nan"),
        ({"fps": "2"}, "fps is '2'; it must be a number above 0"),
    ],
)
def test_seconds_that_are_none(model, frames, options, words):
    refused(lambda: model.encode(frames, **options), words)


def test_seconds_of_others(model, frames, clip):
    for source, options in ((str(clip), {"timestamps": [0]}), ({"path": clip, "timestamps": [0]}, {})):
        refused(lambda: model.encode(source, **options), "timestamps is for frames only")
    refused(lambda: model.encode([frames], timestamps=[0, 1, 2, 3]), "put it into the clip's dict")


# ---- files -----------------------------------------------------------------------------------------


def test_a_chats_image_is_no_clip(model, tmp_path):
    data = plain_clip()
    clip, inside = tmp_path / "clip.y4m", tmp_path / "inside"
    clip.write_bytes(data)
    inside.write_bytes(bytes(100) + data)
    url = "data:video/mp4;base64," + base64.b64encode(data).decode()
    for kind, given, more in (("image_url", {"url": url}, {}), ("image_url", clip, {}), ("image", clip, {}), ("input_image", url, {}),
                              ("image", data, {}), ("image", io.BytesIO(data), {}), ("image", str(inside), {"offset": 100})):
        wrong = refused(lambda: model.encode({"type": kind, kind: given, **more}), "not an image of a known format", "QV_EFORMAT")
        assert "source 0: " in str(wrong) and "for a clip, use the type video_url" in str(wrong)
    with pytest.raises(qwenvit.Error, match="cannot be opened"):
        model.encode({"type": "image", "image": str(tmp_path / "none")})
    assert len(model.encode({"type": "video_url", "video_url": {"url": url}}).timestamps) > 1


def test_files_that_are_open(model, clip):
    plain = model.encode(clip)
    with open(clip, "rb") as f:
        assert same(model.encode(f), plain)
    data = clip.read_bytes()
    for source in (io.BytesIO(data), {"bytes": io.BytesIO(data)}, memoryview(data), bytearray(data)):
        assert same(model.encode(source), plain)
    many = list(model.encode([io.BytesIO(data), str(clip), io.BytesIO(data)]))
    assert all(same(r, plain) for r in many) and [r.key for r in many] == ["0", str(clip), "2"]


class Broken:
    def read(self):
        raise RuntimeError("the network is gone")


@pytest.mark.parametrize(
    "file, words, status",
    [(io.StringIO("text"), 'read.. returned a str; open the file with "rb"', "QV_EINVAL"),
     (io.BytesIO(b""), "the bytes are empty", "QV_EINVAL"), (Broken(), "the network is gone", "QV_EIO")],
)
def test_files_that_cannot_be_read(model, file, words, status):
    refused(lambda: model.encode(file), words, status)


def test_urls_of_files(model, clip, tmp_path):
    odd = tmp_path / "a b%20é#?.gif"
    odd.write_bytes(clip.read_bytes())
    plain = model.encode(odd)
    for url in (odd.as_uri(), odd.as_uri().replace("file://", "file://localhost"), f"file://{clip}"):
        assert same(model.encode(url), plain) and model.encode({"path": url}).key == url
    for url in ("file://elsewhere/a.mp4", "file://", "file:///", "file:///a%00b"):
        refused(lambda: model.encode(url), "file:///folder/clip.mp4")
    assert added(model, tmp_path / "cache", [odd.as_uri()])["done"] == 1
    assert list(qwenvit.Cache(tmp_path / "cache")) == [str(odd)]


# ---- pixel_values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_preprocess_gives_what_transformers_processor_gives(family):
    """pixel_values have transformers' bits."""
    folder = os.path.join(GOLDEN, family)
    expected = read_safetensors(os.path.join(folder, "expected.safetensors"))[0]
    frames = expected["frames"]
    with qwenvit.load(folder, device="cpu", dtype="f32", threads=1) as model:
        pixels, grid = model.preprocess(frames, min_pixels=1, max_pixels=frames.size)
        assert (grid[0] == expected["grid_thw"][0]).all() and pixels.dtype == np.float32
        assert (pixels == expected["pixel_values"][: len(pixels)]).all()


def test_preprocess_is_what_encode_does(model, clip, frames):
    sources = [(str(clip), {"fps": 5}), (frames[:3], {"fps": 1}), (clip.read_bytes(), {"end": 0.5}), (frames[0], {})]
    for source, options in sources:
        made, tokens = model.preprocess(source, **options), model.encode(source, **options)
        forward = model.forward(*made)
        assert (made.grid_thw == tokens.grid_thw).all() and np.allclose(forward.tokens, tokens.tokens, atol=1e-4)
        assert (made.key, made.is_image, made.sampled_fps) == (tokens.key, tokens.is_image, tokens.sampled_fps)
        assert made.second_per_grid_ts == tokens.second_per_grid_ts and made.damaged_frames == 0
        assert np.array_equal(made.timestamps, tokens.timestamps)
    assert "Pixels [" in repr(made)
    refused(lambda: model.preprocess("none.mp4"), "none.mp4")
    refused(lambda: model.preprocess([frames]), "one source")


# ---- devices ---------------------------------------------------------------------------------------


def torchs(kind, index=None):
    return types.SimpleNamespace(type=kind, index=index)


@pytest.mark.parametrize("given", [
    *({"device": device} for device in ("cpu", "cpu:0", torchs("cpu"))), {"backend": "cpu:0"}, {"backend": "cpu"},
    *({"backend": "cpu", "device": device} for device in ("cpu", "cpu:0", torchs("cpu"), 0, None, np.int64(0))),
], ids=str)
def test_devices_by_name(golden, given):
    with qwenvit.load(golden, threads=1, **given) as model:
        assert model.info["backend"] == "cpu"


@pytest.mark.parametrize(
    "device, place",
    [("cuda:1", ("cuda", 1)), ("cuda", ("cuda", 0)), (torchs("cuda", 3), ("cuda", 3)), ("mps", ("metal", 0)),
     (2, ("auto", 2)), (torchs("mps", 0), ("metal", 0))],
)
def test_what_a_name_means(device, place):
    from qwenvit._model import _place

    assert _place("auto", device) == place


@pytest.mark.parametrize(
    "backend, device, words",
    [
        ("cpu", "cuda:1", "backend is 'cpu' and device 'cuda:1': give only one, or make them agree"),
        ("cuda", torchs("cpu"), "give only one, or make them agree"),
        ("auto", "gpu", "device is 'gpu'; it must be an index"),
        ("auto", "auto", "must be an index"),
        ("auto", "cuda:", "must be an index"),
        ("auto", torchs("xpu"), "must be an index"),
        ("auto", -1, "device is -1; it must be an integer from 0"),
        ("auto", 1.5, "device is 1.5"),
        ("auto", True, "device is True"),
        *((backend, device, "device 7: the cpu backend has device 0 only")
          for backend, device in (("cpu", "cpu:7"), ("auto", "cpu:7"), ("cpu:7", 0), ("cpu", 7))),
        ("auto", 999, "no backend has a device 999: .*cpu: device 999"),
    ],
)
def test_devices_that_are_none(golden, backend, device, words):
    refused(lambda: qwenvit.load(golden, backend, device=device), words)


def test_torchs_current_device_is_meant_by_cuda_alone(monkeypatch):
    from qwenvit._model import _place

    cuda = types.SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 5)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert _place("auto", "cuda") == ("cuda", 5) and _place("auto", "cuda:1") == ("cuda", 1)
    assert _place("cuda", 0) == ("cuda", 0)


# ---- frames in files -------------------------------------------------------------------------------


def jpegs(n=6, height=96, width=128):
    rows = np.random.default_rng(5).integers(0, 256, (n, height // 16, width // 16, 3), dtype=np.uint8)
    return [saved(one, "JPEG") for one in images(rows.repeat(16, 1).repeat(16, 2))]


def data_url(files, kind="video/jpeg"):
    return f"data:{kind};base64," + ",".join(base64.b64encode(one).decode() for one in files)


def test_frames_in_files_are_a_clip(model, tmp_path):
    image = pytest.importorskip("PIL.Image")
    files = jpegs()
    paths = [tmp_path / f"{i}.jpg" for i in range(len(files))]
    for path, data in zip(paths, files):
        path.write_bytes(data)
    plain = model.encode(frames=[image.open(io.BytesIO(one)) for one in files], fps=1)
    assert plain.timestamps.tolist() == [0, 1, 2, 3, 4, 5] and not plain.is_image
    url = data_url(files)
    urls = [data_url([one], "image/jpeg") for one in files]
    for source in (url, {"path": url}, {"type": "video_url", "video_url": {"url": url}}, url.replace("video/jpeg", "VIDEO/jpeg;a=b"),
                   {"frames": files}, {"frames": paths}, {"frames": list(map(str, paths))}, {"frames": urls},
                   {"type": "video", "video": urls}, {"frames": [io.BytesIO(files[0]), *paths[1:]]}):
        found = model.encode(source)
        assert same(found, plain) and found.timestamps.tolist() == plain.timestamps.tolist(), source
    assert model.encode({"path": url, "fps": 2}).timestamps[-1] == model.encode(url, fps=2).timestamps[-1] == 2.5
    one = model.encode(data_url(files[:1]))
    assert not one.is_image and len(one.timestamps) == 1
    assert (model.preprocess(url)[0] == model.preprocess(frames=[image.open(io.BytesIO(f)) for f in files])[0]).all()


def test_frames_in_files_that_are_refused(model, tmp_path):
    files = jpegs()
    refused(lambda: model.encode(data_url([*files, *jpegs(1, 64, 96)])), "frame 6 is 64 high and 96 wide, but the first is 96 and 128")
    refused(lambda: model.encode(data_url([*files, b"nonsense"])), "frame 6: not an image of a known format", "QV_EFORMAT")
    refused(lambda: model.encode({"frames": [files[0], plain_clip()]}), "frame 1: not an image of a known format", "QV_EFORMAT")
    refused(lambda: model.encode({"frames": [tmp_path / "none.jpg"]}), "frame 0: ", "QV_EIO")
    refused(lambda: model.encode(data_url(files) + ","), "frame 6: not an image", "QV_EFORMAT")
    refused(lambda: model.encode(data_url(files) + ",#"), "not valid base64")
    refused(lambda: model.encode({"type": "image_url", "image_url": {"url": data_url(files)}}), "are not an image", "QV_EFORMAT")
    refused(lambda: model.encode({"path": data_url(files), "max_frames": 4, "start": 1}), "frames accept only the options")
    refused(lambda: model.encode(data_url(files), decode_memory=6 * 96 * 128 * 3 - 1), "need more than 221183 bytes")


def test_places_in_the_clip_that_frames_are_of(model):
    about = {"fps": 30, "total_num_frames": 380}
    for n in (8, 7):
        places = [i * 54 for i in range(n)]
        found = model.encode({"frames": jpegs(n), "frames_indices": places, **about})
        assert found.timestamps.tolist() == [place / 30 for place in places]
        assert found.second_per_grid_ts == 2 / (n / 380 * 30) and found.sampled_fps == n / 380 * 30
    assert model.encode({"path": data_url(jpegs(2)), "frames_indices": [0, 9], **about}).timestamps.tolist() == [0, 0.3]
    for wrong, words in (({"frames_indices": [0, 380]}, "must be less than total_num_frames, 380"), ({}, "need the clip's fps"),
                         ({"frames_indices": [0, 1], "timestamps": [0, 1]}, "exclude timestamps"),
                         ({"frames_indices": [0]}, "1 values for 2 frames"), ({"frames_indices": [5, 1]}, "never decrease")):
        refused(lambda: model.encode({"frames": jpegs(2), **about, **wrong}), words)
    refused(lambda: model.encode({"bytes": plain_clip(), "frames_indices": [0]}), "frames_indices is for frames only")


def test_base64_may_be_in_lines(model):
    [data] = jpegs(1)
    plain = model.encode(data)
    lines = base64.encodebytes(data).decode()
    for url in ("data:image/jpeg;charset=utf-8;base64," + base64.b64encode(data).decode(), "data:image/jpeg;base64," + lines,
                "data:image/jpeg;base64, " + lines.replace("\n", "\r\n\t"), "data:image/jpeg;base64," + lines.replace("\n", "%0A")):
        assert same(model.encode(url), plain)
    found = model.encode("data:video/jpeg;base64," + lines + "," + lines)
    assert not found.is_image and len(found.timestamps) == 2
