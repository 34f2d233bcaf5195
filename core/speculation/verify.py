"""The budget of an engine's steps: history, cost curve and objective behind one call of the scheduler."""

from __future__ import annotations

import numpy as np

from tandem.speculation.budget import THROUGHPUT, Floats, Int32, Objective, choose_rows
from tandem.speculation.curve import CostCurve
from tandem.speculation.history import RateHistory


class VerifyBudget:
    """Chooses how many rows the decoding requests of a step share.

    Args:
        max_slots: request slots (R).
        drafts: draft tokens per step (B).
        curve: time of a step; None verifies every draft.
        objective: see `Objective`.
        overlapped: whether a step is scheduled before the one in front of it is delivered.  Without, rates are held
            back by one step, so that both ways of running choose the same budgets and give the same text.
    """

    def __init__(
        self,
        max_slots: int,
        drafts: int,
        curve: CostCurve | None = None,
        objective: Objective = THROUGHPUT,
        overlapped: bool = True,
    ) -> None:
        self.curve, self.objective = curve, objective
        self._sizes = max_slots, drafts
        self._drafts, self._overlapped = drafts, overlapped
        self.history = RateHistory(max_slots, drafts)
        self._held: tuple[Int32, Floats] | None = None

    def __call__(self, slots: Int32, other_rows: int) -> int:
        """Rows of the entries of ``slots`` (int32 [n]) together, n at least, beside ``other_rows`` rows of a step."""
        curve, requests = self.curve, len(slots)
        if curve is None:
            return requests * (1 + self._drafts)
        most = np.full(requests, self._drafts, dtype=np.int32)
        rates, weights = self.history.possible(slots)
        return choose_rows(
            rates, most, other_rows, lambda rows: curve.seconds(rows, requests), self.objective, weights=weights
        )

    def note(self, slots: Int32, rates: Floats) -> None:
        """Take the rates of the drafts that a delivered step left (int32 [n], distinct; float [n, B], cumulative).

        To be called for every delivered step, in order.
        """
        fresh = (slots.copy(), rates.copy())
        held = fresh if self._overlapped else self._held
        self._held = None if self._overlapped else fresh
        if held is not None:
            self.history.record(*held)

    def restart(self) -> None:
        """Forget all rates, of all requests."""
        self.history, self._held = RateHistory(*self._sizes), None

    def forget(self, slot: int) -> None:
        """A slot holds another request."""
        self.history.forget(np.array([slot], dtype=np.int32))
        if self._held is not None:
            slots, rates = self._held
            self._held = slots[slots != slot], rates[slots != slot]
