"""Which calls a small trace holds: all decisions, then the layers and steps that say most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tandem.errors import CapacityError
from tandem.parity.margins import DECISIONS
from tandem.parity.spool import Spool, references
from tandem.parity.watch import Observed
from tandem.parity.weights import UsedWeight

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_LINE = 200  # bytes of a line of the index beside its JSON, and of a tensor's entry in a shard


def parse_size(text: str) -> int:
    """Bytes of ``64MB``, ``1.5GiB`` or a plain number.

    Raises:
        ValueError: it is none of these.
    """
    number = text.strip().rstrip("kKmMgGiIbB")
    unit = text.strip()[len(number) :].lower()
    if unit not in _UNITS or not float(number) > 0:
        raise ValueError(f"{text!r} is no size such as 64MB")
    return int(float(number) * _UNITS[unit])


class _Total:
    """Bytes of a growing set of calls, what they share counted once."""

    def __init__(self, spool: Spool, whole: bool) -> None:
        self._spool, self._whole = spool, whole
        self.names: set[str] = set()
        self.weights: set[int] = set()
        self.nbytes = 0

    def cost(self, calls: Iterable[Observed]) -> tuple[int, set[str], dict[int, UsedWeight]]:
        """Bytes that calls would add, and what these are."""
        calls = list(calls)
        names = {name for seen in calls for name in references(seen.tree)} - self.names
        weights = {id(w): w for seen in calls for w in seen.weights if id(w) not in self.weights}
        size = sum(self._spool.size(name) + _LINE for name in names)
        size += sum(weight.nbytes(self._whole) for weight in weights.values())
        return size + sum(len(str(seen.tree)) + _LINE for seen in calls), names, weights

    def add(self, calls: Iterable[Observed]) -> int:
        """Count calls; gives the total."""
        size, names, weights = self.cost(calls)
        self.names |= names
        self.weights |= set(weights)
        self.nbytes += size
        return self.nbytes


def choose(observed: Sequence[Observed], spool: Spool, budget: int) -> tuple[list[Observed], bool, dict[str, Any]]:
    """The calls to keep, whether their weights are kept whole, and what to say in the header.

    The weights stay whole where all fits; else of tables and expert stacks only the rows that were used.  Where that
    does not suffice, all decisions of all steps stay, and of the rest whole (step, layer) groups, in turn the one with
    the smallest decision margin and the one whose outputs stick out most, while they fit.

    Raises:
        CapacityError: the decisions alone do not fit.
    """
    for whole in (True, False):
        if _Total(spool, whole).add(observed) <= budget:
            return list(observed), whole, {"records": 0, "rows_of_weights": not whole}
    total = _Total(spool, whole=False)
    kept = [seen for seen in observed if seen.tree["op"] in DECISIONS]
    if total.add(kept) > budget:
        raise CapacityError(
            "the trace does not fit its budget",
            where="parity record --budget",
            why=f"the decisions alone take {total.nbytes} bytes, the budget is {budget}",
            fix=f"give at least {total.nbytes}, or record fewer or shorter prompts",
        )
    groups = _ranked([seen for seen in observed if seen.tree["op"] not in DECISIONS], observed)
    left = []
    for key, calls in groups:
        if total.nbytes + total.cost(calls)[0] <= budget:
            total.add(calls)
            kept += calls
        else:
            left.append(key)
    kept.sort(key=lambda seen: int(seen.tree["id"]))
    told = {"records": len(observed) - len(kept), "rows_of_weights": True}
    return kept, False, told | {"groups": [list(key) for key in sorted(left, key=str)]}


def _ranked(rest: Sequence[Observed], observed: Sequence[Observed]) -> list[tuple[Any, list[Observed]]]:
    """Groups by (step, layer), the most telling first."""
    groups: dict[tuple[int, int | None], list[Observed]] = {}
    for seen in rest:
        groups.setdefault((seen.tree["step"], seen.tree["layer"]), []).append(seen)
    margins = dict.fromkeys(groups, float("inf"))
    for seen in observed:
        key = seen.tree["step"], seen.tree["layer"]
        if key in margins:
            margins[key] = min(margins[key], seen.margin)
    outliers = {key: max(seen.outlier for seen in calls) for key, calls in groups.items()}
    by_margin = sorted(groups, key=lambda key: margins[key])
    by_outlier = sorted(groups, key=lambda key: -outliers[key])
    in_turn = dict.fromkeys(key for pair in zip(by_margin, by_outlier, strict=True) for key in pair)
    return [(key, groups[key]) for key in in_turn]
