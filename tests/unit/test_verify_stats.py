"""Counters of drafts and the alarms, against hand-made steps."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from tandem.errors import ConfigError
from tandem.speculation.alarms import AlarmLimits, SpeculationMonitor, WindowSum
from tandem.speculation.stats import SpeculationStats


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_counts_by_hand() -> None:
    stats = SpeculationStats(3)
    rates = np.array([[0.95, 0.55, 0.15], [0.55, 0.25, -1.0], [np.nan, np.nan, np.nan]], dtype=np.float32)
    stats.add(ints(3, 2, 3), ints(2, 2, 1), ints(2, 0, 1), rates)
    assert (stats.steps, stats.drafted, stats.tested, stats.accepted, stats.emitted) == (3, 8, 5, 3, 6)
    assert stats.tested_at.tolist() == [3, 2, 0] and stats.accepted_at.tolist() == [2, 1, 0]
    assert stats.acceptance == 3 / 5 and stats.mean_accepted == 1.0 and stats.mean_tested == 5 / 3
    # rated drafts: .95 yes | .55 yes, .55 no | .25 no -> |.95 - 1| + |1.1 - 1| + |.25 - 0| over 4
    assert stats.calibration_error == pytest.approx((0.05 + 0.10 + 0.25) / 4)
    stats.add(ints(0), ints(0), ints(0), None)
    assert stats.steps == 4 and stats.emitted == 7 and stats.calibration_error == pytest.approx(0.1)
    told = stats.to_dict()
    assert told["tested_at"] == [3, 2, 0] and told["mean_accepted"] == 0.75


def test_nothing_known_is_none() -> None:
    told = SpeculationStats(2).to_dict()
    assert told["acceptance"] is told["calibration_error"] is told["mean_tested"] is None


def test_a_calibrated_head_has_a_small_error() -> None:
    rng, stats = np.random.default_rng(0), SpeculationStats(4)
    for _ in range(200):
        steps = rng.uniform(0.3, 1.0, (64, 4))
        accepted = np.cumprod(rng.random((64, 4)) < steps, axis=1).sum(axis=1)
        stats.add(np.full(64, 4), np.full(64, 4), accepted, np.cumprod(steps, axis=1))
    assert stats.calibration_error < 0.01
    assert stats.accepted_at[0] / stats.tested_at[0] == pytest.approx(0.65, abs=0.02)


def test_window_sum() -> None:
    rng, window, rows = np.random.default_rng(1), WindowSum(5, 2), []
    for _ in range(23):
        rows.append(rng.random(2))
        window.push(rows[-1])
        assert np.allclose(window.total, np.sum(rows[-5:], axis=0))


def step(monitor: SpeculationMonitor, accepted: int, rate: float) -> None:
    """Ten requests with one draft each, of which some are accepted."""
    taken = (np.arange(10) < accepted).astype(np.int32)
    monitor.add(np.ones(10, np.int32), np.ones(10, np.int32), taken, np.full((10, 1), rate, np.float32))


LIMITS = AlarmLimits(window=20, least_drafts=100, acceptance_floor=0.5, calibration_limit=0.25)


def test_acceptance_alarm_rises_and_falls_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    monitor = SpeculationMonitor(1, LIMITS)
    for _ in range(9):
        step(monitor, 4, 0.4)
    assert not monitor.low_acceptance  # 90 drafts are too few to judge
    step(monitor, 4, 0.4)
    assert monitor.low_acceptance and len(caplog.records) == 1 and "0.400" in caplog.text
    for _ in range(60):
        step(monitor, 4, 0.4)
    for _ in range(60):
        step(monitor, 5, 0.5)  # above the floor, not above the gap of a fifth
    assert monitor.low_acceptance and len(caplog.records) == 1
    for _ in range(60):
        step(monitor, 7, 0.7)
    assert not monitor.low_acceptance and not monitor.bad_calibration and len(caplog.records) == 2
    assert monitor.stats.tested == 10 * 190


def test_alarm_that_swings_is_logged_once_a_window(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    monitor = SpeculationMonitor(1, AlarmLimits(window=20, least_drafts=10, acceptance_floor=0.5))
    for turn in range(40):
        for _ in range(5):
            step(monitor, 10 * (turn % 2), 0.5)
    assert 1 <= len([r for r in caplog.records if "low_acceptance" in r.getMessage()]) <= 200 / 20


def test_calibration_alarm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    monitor = SpeculationMonitor(1, LIMITS)
    for _ in range(30):
        step(monitor, 6, 0.9)  # off by 0.3
    assert monitor.bad_calibration and not monitor.low_acceptance
    assert monitor.calibration == pytest.approx(0.3) and len(caplog.records) == 1 and "0.300" in caplog.text
    for _ in range(60):
        step(monitor, 9, 0.9)
    assert not monitor.bad_calibration and len(caplog.records) == 2


def test_nothing_verified_is_no_alarm() -> None:
    monitor = SpeculationMonitor(2, LIMITS)
    for _ in range(50):
        monitor.add(ints(2), ints(0), ints(0), np.full((1, 2), 0.1))
    assert not monitor.low_acceptance and not monitor.bad_calibration


def test_limits_are_checked() -> None:
    for bad in ({"window": 0}, {"least_drafts": 0}, {"acceptance_floor": 1.5}, {"calibration_limit": -0.1}):
        with pytest.raises(ConfigError, match="alarms"):
            AlarmLimits(**bad)
