"""Self-check while running: drafts that are hardly ever accepted, and confidences that are wrong.

Either means that drafter and model do not fit (wrong checkpoint, wrong quantisation, a broken op): the text
stays right, since verification is exact, and only speed tells.  So each alarm is a flag for metrics and a log
line when it rises and when it falls, judged over the newest steps, with a gap between the two thresholds and
a whole window between two changes, so that a log is never flooded.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tandem.errors import ConfigError
from tandem.speculation.budget import Floats, Int32
from tandem.speculation.stats import BINS, SpeculationStats, calibration_error

_LOG = logging.getLogger(__name__)
_GAP = 0.2  # an alarm falls when the value is this much, relatively, on the right side of its limit


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """When to raise an alarm.

    Args:
        window: steps that are judged together.
        least_drafts: verified drafts a window must hold to be judged.
        acceptance_floor: least share of verified drafts that should be accepted.
        calibration_limit: most expected calibration error of the rates.

    Raises:
        ConfigError: a number is out of range.
    """

    window: int = 1024
    least_drafts: int = 1000
    acceptance_floor: float = 0.1
    calibration_limit: float = 0.2

    def __post_init__(self) -> None:
        shares = (self.acceptance_floor, self.calibration_limit)
        if min(self.window, self.least_drafts) < 1 or not all(0.0 <= share <= 1.0 for share in shares):
            raise ConfigError(
                "limits of alarms cannot be used",
                where="AlarmLimits",
                why=f"they are {self}",
                fix="use whole numbers of at least 1 and shares from 0 to 1",
            )


class WindowSum:
    """The sum of the newest ``window`` rows of ``width`` numbers, float64."""

    def __init__(self, window: int, width: int) -> None:
        self._rows = np.zeros((window, width))
        self._at = 0
        self.total = np.zeros(width)

    def push(self, row: npt.NDArray[np.float64]) -> None:
        """Take a row [width]; the oldest beyond the window goes."""
        self.total += row - self._rows[self._at]
        self._rows[self._at] = row
        self._at += 1
        if self._at == len(self._rows):
            self._at = 0
            self.total = self._rows.sum(axis=0)  # so that rounding never adds up


class SpeculationMonitor:
    """Statistics of all steps, and alarms over the newest.

    Args:
        places: draft tokens of a block (B).
        limits: when to raise an alarm.

    Attributes:
        stats: totals since the start.
        low_acceptance, bad_calibration: whether the alarm is raised.
    """

    def __init__(self, places: int, limits: AlarmLimits | None = None) -> None:
        self.limits = AlarmLimits() if limits is None else limits
        self.stats = SpeculationStats(places)
        self.low_acceptance = self.bad_calibration = False
        self._window = WindowSum(self.limits.window, 2 + 3 * BINS)
        self._rest = {"low_acceptance": 0, "bad_calibration": 0}  # steps until the alarm may change again

    def add(self, drafted: Int32, tested: Int32, accepted: Int32, rates: Floats | None = None) -> None:
        """Take a step, as `SpeculationStats.add`, and judge the window."""
        before = _figures(self.stats)
        self.stats.add(drafted, tested, accepted, rates)
        self._window.push(_figures(self.stats) - before)
        self._rest = {name: max(0, rest - 1) for name, rest in self._rest.items()}
        limits = self.limits
        if self._window.total[0] >= limits.least_drafts:
            share, floor = self.acceptance, limits.acceptance_floor
            text = f"{share:.3f} of the verified drafts were accepted; the floor is {floor}"
            self._judge("low_acceptance", share < floor, share > floor * (1 + _GAP), text)
        if self._window.total[2 : 2 + BINS].sum() >= limits.least_drafts:
            error, limit = self.calibration, limits.calibration_limit
            text = f"confidences are off by {error:.3f} on average; the limit is {limit}"
            self._judge("bad_calibration", error > limit, error < limit * (1 - _GAP), text)

    @property
    def acceptance(self) -> float:
        """Accepted of the verified drafts in the window; NaN without any."""
        tested, accepted = self._window.total[:2]
        return float(accepted / tested) if tested else float("nan")

    @property
    def calibration(self) -> float:
        """Expected calibration error in the window; NaN without rates."""
        count, accepted, rate = self._window.total[2:].reshape(3, BINS)
        return calibration_error(count, accepted, rate)

    def _judge(self, name: str, bad: bool, good: bool, text: str) -> None:
        raised = getattr(self, name)
        if self._rest[name] or not (good if raised else bad):
            return
        setattr(self, name, not raised)
        self._rest[name] = self.limits.window
        if raised:
            _LOG.warning("speculation is well again (%s): %s", name, text)
        else:
            _LOG.warning("speculation alarm (%s): %s; do drafter and model belong together?", name, text)


def _figures(stats: SpeculationStats) -> npt.NDArray[np.float64]:
    """float64 [2 + 3 * BINS]: verified, accepted, and the three rows of the bins."""
    return np.concatenate([[stats.tested, stats.accepted], stats.bin_count, stats.bin_accepted, stats.bin_rate])
