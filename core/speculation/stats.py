"""Counters of drafts: how many were made, verified and accepted, and how true their confidences were."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.speculation.budget import Floats, Int32

BINS = 10  # of confidence, equally wide over 0..1


@dataclass(slots=True, eq=False)
class SpeculationStats:
    """Totals over steps.  `add` takes a step's arrays; nothing loops over requests.

    Args:
        places: draft tokens of a block (B).

    Attributes:
        steps: request steps: decode entries that drew, one for each request and step.
        drafted: drafts that were there to be verified.
        tested: drafts that got a row.
        accepted: drafts whose token was emitted.
        emitted: tokens that came out, drafts and final tokens.
        tested_at, accepted_at: int64 [B], by place in the block.
        bin_count, bin_accepted, bin_rate: float64 [BINS], of verified drafts by their cumulative rate: how many,
            how many of them were accepted, and the sum of their rates.
    """

    places: int
    steps: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    emitted: int = 0
    tested_at: npt.NDArray[np.int64] = field(init=False)
    accepted_at: npt.NDArray[np.int64] = field(init=False)
    bin_count: npt.NDArray[np.float64] = field(init=False)
    bin_accepted: npt.NDArray[np.float64] = field(init=False)
    bin_rate: npt.NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.tested_at, self.accepted_at = (np.zeros(self.places, dtype=np.int64) for _ in range(2))
        self.bin_count, self.bin_accepted, self.bin_rate = (np.zeros(BINS) for _ in range(3))

    def add(self, drafted: Int32, tested: Int32, accepted: Int32, rates: Floats | None = None) -> None:
        """Take a step.

        Args:
            drafted: int32 [n], drafts each entry had.
            tested: int32 [n], how many of them it verified, its first ones.
            accepted: int32 [n], how many of those were accepted.
            rates: float [n, B], cumulative, of those drafts; None or NaN and negative where unknown.

        An entry emits its accepted drafts and one more token.
        """
        self.steps += len(tested)
        self.drafted += int(drafted.sum())
        self.tested += int(tested.sum())
        self.accepted += int(accepted.sum())
        self.emitted += int(accepted.sum()) + len(tested)
        places = np.arange(self.places)[:, None]  # by place: numpy is slow at reducing short rows
        verified, taken = places < tested, places < accepted
        self.tested_at += np.count_nonzero(verified, axis=1)
        self.accepted_at += np.count_nonzero(taken, axis=1)
        if rates is None:
            return
        rates = rates.T
        known = verified & (rates >= 0)
        rate = rates[known].astype(np.float64)
        index = np.minimum((rate * BINS).astype(np.int64), BINS - 1)
        self.bin_count += np.bincount(index, minlength=BINS)
        self.bin_accepted += np.bincount(index, weights=taken[known], minlength=BINS)
        self.bin_rate += np.bincount(index, weights=rate, minlength=BINS)

    @property
    def acceptance(self) -> float:
        """Accepted drafts of those verified; NaN before the first."""
        return self.accepted / self.tested if self.tested else float("nan")

    @property
    def mean_accepted(self) -> float:
        """Accepted drafts of a request in a step; NaN before the first."""
        return self.accepted / self.steps if self.steps else float("nan")

    @property
    def mean_tested(self) -> float:
        """Verified drafts of a request in a step; NaN before the first."""
        return self.tested / self.steps if self.steps else float("nan")

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: mean distance of rate and accepted share in a bin; NaN without rates."""
        return calibration_error(self.bin_count, self.bin_accepted, self.bin_rate)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for metrics and ``--json``; what is not known yet is None."""
        shares = ("acceptance", "mean_accepted", "mean_tested", "calibration_error")
        found: dict[str, Any] = {
            name: getattr(self, name) for name in ("steps", "drafted", "tested", "accepted", "emitted")
        }
        found |= {"tested_at": self.tested_at.tolist(), "accepted_at": self.accepted_at.tolist()}
        values = {name: float(getattr(self, name)) for name in shares}
        return found | {name: None if value != value else value for name, value in values.items()}


def calibration_error(count: Floats, accepted: Floats, rate: Floats) -> float:
    """Mean over verified drafts of the distance between their bin's mean rate and its accepted share.

    Args:
        count, accepted, rate: [bins]: drafts, accepted ones, sum of rates.

    Returns:
        0..1; NaN without drafts.
    """
    total = float(count.sum())
    return float(np.abs(rate - accepted).sum()) / total if total else float("nan")
