# SPDX-License-Identifier: MIT
"""Which times are worth a record. Needs no torch: python/tests/test_peers.py holds it to that."""

LEAST_REPEATS = 3
MOST_SPREAD = 3.0  # slowest over fastest: a first run, with what it compiles and reads, is far beyond


def quantile(values, q):
    return sorted(values)[int(q * (len(values) - 1) + 0.5)]


def summary(warmups, times):
    """median_ms, p90_ms, repeats of single runs; with `refused`, the reason in words, where they are no
    measurement: runs without a warm-up, too few of them, or too far apart."""
    refused = None
    if not warmups or len(times) < LEAST_REPEATS:
        refused = (f"{len(times)} runs after {warmups} to warm up; a record takes {LEAST_REPEATS} after 1 "
                   "(--limit-s, --repeats, --warmup)")
    elif not min(times) > 0 or max(times) > MOST_SPREAD * min(times):
        refused = (f"runs of {min(times):.3f} to {max(times):.3f} ms; a record's lie within a factor of "
                   f"{MOST_SPREAD:g}")
    times = times or [float("nan")]
    return dict(median_ms=quantile(times, 0.5), p90_ms=quantile(times, 0.9), repeats=len(times),
                **({"refused": refused} if refused else {}))
