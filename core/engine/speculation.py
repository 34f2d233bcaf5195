"""What the host keeps of speculation: drafts by slot, their rates, counts, and the choice of rows to verify."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tandem.engine.plan import Bools, Int32
from tandem.speculation.alarms import SpeculationMonitor
from tandem.speculation.stats import SpeculationStats
from tandem.speculation.verify import VerifyBudget

Float32 = npt.NDArray[np.float32]


class SpeculationBook:
    """Keeps the host's side of drafts.

    Args:
        max_slots: request slots.
        drafts: most drafts of a request (B), at least 1.
        budget: chooses how many rows verify drafts.

    Attributes:
        tokens: int32 [R, B], the drafts that the device holds, -1 for none.
        rates: f32 [R, B], their cumulative confidence, -1 for none.
        monitor: counts, and alarms over the newest of them.
    """

    def __init__(self, max_slots: int, drafts: int, budget: VerifyBudget) -> None:
        self.count, self.budget = drafts, budget
        self.tokens: Int32 = np.full((max_slots, drafts), -1, dtype=np.int32)
        self.rates: Float32 = np.full((max_slots, drafts), -1.0, dtype=np.float32)
        self.monitor = SpeculationMonitor(drafts)

    @property
    def stats(self) -> SpeculationStats:
        """Totals since the engine was made."""
        return self.monitor.stats

    def verified(self, slots: Int32, tested: Int32, accepted: Int32, ruled: Bools) -> None:
        """Count the drafts that a step verified, before `take`.

        Args:
            slots: int32 [n], distinct.
            tested, accepted: int32 [n], drafts in the rows of each, and those taken.
            ruled: bool [n], whose draws follow rules, such as a grammar's, that the confidence head knows nothing of;
                their rates are not judged.
        """
        if len(slots):
            drafted = (self.tokens[slots] >= 0).sum(axis=1, dtype=np.int32)
            self.monitor.add(drafted, tested, accepted, np.where(ruled[:, None], -1.0, self.rates[slots]))

    def take(self, slots: Int32, drafts: Int32, rates: Float32) -> None:
        """Note the drafts that a step left: int32 and f32 [n, B] of slots int32 [n], distinct."""
        self.tokens[slots], self.rates[slots] = drafts, rates
        self.budget.note(slots, rates)

    def forget(self, slot: int) -> None:
        """A slot holds another request."""
        self.tokens[slot], self.rates[slot] = -1, -1.0
        self.budget.forget(slot)

    def restore(self, slot: int, drafts: Int32, rates: Float32) -> None:
        """A slot holds a request that comes with its drafts, int32 and f32 [B]."""
        self.tokens[slot], self.rates[slot] = drafts, rates
