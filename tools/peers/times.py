# SPDX-License-Identifier: MIT
"""Decides which times may be recorded. Needs no torch; python/tests/test_peers.py tests it."""

LEAST_REPEATS = 3
MOST_SPREAD = 3.0  # slowest over fastest; a first run, which compiles and reads, exceeds it by far


def quantile(values, q):
    return sorted(values)[int(q * (len(values) - 1) + 0.5)]


def summary(warmups, times):
    """Returns median_ms, p90_ms and repeats of single runs. `refused` is the reason not to
    record them: no warm-up, too few runs, or runs that differ too much."""
    refused = None
    if not warmups or len(times) < LEAST_REPEATS:
        refused = (f"{len(times)} runs after {warmups} to warm up; a record needs {LEAST_REPEATS} after 1 "
                   "(--limit-s, --repeats, --warmup)")
    elif not min(times) > 0 or max(times) > MOST_SPREAD * min(times):
        refused = (f"runs from {min(times):.3f} to {max(times):.3f} ms; a record needs runs within a factor of "
                   f"{MOST_SPREAD:g}")
    times = times or [float("nan")]
    return dict(median_ms=quantile(times, 0.5), p90_ms=quantile(times, 0.9), repeats=len(times),
                **({"refused": refused} if refused else {}))
