# SPDX-License-Identifier: MIT
"""Tests qwenvit.adapters.ray without Ray: the encoder takes tables, and everything that needs Ray says so.
"""
import importlib
import sys

import numpy as np
import pytest

import qwenvit
from conftest import refused

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def module(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # importing ray fails
    monkeypatch.delitem(sys.modules, "qwenvit.adapters.ray", raising=False)
    monkeypatch.setattr(qwenvit.adapters, "ray", None, raising=False)  # to be restored
    return importlib.import_module("qwenvit.adapters.ray")


def test_the_encoder_takes_tables(module, golden, model, clip):
    encoder = module.Encoder(golden, dtype="f32", load_options={"backend": "cpu", "dtype": "f32", "threads": 2})
    table = pa.concat_tables(encoder(pa.table({"path": [str(clip), "absent"], "other": [1, 2]})))
    good, bad = table.to_pylist()
    tokens = module.matrices(good)[0]
    assert np.array_equal(tokens, model.encode(clip).tokens) and good["other"] == 1
    assert bad["status"] == "failed" and "absent" in bad["error"]


def test_what_needs_ray_says_so(module, golden, tmp_path):
    for call in (lambda: module.write_cache(None, golden, tmp_path / "cache"),
                 lambda: module.CacheDatasource(tmp_path)):
        refused(call, "needs Ray", "QV_EUNSUPPORTED")
    assert not list(tmp_path.iterdir())
