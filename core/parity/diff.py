"""The difference of two traces: which op erred, what it inherited, which decisions flipped and whether they may."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from tandem.conformance.compare import host
from tandem.contract.capabilities import RUN_ON_DEVICE, labelled
from tandem.errors import TraceError
from tandem.parity.apart import apart
from tandem.parity.decisions import HEAD, Choice, Flip, choices, flips, score_noise
from tandem.parity.headers import HeaderMismatch, compare_headers
from tandem.parity.measure import LeafError, finite
from tandem.parity.pairs import Side, matched
from tandem.parity.records import Record
from tandem.parity.statistics import Estimate, ModelLevel, model_level, wilson
from tandem.parity.trace import Trace

Array = npt.NDArray[Any]
# Legal noise of the scores of a decision that earlier ops bring, f64 [T]; see `tandem.parity.legal`.
Legal = Callable[[Record], Array]


@dataclass(frozen=True)
class OpDiff:
    """One call of both runs.

    Args:
        record: run A's.
        one, two: local errors of A's and of B's outputs, each against the truth for its own inputs.
        inherited: greatest relative difference of the inputs carried in.
        integers: integer inputs that differ, by dotted name.
        free: greatest relative difference of the outputs.
        amplification: free over the greatest local error so far of either run; None where that is 0.
        same: whether inputs and outputs have equal bits.
        error: why B gave no outputs.
    """

    record: Record
    one: list[LeafError]
    two: list[LeafError]
    inherited: float
    integers: tuple[str, ...]
    free: float
    amplification: float | None
    same: bool
    error: str = ""

    @property
    def outside(self) -> LeafError | None:
        """The output of B that is outside its class, if any."""
        return next((leaf for leaf in self.two if leaf.outside), None)

    @property
    def outside_one(self) -> LeafError | None:
        """The output of A that is outside its class, if any."""
        return next((leaf for leaf in self.one if leaf.outside), None)

    @property
    def local(self) -> float:
        """Greatest local error of B, relative to the row."""
        return max((leaf.relative for leaf in self.two), default=0.0)

    @property
    def share(self) -> float:
        """Greatest local error of B as a share of its gate."""
        return max((leaf.share for leaf in self.two), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        r = self.record
        return {
            "record": r.id,
            "op": r.op,
            "site": r.place,
            "layer": r.layer,
            "step": r.step,
            "parent": r.parent,
            "local_a": [leaf.to_json() for leaf in self.one],
            "local_b": [leaf.to_json() for leaf in self.two],
            "inherited": finite(self.inherited),
            "integers": list(self.integers),
            "free": finite(self.free),
            "amplification": None if self.amplification is None else finite(self.amplification),
            "same": self.same,
            "error": self.error,
        }


@dataclass(frozen=True)
class Margin:
    """Distance of A's two best logits of a row, in noise floors, and whether B's best is another."""

    step: int
    row: int
    floors: float
    flipped: bool


@dataclass
class Difference:
    """All of it.

    Args:
        mode: "local", "free" (replays) or "recording" (two independent ones).
        names: of the backends, A and B.
        verification: how the results of A and B came about.
        headers: header fields that differ and should not.
        ops: matched calls in the order of the run.
        unmatched: records of A that B does not have.
        beyond: number of records of B that A does not have.
        left_out: calls that A's recording left out to keep its budget.
        flips: decisions that differ.
        margins: of the logits, one for each row compared.
        decided: decisions compared, by kind: rows, and rows that flipped.
        model: agreement of the logits; None where none were recorded, and in local mode, where B had A's inputs.
        divergent: first step in which another token was drawn, None where none was.
        steps: number of steps in which tokens were compared.
        stops: requests that ended for different reasons: (request, A's, B's).
        taken: drafts that A and B took, of those that both judged.
    """

    mode: str
    names: tuple[str, str]
    headers: list[HeaderMismatch]
    ops: list[OpDiff] = field(default_factory=list)
    unmatched: list[Record] = field(default_factory=list)
    beyond: int = 0
    left_out: int = 0
    flips: list[Flip] = field(default_factory=list)
    margins: list[Margin] = field(default_factory=list)
    decided: dict[str, tuple[int, int]] = field(default_factory=dict)
    model: ModelLevel | None = None
    divergent: int | None = None
    steps: int = 0
    stops: list[tuple[int, str, str]] = field(default_factory=list)
    taken: tuple[int, int] = (0, 0)
    verification: tuple[str, str] = (RUN_ON_DEVICE, RUN_ON_DEVICE)

    @property
    def shown(self) -> tuple[str, str]:
        """Names as reports show them: ``name (emulated)`` where it was not run on a device."""
        return labelled(self.names[0], self.verification[0]), labelled(self.names[1], self.verification[1])

    def rates(self) -> dict[str, Estimate]:
        """Share of decisions that flipped, by kind."""
        return {kind: wilson(flipped, rows) for kind, (rows, flipped) in self.decided.items()}

    @property
    def drafts(self) -> tuple[int, int, int]:
        """Drafts that both judged, and how many of them A and B took."""
        return self.decided.get("accepted", (0, 0))[0], *self.taken

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "mode": self.mode,
            "backends": list(self.shown),
            "headers": [item.to_json() for item in self.headers],
            "ops": [op.to_json() for op in self.ops],
            "unmatched": [record.id for record in self.unmatched],
            "beyond": self.beyond,
            "left_out": self.left_out,
            "flips": [flip.to_json() for flip in self.flips],
            "margins": [[m.step, m.row, finite(m.floors), m.flipped] for m in self.margins],
            "flip_rates": {kind: rate.to_json() for kind, rate in self.rates().items()},
            "model": None if self.model is None else self.model.to_json(),
            "first_divergent_step": self.divergent,
            "steps_with_tokens": self.steps,
            "stops": [list(item) for item in self.stops],
            "drafts": dict(zip(("judged", "taken_a", "taken_b"), self.drafts, strict=True)),
        }


def diff(one: Side, two: Side, progress: bool = False, legal: Legal | None = None) -> Difference:
    """Compare two traces.

    Args:
        one, two: run A, the recording, and run B, a replay of it or another recording of the same prompts.
        progress: show a bar on standard error.
        legal: noise that legal rounding before a decision brings to its scores; None where it was not measured.
    Raises:
        TraceError: model, config, tokenizer or major contract differ, or no record matches.
    """
    traces = one.trace, two.trace
    verification = _verification(one.trace), _verification(two.trace)
    names = _name(one.trace), _name(two.trace)
    found = Difference(_mode(*traces), names, _headers(*traces), verification=verification)
    pairs = list(matched(one, two))
    if not pairs:
        raise TraceError(
            "two traces have no record in common",
            where=f"{one.trace.path}, {two.trace.path}",
            why="no call has the same step, site and op",
            fix="record the same prompts with the same flags, or diff a trace with its own replay",
        )
    left = one.trace.header.get("left_out")
    found.left_out = int(left.get("records", 0)) if isinstance(left, dict) else 0
    here = {a.id for a, _ in pairs}
    found.unmatched = [record for record in one.trace.records if record.id not in here]
    found.beyond = len(two.trace.records) - len(pairs)
    greatest = 0.0
    logits: list[tuple[Array, Array]] = []
    for a, b in tqdm(pairs, desc="diff", unit="op", disable=None if progress else True):
        op = _compare(one, two, a, b, greatest)
        greatest = max([greatest, *(leaf.relative for leaf in (*op.one, *op.two))])
        found.ops.append(op)
        if not op.error:
            _decide(one, two, a, b, op, found)
            if a.op == "linear" and a.site == HEAD and found.divergent is None and found.mode != "local":
                logits.append((host(one.call(a.id).outputs["y"]), host(two.call(b.id).outputs["y"])))
    if logits and all(x.shape == y.shape for x, y in logits):
        found.model = model_level(*(np.concatenate(side) for side in zip(*logits, strict=True)))
    found.stops = _stops(one.trace, two.trace)
    found.flips = _explained(one, found, legal)
    return found


def _mode(one: Trace, two: Trace) -> str:
    return str(two.header.get("mode", "recording")) if two.header.get("replay_of") == one.digest else "recording"


def _name(trace: Trace) -> str:
    return str(trace.header.get("backend", "unknown"))


def _verification(trace: Trace) -> str:
    told = trace.header.get("capabilities")
    return str(told.get("verification", RUN_ON_DEVICE)) if isinstance(told, dict) else RUN_ON_DEVICE


def _headers(one: Trace, two: Trace) -> list[HeaderMismatch]:
    headers = [] if two.header.get("replay_of") == one.digest else compare_headers(one.header, two.header)
    if headers and headers[0].refuses:
        raise TraceError(
            "two traces are not of the same run",
            where=f"{one.path}, {two.path}",
            why="; ".join(item.text() for item in headers),
            fix="record both with the same model, tokenizer and contract",
        )
    return headers


def _compare(one: Side, two: Side, a: Record, b: Record, greatest: float) -> OpDiff:
    if b.error is not None:
        told = f"{b.error.get('what', 'it failed')}: {b.error.get('why', '')}"
        return OpDiff(a, one.errors(a), [], 0.0, (), float("inf"), None, False, told)
    same_in, same_out = (x == y for x, y in zip(one.bits(a), two.bits(b), strict=True))
    mine, theirs = one.errors(a), two.errors(b)
    nothing = apart({}, {})
    carried = nothing if same_in else apart(one.call(a.id).inputs, two.call(b.id).inputs)
    result = nothing if same_out else apart(one.call(a.id).outputs, two.call(b.id).outputs)
    free = result.greatest if not result.shapes else float("inf")
    local = max([greatest, *(leaf.relative for leaf in (*mine, *theirs))])
    amplification = free / local if local and np.isfinite(free) else None
    integers = (*carried.integers, *carried.shapes)
    return OpDiff(a, mine, theirs, carried.greatest, integers, free, amplification, same_in and same_out)


def _decide(one: Side, two: Side, a: Record, b: Record, op: OpDiff, found: Difference) -> None:
    """Count the decisions of a call and list its flips."""
    if one.parts_decide(a):
        return
    mine = choices(a, one.call(a.id), one.find)
    theirs = mine if op.same else choices(b, two.call(b.id), two.find)
    for ours, others in zip(mine, theirs, strict=True):
        _count(one, a, ours, others, op, found)


def _count(one: Side, a: Record, mine: Choice, theirs: Choice, op: OpDiff, found: Difference) -> None:
    flipped = list(flips(a, mine, theirs, lambda: score_noise(a, one.call(a.id), one.find)))
    rows, before = found.decided.get(mine.kind, (0, 0))
    both = [pair for pair in zip(mine.chosen, theirs.chosen, strict=False) if None not in pair]
    found.decided[mine.kind] = rows + len(both), before + len(flipped)
    found.flips += flipped
    if mine.kind == "accepted":
        took = [sum(pair[side] == frozenset([1]) for pair in both) for side in (0, 1)]
        found.taken = found.taken[0] + took[0], found.taken[1] + took[1]
    if mine.kind == "argmax":
        found.margins += _margins(a.step, mine, {flip.row for flip in flipped}, op)
    if mine.kind == "token":
        found.steps += 1
        if flipped and found.divergent is None:
            found.divergent = a.step


def _margins(step: int, logits: Choice, flipped: set[int], op: OpDiff) -> list[Margin]:
    unit = op.one[0].floor or 0.0
    best = np.sort(logits.scores, axis=1)[:, -2:]
    gaps = [float(gap) for gap in best[:, -1] - best[:, 0]]
    return [Margin(step, row, gap / unit, row in flipped) for row, gap in enumerate(gaps) if unit and np.isfinite(gap)]


def _explained(one: Side, found: Difference, legal: Legal | None) -> list[Flip]:
    """Call each flip a tie, a defect, or inherited from what lies before it."""
    bad = {op.record.id for op in found.ops if op.outside or op.outside_one or op.error}
    differs = {op.record.id: op for op in found.ops}
    named: list[Flip] = []
    for flip in found.flips:
        op = differs[flip.record]
        before = one.upstream(op.record) if found.mode != "local" else set()
        cause = min(before & bad, default=None)
        earlier = min((other.record for other in named if other.record in before), default=None)
        if flip.record in bad:
            verdict, cause = "defect", flip.record
        elif cause is not None:
            verdict = "defect"
        elif earlier is not None:
            verdict, cause = "inherited", earlier
        else:
            flip = _with_legal(flip, op, legal)
            verdict = "tie" if flip.near else "defect"
        named.append(dataclasses.replace(flip, verdict=verdict, cause=cause))
    return named


def _with_legal(flip: Flip, op: OpDiff, legal: Legal | None) -> Flip:
    """A flip with the noise that legal ops before it bring, where its own floor does not explain it."""
    if flip.near or legal is None or (op.inherited == 0.0 and not op.integers):
        return flip
    noise = legal(op.record)
    return dataclasses.replace(flip, legal=float(noise[flip.row]) if flip.row < len(noise) else 0.0)


def _stops(one: Trace, two: Trace) -> list[tuple[int, str, str]]:
    """Requests whose reasons to end differ, where both traces tell them."""
    sides = [trace.header.get("requests") for trace in (one, two)]
    left, right = (side if isinstance(side, list) else [] for side in sides)
    pairs = [(_reason(a), _reason(b)) for a, b in zip(left, right, strict=False)]
    return [(i, a, b) for i, (a, b) in enumerate(pairs) if a and b and a != b]


def _reason(output: Any) -> str:
    if not isinstance(output, dict) or "finish_reason" not in output:
        return ""
    stop = output.get("stop_reason")
    return str(output["finish_reason"]) + ("" if stop is None else f" ({stop!r})")
