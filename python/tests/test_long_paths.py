# SPDX-License-Identifier: MIT
"""Tests errors about long paths: the reason is there, and the path's end."""
import pytest

import qwenvit
from conftest import added, refused


def path_of(folder, length):
    """Returns a path of so many bytes below the folder, with parts of 99 letters."""
    path = str(folder)
    for letter in "abcdefghijklmnopqrstuvwxyz" * 2:
        path += "/" + letter * 99
    return path[: length - 1] + "z"


def text_of(call, path):
    """Returns an error's text behind the path."""
    text = str(refused(lambda: call(path)))
    assert path[-40:] in text
    return text.rpartition(path[-40:])[2]


@pytest.mark.parametrize("length", [300, 470, 500, 1000, 4000])
def test_the_reason_stands_behind_a_path_of_any_length(model, tmp_path, length):
    for call in (model.encode, model.preprocess, qwenvit.load, qwenvit.Cache):
        reason = text_of(call, path_of(tmp_path, 120))
        assert reason.startswith(": ") and len(reason) > 20
        assert text_of(call, path_of(tmp_path, length)) == reason


def test_a_path_that_is_too_long_is_told(model, tmp_path):
    for call in (model.encode, qwenvit.Cache):
        assert "File name too long" in text_of(call, path_of(tmp_path, 4200))


def test_a_record_has_the_reason(model, tmp_path):
    path = path_of(tmp_path, 2000)
    added(model, tmp_path / "cache", [{"path": path, "key": "long"}])
    code, text = qwenvit.Cache(tmp_path / "cache").failed["long"]
    assert code == "QV_EIO" and path[-60:] in text and text.endswith("No such file or directory")
