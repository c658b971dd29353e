# SPDX-License-Identifier: MIT
"""Tests which times tools/peers accepts: a run without a warm-up is no record."""
import importlib.util
import os

import pytest

PATH = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "peers", "times.py")
spec = importlib.util.spec_from_file_location("peers_times", PATH)
times = importlib.util.module_from_spec(spec)
spec.loader.exec_module(times)


def test_warm_runs_are_a_record():
    found = times.summary(2, [431.0, 429.5, 440.0, 433.0, 600.0])
    assert found == dict(median_ms=433.0, p90_ms=600.0, repeats=5)


@pytest.mark.parametrize("warmups, runs, words", [
    (0, [68484.0], "1 runs after 0 to warm up"),
    (1, [68484.0], "1 runs after 1"),
    (0, [431.0] * 5, "5 runs after 0"),
    (3, [], "0 runs"),
    (1, [68484.0, 431.0, 430.0], "430.000 to 68484.000 ms"),
    (1, [0.0, 431.0, 430.0], "0.000 to 431.000 ms"),
])
def test_what_is_no_measurement_is_refused(warmups, runs, words):
    assert words in times.summary(warmups, runs)["refused"]
