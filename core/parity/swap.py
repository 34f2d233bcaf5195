"""Which ops make a decision flip: the run again on B, with the outputs of some calls taken from the recording.

Taking the outputs of all calls before the decision restores it, taking none does not.  In the order of the run there is
a first call whose replacement, together with all before it, restores the decision: given the recorded inputs, that call
on B flips it.  If it alone does not restore the decision, the smallest set is searched by kinds of ops, then layers,
then calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.errors import ConfigError
from tandem.parity.ddmin import Budget, minimise
from tandem.parity.decisions import KINDS, Flip
from tandem.parity.records import Record

RUNS = 64
MEANING = (
    "this is where the decision tips: it need not be the faulty op, for what earlier ops brought counts too; "
    "parity diff says which op errs"
)
Restores = Callable[[frozenset[int]], bool]


@dataclass(frozen=True)
class Swapped:
    """What a search found.

    Args:
        flip: the decision.
        first: the call that flips it on B, all before it being the recording's; None where even all do not restore it.
        kept: the smallest set found whose replacement restores the decision.
        minimal: whether no call of it can be left out; False where the runs ended first.
        runs: replays made.
        repeats: whether the decision flips again in a second replay.
    """

    flip: Flip
    first: Record | None
    kept: tuple[Record, ...]
    minimal: bool
    runs: int
    repeats: bool = True

    def kinds(self) -> list[str]:
        """Kinds of ops of the set."""
        return sorted({record.op for record in self.kept})

    def layers(self) -> list[int]:
        """Layers of the set."""
        return sorted({record.layer for record in self.kept if record.layer is not None})

    def headline(self) -> str:
        """One line."""
        flip = self.flip
        place = f"{flip.kind} at step {flip.step}, {flip.site}, row {flip.row}"
        if not self.repeats:
            return f"{place}: it does not flip in a second replay; look for what is not repeatable on this backend"
        if self.first is None:
            return f"{place}: no set of recorded calls restores it; the cause lies outside the recording"
        layer = "" if self.first.layer is None else f" layer {self.first.layer}"
        size = "alone restores it"
        if self.kept != (self.first,):
            size = f"tips it, not alone; the smallest set found that restores it has {len(self.kept)} of the calls"
        return f"{place}: op '{self.first.op}'{layer} step {self.first.step} {size} ({self.runs} replays)"

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "headline": self.headline(),
            "meaning": MEANING,
            "decision": self.flip.to_json(),
            "first": None if self.first is None else _told(self.first),
            "kept": [_told(record) for record in self.kept],
            "kinds": self.kinds(),
            "layers": self.layers(),
            "minimal": self.minimal,
            "repeats": self.repeats,
            "runs": self.runs,
        }


def _told(record: Record) -> dict[str, Any]:
    return {
        "record": record.id,
        "op": record.op,
        "site": record.site,
        "layer": record.layer,
        "step": record.step,
    }


def search(flip: Flip, before: Sequence[Record], restores: Restores, runs: int = RUNS) -> Swapped:
    """Find the calls whose replacement restores a decision.

    Args:
        flip: the decision.
        before: the calls that reach it, itself included, in the order of the run; those with equal outputs left out.
        restores: replays with the outputs of a set of calls taken from the recording.
        runs: most replays.
    """
    budget = Budget(runs)
    if budget.take() and restores(frozenset()):
        return Swapped(flip, None, (), False, budget.spent, repeats=False)
    budget.take()
    if not restores(frozenset(record.id for record in before)):
        return Swapped(flip, None, (), False, budget.spent)
    low, high = 0, len(before)  # taking `low` calls does not restore it, taking `high` does
    while high - low > 1 and budget.take():
        middle = (low + high) // 2
        if restores(frozenset(record.id for record in before[:middle])):
            high = middle
        else:
            low = middle
    first = before[high - 1]
    if high - low > 1:
        return Swapped(flip, first, tuple(before[:high]), False, budget.spent)
    if budget.take() and restores(frozenset([first.id])):
        return Swapped(flip, first, (first,), True, budget.spent)
    kept, minimal = _smallest(list(before[:high]), restores, budget)
    return Swapped(flip, first, tuple(kept), minimal, budget.spent)


def _smallest(calls: list[Record], restores: Restores, budget: Budget) -> tuple[list[Record], bool]:
    """Drop whole kinds of ops, then layers of what is left, then calls."""
    minimal = True
    for key in (lambda record: record.op, lambda record: (record.op, record.layer), lambda record: record.id):
        groups: dict[Any, list[Record]] = {}
        for record in calls:
            groups.setdefault(key(record), []).append(record)

        def works(names: list[Any], groups: dict[Any, list[Record]] = groups) -> bool:
            return restores(frozenset(record.id for name in names for record in groups[name]))

        kept, minimal = minimise(list(groups), works, budget)
        calls = [record for name in kept for record in groups[name]]
    return sorted(calls, key=lambda record: record.id), minimal


def check_decision(text: str) -> None:
    """Refuse what names no decision; empty is fine.

    Raises:
        ConfigError: it is not KIND:STEP:ROW or KIND:STEP:ROW:LAYER.
    """
    kind, *numbers = text.split(":")
    layered = len(numbers) == 3 and numbers[2] == "None"  # as a decision outside layers is listed
    whole = all(number.isascii() and number.isdigit() for number in (numbers[:2] if layered else numbers))
    if text and not (kind in KINDS and len(numbers) in (2, 3) and whole):
        raise ConfigError(
            f"'{text}' names no decision",
            where="parity swap --decision",
            why=f"a decision is KIND:STEP:ROW or KIND:STEP:ROW:LAYER, where KIND is one of {', '.join(KINDS)}",
            fix="name one that parity diff lists, or leave the flag out",
        )


def named_flip(found: Sequence[Flip], text: str) -> Flip:
    """The first flip named KIND:STEP:ROW or KIND:STEP:ROW:LAYER.

    Raises:
        ConfigError: none by that name.
    """
    for flip in found:
        name = f"{flip.kind}:{flip.step}:{flip.row}"
        if text in (name, f"{name}:{flip.layer}"):
            return flip
    known = ", ".join(f"{flip.kind}:{flip.step}:{flip.row}:{flip.layer}" for flip in found[:8])
    raise ConfigError(
        f"decision '{text}' did not flip",
        where="parity swap --decision",
        why=f"flipped: {known}",
        fix="name one of these as KIND:STEP:ROW:LAYER",
    )
