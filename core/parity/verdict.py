"""PASS, TIE or FAIL, in words and as data, with the command that shows the one op to blame again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tandem.errors import ParityFail
from tandem.parity.decisions import Flip
from tandem.parity.diff import Difference, OpDiff
from tandem.parity.measure import LeafError, finite

CLASSES = {"floors": "A", "ulp": "U", "steps": "Q", "elements": "X", "form": "its form"}
# Why an op outside its class is to blame.
OWN = "the call is judged on the inputs it was given, so nothing in it is inherited"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison.

    Args:
        status: "PASS": no decision differs and every op keeps its class; "TIE": decisions differ, each within noise;
            "FAIL": an op is outside its class, or a decision differs beyond noise.
        side: the backend to blame, empty where none is; own: whether it is A's, the recording's own call.
        op, site, layer, step, record, leaf: the call to blame, or the decision that cannot be explained.
        metric, value, threshold, floor, index: the number that decides; `floor` is one unit of the metric.
        flip: the first decision that is a defect, or for TIE the widest tie.
        command: shows that call again.
        reason: why the number decides.
        notes: what else must be known.
        local: whether B's calls had A's inputs, so that nothing is said of a run of B.
        partial: what of the two runs was not compared, empty where all of it was.
    """

    status: str
    side: str = ""
    op: str = ""
    site: str = ""
    layer: int | None = None
    step: int = 0
    record: int | None = None
    leaf: str = ""
    metric: str = ""
    value: float = 0.0
    threshold: float = 0.0
    floor: float | None = None
    index: tuple[int, ...] = ()
    flip: Flip | None = None
    command: str = ""
    reason: str = OWN
    notes: list[str] = field(default_factory=list)
    own: bool = False
    local: bool = False
    partial: str = ""

    def headline(self) -> str:
        """One line."""
        partial = f" (PARTIAL: {self.partial})" if self.partial else ""
        if self.status == "PASS":
            if self.local:
                return f"PASS{partial}: every op is within its class on A's inputs"
            return f"PASS{partial}: every op is within its class and no decision differs"
        if self.status == "TIE":
            widest = f"; the widest: {self.flip.told()}" if self.flip else ""
            return f"TIE{partial}: decisions differ, each within the noise of its scores{widest}"
        return f"FAIL: {self._blamed()}"

    def _blamed(self) -> str:
        layer = "" if self.layer is None else f" layer {self.layer}"
        row = f" row {self.index[0]}" if self.index else ""
        place = f"op '{self.op}'{layer} step {self.step}{row}"
        if self.own:
            place = f"A's recording is outside its class, B is not judged by it: {place}"
        if self.metric == "margin":
            return f"{place}: the decision differs at a margin of {self.value:.3g} > {self.threshold:.3g}"
        if self.metric == "error":
            return f"{place}: it could not run"
        name = CLASSES.get(self.metric, self.metric)
        limit = f"U({self.threshold:.0f})" if name == "U" else f"class {name}, {self.threshold:.3g}"
        return f"{place}: {self.value:.4g} {self.metric} > {limit}"

    def error(self) -> ParityFail:
        """The error of a FAIL."""
        floor = "" if self.floor is None else f"floor={self.floor:.3g}; "
        output = f", output {self.leaf} first at {list(self.index)}" if self.leaf else ""
        return ParityFail(
            self._blamed(),
            where=f"{self.site}, record {self.record}, backend '{self.side}' ({'A' if self.own else 'B'}){output}",
            why=floor + self.reason,
            fix=f"rerun: {self.command}",
        )

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "status": self.status,
            "partial": self.partial,
            "headline": self.headline(),
            "backend": self.side,
            "side": ("A" if self.own else "B") if self.side else "",
            "op": self.op,
            "site": self.site,
            "layer": self.layer,
            "step": self.step,
            "record": self.record,
            "output": self.leaf,
            "metric": self.metric,
            "value": finite(self.value),
            "threshold": finite(self.threshold),
            "floor": None if self.floor is None else finite(self.floor),
            "first_index": list(self.index),
            "flip": None if self.flip is None else self.flip.to_json(),
            "reason": self.reason,
            "command": self.command,
            "notes": self.notes,
        }


