"""Scheduling ahead of a device, over random schedules; see `support.pipeline`."""

from __future__ import annotations

import time

import pytest
from support.pipeline import Life


def live(seed: int) -> Life:
    life = Life(seed)
    try:
        life.run()
    except Exception as error:
        error.add_note(f"seed {seed}, after {life.steps} steps")
        raise
    return life


def test_random_schedules() -> None:
    lives = [live(seed) for seed in range(400)]
    # The lives are varied enough to mean something.
    assert sum(life.preemptions for life in lives) > 100
    assert sum(life.accepted for life in lives) > 300
    assert sum(life.failed for life in lives) > 30
    assert sum(life.prefix is not None and life.prefix.stats().hits for life in lives) > 50
    ends = [job.ended for life in lives for job in life.jobs]
    assert min(ends.count(how) for how in ("finished", "cancelled", "late stop")) > 30


@pytest.mark.slow
def test_a_hundred_thousand_random_schedules() -> None:
    started = time.perf_counter()
    for seed in range(1_000, 101_000):
        live(seed)
    print(f"100,000 schedules in {time.perf_counter() - started:.0f} s")
