"""The long run: what it counts as a failure, and ten minutes of it."""

from __future__ import annotations

import pytest

from tools.soak import failures, growth, run

FINE = {
    "wrong": [],
    "memory_growth": 0.01,
    "finished": 9,
    "cancelled": 1,
    "refused": 1,
    "preemptions": 1,
}


def test_growth_compares_the_last_quarter_with_the_first_after_the_warm_up() -> None:
    """100 seconds, 25 of them warm-up: of 15 samples after it the first 3 have 200 MiB, the last 3 have 206."""
    samples = [(5.0 * n, 100.0) for n in range(5)]
    samples += [(25.0 + 5 * n, 200.0 if n < 3 else 203.0 if n < 12 else 206.0) for n in range(15)]
    assert growth(samples, 100.0) == pytest.approx(0.03)
    assert growth(samples[:12], 100.0) == 0.0  # seven samples say nothing


def test_what_a_failure_is() -> None:
    assert failures(FINE) == []
    assert failures(FINE | {"memory_growth": 0.021}) == ["memory grew by 2.1% after the warm-up"]
    missed = "preemptions: none, so nothing is shown of them; run longer"
    assert failures(FINE | {"wrong": ["x"], "preemptions": 0}) == ["x", missed]


@pytest.mark.slow
def test_ten_minutes() -> None:
    assert failures(run(minutes=10, jobs=64, arrivals=60, seed=0)) == []
