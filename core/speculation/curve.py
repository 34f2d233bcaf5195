"""Seconds of a step by its number of rows: measured once, corrected while the engine runs.

What was measured at start has short contexts, an empty machine and no draws.  While running, a step's distance
from the measured curve is kept per row, as a median within each range of rows and then over the ranges, so that
neither a hiccup nor one popular size decides; it is added for every row.  Drawing and drafting take the median
of the last steps with the same number of requests.
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from tandem.errors import ConfigError

Point = tuple[int, float]  # (rows, seconds)

_RANGE_SAMPLES = 64  # newest steps kept of a range of rows
_RANGE_LEAST = 10  # steps before a range counts
_STALE = 5_000  # steps after which a range without new ones no longer counts
_DRAW_SAMPLES = 9
_DRAW_LEAST = 5


class RunningMedian:
    """The median of the newest ``window`` numbers; `add` costs a search and a shift in a short list."""

    def __init__(self, window: int) -> None:
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []
        self._window = window

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        """Take a number; the oldest beyond the window goes."""
        if len(self._newest) == self._window:
            del self._sorted[bisect.bisect_left(self._sorted, self._newest.popleft())]
        self._newest.append(value)
        bisect.insort(self._sorted, value)

    @property
    def value(self) -> float:
        """The median (the mean of the middle two); 0 without numbers."""
        count = len(self._sorted)
        if not count:
            return 0.0
        return 0.5 * (self._sorted[(count - 1) // 2] + self._sorted[count // 2])


class CostCurve:
    """Time of a step as a function of rows and requests.

    Args:
        points: (rows, seconds) as `measure` returns them, rows rising.  Times that fall are levelled (the
            nearest curve that never falls, by least squares).

    Raises:
        ConfigError: there is no point, rows do not rise from at least 1, or a time is not above 0.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        rows = [int(row) for row, _ in points]
        seconds = [float(second) for _, second in points]
        usable = bool(points) and rows[0] >= 1 and all(a < b for a, b in zip(rows, rows[1:], strict=False))
        if not (usable and all(0.0 < s < float("inf") for s in seconds)):
            raise ConfigError(
                "a cost curve cannot be used",
                where="CostCurve",
                why=f"rows {rows[:8]}, seconds {seconds[:8]}",
                fix="measure it again: rows rise from at least 1, and every time is above 0",
            )
        self.points: tuple[Point, ...] = tuple(zip(rows, _never_falling(seconds), strict=True))
        self._rows = np.array(rows, dtype=np.float64)
        self._seconds = np.array([s for _, s in self.points])
        half = int(np.searchsorted(self._rows, self._rows[-1] / 2))
        run = self._rows[-1] - self._rows[half]
        self._beyond = (self._seconds[-1] - self._seconds[half]) / run if run else 0.0
        self._ranges: dict[int, RunningMedian] = {}
        self._last_step: dict[int, int] = {}
        self._draws: dict[int, RunningMedian] = {}
        self._any_draw = RunningMedian(_DRAW_SAMPLES)
        self._steps = 0
        self._slope = 0.0

    @property
    def slope(self) -> float:
        """Seconds that running steps take per row beyond the measured curve, at least 0."""
        return self._slope

    def draw_seconds(self, requests: int) -> float:
        """Seconds of drawing and drafting for so many requests; by all steps where these had few; 0 before any."""
        own = self._draws.get(requests)
        if own is not None and len(own) >= _DRAW_LEAST:
            return own.value
        return self._any_draw.value

    def seconds(self, rows: npt.ArrayLike, requests: int) -> npt.NDArray[np.float64]:
        """float64, the shape of ``rows``: time of steps with these rows, and ``requests`` that draw.

        Between points linear, before the first as the first, after the last as steep as the curve's upper half.
        """
        wanted = np.asarray(rows, dtype=np.float64)
        total: npt.NDArray[np.float64] = (
            self._measured(wanted) + self._slope * wanted + self.draw_seconds(requests)
        )
        return total

    def _measured(self, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        beyond = np.maximum(0.0, rows - self._rows[-1]) * self._beyond
        found: npt.NDArray[np.float64] = np.interp(rows, self._rows, self._seconds) + beyond
        return found

    def observe(self, rows: int, requests: int, forward_s: float, draw_s: float) -> None:
        """Take a finished step.

        Args:
            rows: of the step, at least 1.
            requests: how many drew; the draw counts only where some did.
            forward_s, draw_s: seconds of its two parts.
        """
        self._steps += 1
        if requests:
            for median in (self._draws.setdefault(requests, RunningMedian(_DRAW_SAMPLES)), self._any_draw):
                median.add(draw_s)
        excess = forward_s - float(self._measured(np.array(rows, dtype=np.float64)))
        index = int(np.searchsorted(self._rows, rows))
        self._ranges.setdefault(index, RunningMedian(_RANGE_SAMPLES)).add(excess / rows)
        self._last_step[index] = self._steps
        medians = [
            median.value
            for index, median in self._ranges.items()
            if len(median) >= _RANGE_LEAST and self._steps - self._last_step[index] < _STALE
        ]
        self._slope = max(0.0, statistics.median(medians)) if medians else 0.0


def sizes(max_rows: int) -> list[int]:
    """Row counts to measure: 1, 2, 4, 8, from there four in each doubling, and ``max_rows``."""
    found = {1, 2, 4, max_rows}
    power = 8
    while power <= max_rows:
        found.update(power + power // 4 * quarter for quarter in range(4))
        power *= 2
    return sorted(size for size in found if size <= max_rows)


def measure(
    run_rows: Callable[[int], float | None], max_rows: int, repeats: int = 5, seconds: float = 3.0
) -> list[Point]:
    """Time steps of different sizes.

    Args:
        run_rows: runs a step of so many rows and returns its seconds, or None if there can be no such step.
        max_rows: most rows of a step.
        repeats: runs of a size after one that does not count; their median is taken.
        seconds: to be spent.  When they are over, sizes between the doublings that were not reached are left out, and
            runs that were to be repeated are not; but every doubling has a run, and its first one counts then.

    Returns:
        (rows, seconds), rows rising, for `sizes` or, without time, some of them.
    """
    order = _coarse_first(sizes(max_rows))
    times: dict[int, list[float]] = {}
    end = time.perf_counter() + seconds
    with tqdm(total=len(order) * (repeats + 1), desc="measuring steps", unit="step", disable=None) as bar:
        for turn in range(repeats + 1):
            for rows in order if turn == 0 else [rows for rows in order if rows in times]:
                late = time.perf_counter() > end
                if late and (turn or _fineness(rows, max_rows)):
                    continue
                found = run_rows(rows)
                bar.update()
                if found is None:
                    continue
                if turn == 1:
                    times[rows].clear()
                times.setdefault(rows, []).append(found)
    return [(rows, statistics.median(times[rows])) for rows in sorted(times)]


def _coarse_first(rows: Sequence[int]) -> list[int]:
    """Doublings and the last first, then what lies half way between doublings, then the rest."""
    return sorted(rows, key=lambda size: (_fineness(size, rows[-1]), size))


def _fineness(size: int, last: int) -> int:
    odd = size // (size & -size)
    return 0 if size == last else {1: 0, 3: 1}.get(odd, 2)


def _never_falling(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls: neighbours that fall are merged into their mean."""
    merged: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while merged and merged[-1][0] > mean:
            before, more = merged.pop()
            mean, count = (before * more + mean * count) / (more + count), more + count
        merged.append((mean, count))
    return [mean for mean, count in merged for _ in range(count)]
