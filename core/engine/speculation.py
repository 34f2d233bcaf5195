"""What the host keeps of speculation: drafts by slot, rates of the last steps, and counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tandem.engine.plan import Int32

Float32 = npt.NDArray[np.float32]


@dataclass(slots=True)
class SpeculationStats:
    """Totals since the engine was made.

    Args:
        steps: decode entries that verified at least one draft.
        tested, accepted: drafts verified, and taken; by_place the same by place in the block, int64 [B].
    """

    steps: int = 0
    tested: int = 0
    accepted: int = 0
    tested_by_place: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    accepted_by_place: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


class SpeculationBook:
    """Keeps the host's side of drafts.

    Args:
        max_slots: request slots.
        drafts: most drafts of a request (B), at least 1.

    Attributes:
        tokens: int32 [R, B], the drafts that the device holds, -1 for none.
        rates: f32 [R, B], their cumulative confidence; older: those of the step before.
    """

    def __init__(self, max_slots: int, drafts: int) -> None:
        self.count = drafts
        self.tokens: Int32 = np.full((max_slots, drafts), -1, dtype=np.int32)
        self.rates: Float32 = np.full((max_slots, drafts), -1.0, dtype=np.float32)
        self.older: Float32 = self.rates.copy()
        zeros = np.zeros(drafts, dtype=np.int64)
        self.stats = SpeculationStats(tested_by_place=zeros.copy(), accepted_by_place=zeros.copy())

    def take(self, slots: Int32, drafts: Int32, rates: Float32, tested: Int32, accepted: Int32) -> None:
        """Note what a step gave to the requests of ``slots`` int32 [n], distinct.

        Args:
            drafts, rates: int32 and f32 [n, B], the drafts it left.
            tested, accepted: int32 [n], drafts in its rows, and those taken.
        """
        place = np.arange(self.count)
        # A draft behind the first that failed was not tried.
        tried = place < np.minimum(tested, accepted + 1)[:, None]
        stats = self.stats
        stats.steps += int(np.count_nonzero(tested > 0))
        stats.tested_by_place += tried.sum(0)
        stats.accepted_by_place += (place < accepted[:, None]).sum(0)
        stats.tested, stats.accepted = int(stats.tested_by_place.sum()), int(stats.accepted_by_place.sum())
        self.older[slots], self.rates[slots] = self.rates[slots], rates
        self.tokens[slots] = drafts

    def forget(self, slot: int) -> None:
        """A slot holds another request, or one that starts again."""
        self.tokens[slot], self.rates[slot], self.older[slot] = -1, -1.0, -1.0