def verdict(found: Difference, trace: Path) -> Verdict:
    """Judge a difference.

    The first op of B outside its class is to blame; of an op made of parts, the part.  Each call is judged on its own
    inputs, so errors of A take nothing from that; where only A errs, A is named.  Where all ops hold their classes, a
    decision that differs beyond noise is to blame.

    Args:
        trace: the directory of run A, for the command.
    """
    notes, partial = _notes(found), _partial(found)
    blamed = _first_bad(found, [op for op in found.ops if op.outside or op.error])
    blamed = blamed or _first_bad(found, [op for op in found.ops if op.outside_one])
    if blamed is not None:
        return _op_fail(found, blamed, trace, notes)
    defects = [flip for flip in found.flips if flip.verdict == "defect"]
    if defects:
        return _flip_fail(found, defects[0], trace, notes)
    if found.flips:
        ties = [flip for flip in found.flips if flip.verdict == "tie"]
        widest = max(ties, key=lambda flip: flip.margin / flip.limit if flip.limit else 0.0, default=None)
        numbers = (0.0, 0.0) if widest is None else (widest.margin, widest.limit)
        return Verdict(
            "TIE", flip=widest, metric="margin", value=numbers[0], threshold=numbers[1], notes=notes, partial=partial
        )
    return Verdict("PASS", notes=notes, local=found.mode == "local", partial=partial)


def _partial(found: Difference) -> str:
    """What of the two runs was not compared: calls that one side alone has, and what came after an early end."""
    parts = []
    if found.unmatched or found.beyond:
        both = len(found.ops)
        parts.append(f"{both} of A's {both + len(found.unmatched)} and of B's {both + found.beyond} calls compared")
    if found.stops:
        parts.append("requests ended for different reasons")
    return ", ".join(parts)


def _first_bad(found: Difference, calls: list[OpDiff]) -> OpDiff | None:
    bad = {op.record.id: op for op in calls}
    blamed = next(iter(bad.values()), None)
    while blamed is not None:  # down to the part that errs
        part = next((op for op in bad.values() if op.record.parent == blamed.record.id), None)
        if part is None:
            return blamed
        blamed = part
    return None


def _op_fail(found: Difference, op: OpDiff, trace: Path, notes: list[str]) -> Verdict:
    record = op.record
    leaf = op.outside or op.outside_one
    own = not (op.outside or op.error)
    side = found.names[0] if own else found.names[1]
    flip = next((flip for flip in found.flips if flip.cause == record.id), None)
    if leaf is None:
        leaf = LeafError("", "error", 0.0, np.array([np.inf]), np.inf, None, np.inf, (), True, op.error)
    both = "; the recording is outside its class too" if op.outside and op.outside_one else ""
    return Verdict(
        "FAIL", side, record.op, record.place, record.layer, record.step, record.id, leaf.leaf, leaf.metric, leaf.value,
        leaf.threshold, leaf.floor, leaf.first, flip, command(found, op.record.id, trace, side),
        (leaf.note or OWN) + both, notes, own,
    )  # fmt: skip


def _flip_fail(found: Difference, flip: Flip, trace: Path, notes: list[str]) -> Verdict:
    op = next(op for op in found.ops if op.record.id == flip.record)
    why = "no recorded op is outside its class, so the cause lies outside the recorded calls: record more layers"
    return Verdict(
        "FAIL", found.names[1], op.record.op, flip.site, flip.layer, flip.step, flip.record, flip.kind, "margin",
        flip.margin, flip.limit, flip.floor, (flip.row,), flip, command(found, flip.record, trace), why, notes,
    )  # fmt: skip


def command(found: Difference, record: int, trace: Path, side: str = "") -> str:
    """The commands that replay one call alone on a backend (B's unless named) and compare it."""
    blamed = next(op.record for op in found.ops if op.record.id == record)
    layer = "" if blamed.layer is None else f" --layer {blamed.layer}"
    out = f"{trace.name}-{blamed.op}"
    path = shlex.quote(str(trace))
    replay = f"tandem parity replay {path} --backend {side or found.names[1]} --mode local --op {blamed.op}{layer}"
    return f"{replay} --step {blamed.step} --out {shlex.quote(out)} && tandem parity diff {path} {shlex.quote(out)}"


def _notes(found: Difference) -> list[str]:
    notes = [item.text() for item in found.headers]
    astray = [op for op in found.ops if op.outside_one]
    if astray:
        first = astray[0].record
        notes.append(f"A's recording is outside its class in {len(astray)} calls, first in op '{first.op}' "
                     f"{first.place} step {first.step}, record {first.id}")  # fmt: skip
    if found.left_out:
        notes.append(f"the recording left out {found.left_out} calls to keep its budget; they are not compared")
    if found.unmatched:
        notes.append(f"{len(found.unmatched)} of {len(found.unmatched) + len(found.ops)} records were not compared: "
                     f"the other trace has none of them")  # fmt: skip
    if found.beyond:
        notes.append(f"{found.beyond} of {found.beyond + len(found.ops)} records of the other trace were not compared")
    if found.stops:
        request, one, two = found.stops[0]
        notes.append(f"request {request} ended for another reason: {one} and {two}")
    if found.model is not None:
        model = found.model
        notes.append(
            f"{model.agreement.n} positions: a rate of disagreement under {model.detectable:.2%} could stay unseen"
        )
    return notes
