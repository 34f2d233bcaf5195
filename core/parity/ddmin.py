"""The smallest subset that still does something, by delta debugging (Zeller and Hildebrandt, TSE 2002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Budget:
    """A bound on runs; `spent` counts them."""

    def __init__(self, runs: int) -> None:
        self.runs, self.spent = runs, 0

    def take(self) -> bool:
        """Use one run; False where none is left."""
        if self.spent >= self.runs:
            return False
        self.spent += 1
        return True


def minimise(items: Sequence[T], works: Callable[[list[T]], bool], budget: Budget) -> tuple[list[T], bool]:
    """Shrink ``items``, which works as a whole, to a subset of which no single item can be left out.

    Args:
        works: tries a subset; each try costs a run.
        budget: of runs.
    Returns:
        (a subset that works, whether it is proved minimal; it is not where the budget ended first).
    """
    kept, parts = list(items), 2
    while len(kept) >= 2:
        size = -(-len(kept) // parts)
        pieces = [kept[i : i + size] for i in range(0, len(kept), size)]
        others = [[item for item in kept if item not in piece] for piece in pieces]
        tries = pieces + (others if len(pieces) > 2 else [])
        for number, subset in enumerate(tries):
            if not budget.take():
                return kept, False
            if works(subset):
                kept, parts = subset, 2 if number < len(pieces) else max(len(pieces) - 1, 2)
                break
        else:
            if size == 1:
                return kept, True
            parts = min(2 * parts, len(kept))
    return kept, True
