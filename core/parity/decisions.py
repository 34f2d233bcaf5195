"""Decisions of a model, where two runs took other ones, and by how much they could.

A decision is a choice by scores: experts of a row, compressed entries, candidate blocks, the likeliest token, the
drawn token, a draft, and whether a draft was taken.  A flip's margin is the distance of the scores it had to cross, in
units of the noise floor of the scores.  How many tokens a request got follows from these: there is no margin in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.conformance.compare import host
from tandem.conformance.derive.base import View, exact_dot
from tandem.conformance.derive.moe import choose
from tandem.parity import edges
from tandem.parity.edges import Edge
from tandem.parity.judge import noise, route
from tandem.parity.measure import TIE, finite
from tandem.parity.records import Call, Record

Array = npt.NDArray[Any]
Find = Callable[[int], "tuple[Record, Call] | None"]  # a record of run A, with its values

KINDS = ("experts", "entries", "blocks", "argmax", "draft", "accepted", "token", "emitted")
EDITS = ("penalize_logits", "adjust_logits", "mask_logits")
HEAD = "head"  # the site of the product that gives logits


@dataclass(frozen=True)
class Choice:
    """What one run chose in the rows of one call, and by which scores.

    Args:
        chosen: for each row the set of ids; None where the row decided nothing.
        scores: f64 [T, candidates]; what is larger is preferred.
        names: id of each candidate, int [T, candidates]; None where a candidate is its own id.
        edge: for what random numbers decide, how near a row was to another id.
    """

    kind: str
    chosen: list[frozenset[int] | None]
    scores: Array
    names: Array | None = None
    edge: Callable[[int, int], Edge | None] | None = None


@dataclass(frozen=True)
class Flip:
    """A row in which two runs chose differently.

    Args:
        kind: one of `KINDS`.
        record, step, layer, site, row: where.
        gone, came: ids that only run A, only run B chose.
        margin: how far apart A's scores of these are; floor: noise of such a score, in the same units.
        verdict: "tie", "defect" or "inherited" (an earlier flip, or an op outside its class, lies before it).
        cause: the record that explains it, where there is one.
        legal: what legal rounding before the decision moves its scores by, in the same units; None where it was not
            measured, since the floor alone explains the flip or nothing was carried in.
    """

    kind: str
    record: int
    step: int
    layer: int | None
    site: str
    row: int
    gone: tuple[int, ...]
    came: tuple[int, ...]
    margin: float
    floor: float
    verdict: str = ""
    cause: int | None = None
    legal: float | None = None

    @property
    def units(self) -> float:
        """The margin in noise floors."""
        if self.margin == 0.0:
            return 0.0
        return self.margin / self.floor if self.floor else float("inf")

    @property
    def limit(self) -> float:
        """The widest margin that noise explains: each of two scores may be off by the floor and the legal noise."""
        return TIE * (self.floor + (self.legal or 0.0))

    @property
    def near(self) -> bool:
        """Whether noise alone explains it."""
        return self.margin <= self.limit

    def told(self) -> str:
        """The margin, and the limit that it was held against, in units of the scores."""
        if self.cause is not None:
            return f"margin {self.margin:.3g}, not held against noise: record {self.cause} explains it"
        legal = "" if self.legal is None else f" + legal noise {self.legal:.3g}"
        share = f" ({self.margin / self.limit:.3g} of it)" if self.limit > 0 else ""
        return f"margin {self.margin:.3g}, limit {self.limit:.3g}{share} = {TIE:.0f} x (floor {self.floor:.3g}{legal})"

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "kind": self.kind,
            "record": self.record,
            "step": self.step,
            "layer": self.layer,
            "site": self.site,
            "row": self.row,
            "gone": list(self.gone),
            "came": list(self.came),
            "margin": finite(self.margin),
            "floor": finite(self.floor),
            "floors": finite(self.units),
            "legal": None if self.legal is None else finite(self.legal),
            "limit": None if self.cause is not None else finite(self.limit),
            "verdict": self.verdict,
            "cause": self.cause,
        }


def choices(record: Record, call: Call, find: Find) -> list[Choice]:
    """The decisions a call makes; the scores of the last have most to say.

    Args:
        find: gives a record of the same run, for what the scores were made from.
    """
    if record.op == "topk_index":
        return [_selection(record, call, find)]
    if record.op == "moe_route":
        experts = _sets(host(call.outputs["experts"]).tolist())
        return [Choice("experts", experts, route(View(call.inputs)).scores)]
    if record.op == "moe_block":
        scores, k = route(View(call.inputs)).scores, call.inputs["weights"].k
        return [Choice("experts", _sets(choose(row, np.zeros(len(row)), k) for row in scores), scores)]
    if record.op == "linear" and record.site == HEAD:
        logits = host(call.outputs["y"])
        return [Choice("argmax", _singles(logits.argmax(axis=1)), logits)]
    if record.op in ("sample", "draft_sample"):
        kind, edge = ("token", edges.drawn) if record.op == "sample" else ("draft", edges.drafted)
        tokens, logits = _singles(host(call.outputs["token"])), host(call.inputs["logits"])
        return [Choice(kind, tokens, logits, edge=lambda row, other: edge(call, row, other))]
    if record.op == "head_sample":
        logits = _product(call).outputs["y"]
        made = Call(call.inputs | {"logits": logits}, call.outputs)
        tokens = _singles(host(call.outputs["token"]))
        return [Choice("token", tokens, host(logits), edge=lambda row, other: edges.drawn(made, row, other))]
    if record.op == "spec_verify":
        return _verified(call)
    if record.op == "aux.accept":
        emitted = host(call.outputs["emitted"])
        ones = np.arange(int(emitted.max(initial=0)) + 2)[None] == emitted[:, None]
        return [Choice("emitted", _singles(emitted), ones.astype(np.float64))]
    return []


def _product(call: Call) -> Call:
    """The product with the head that a call of `head_sample` draws from, which it does not give."""
    inputs = {"x": call.inputs["x"], "weight": call.inputs["head"], "out_dtype": torch.float32}
    view = View(inputs)
    return Call(inputs, {"y": torch.from_numpy(exact_dot(view["x"], view["weight"])).to(torch.float32)})


def _sets(rows: Iterable[Iterable[int]]) -> list[frozenset[int] | None]:
    return [frozenset(row) for row in rows]


def _singles(ids: Array) -> list[frozenset[int] | None]:
    return [frozenset([int(i)]) for i in ids]


def _verified(call: Call) -> list[Choice]:
    """Whether drafts were taken, and tokens; rows behind a draft that was refused decide nothing that anyone sees."""
    logits, taken = host(call.inputs["logits"]), host(call.outputs["accepted"]).astype(bool)
    last, tokens = host(call.inputs["draft_row"]) < 0, _singles(host(call.outputs["token"]))
    accepts, scores = _singles(taken), np.zeros((len(taken), 2))
    reached = True
    for row in range(len(taken)):
        draft = edges.draft_of(call, row)
        if not reached:
            tokens[row] = None
        if not reached or draft < 0:
            accepts[row] = None
        else:  # of a greedy row: the best of the others, and the draft's
            scores[row] = np.delete(logits[row], draft).max(initial=-np.inf), logits[row, draft]
        reached = bool(last[row]) or (reached and bool(taken[row]))
    return [
        Choice("accepted", accepts, scores, edge=lambda row, other: edges.accepted(call, row)),
        Choice("token", tokens, logits, edge=lambda row, other: edges.verified(call, row, other)),
    ]


def _selection(record: Record, call: Call, find: Find) -> Choice:
    scores, index = host(call.inputs["scores"]), host(call.outputs["index"])
    producer = find(record.sources["scores"][0]) if "scores" in record.sources else None
    op = producer[0].op if producer else ""
    names = None
    if producer and op == "index_scores_at":  # places in the candidate pool, which may be another one in the other run
        names = host(producer[1].inputs["entries"])
        index = np.where(index >= 0, np.take_along_axis(names, np.maximum(index, 0), axis=1), -1)
    chosen = _sets((i for i in row if i >= 0) for row in index.tolist())
    # Only scores of blocks hold +inf, for the block of the row itself; the op that made them may be left out.
    blocks = op == "block_max" or (not op and bool(np.isposinf(scores).any()))
    return Choice("blocks" if blocks else "entries", chosen, scores, names)


def flips(record: Record, one: Choice, two: Choice, floor: Callable[[], Array]) -> Iterator[Flip]:
    """Rows in which run B chose otherwise.

    Args:
        one, two: the choices of runs A and B.
        floor: gives the noise of A's scores, f64 [T]; called only where something flipped.
    """
    noise_of: Array | None = None
    for row, (a, b) in enumerate(zip(one.chosen, two.chosen, strict=False)):
        if a is None or b is None or a == b:
            continue
        noise_of = floor() if noise_of is None else noise_of
        gone, came = sorted(a - b), sorted(b - a)
        place = record.id, record.step, record.layer, record.site, row
        size = float(noise_of[row]) if row < len(noise_of) else 0.0
        margin, edge = _margin(one, row, gone, came), one.edge(row, came[0]) if one.edge and came else None
        if edge is not None:
            margin, size = edge.distance, size * edge.unit
        yield Flip(one.kind, *place, tuple(gone), tuple(came), margin, size)


def _margin(one: Choice, row: int, gone: list[int], came: list[int]) -> float:
    """Distance between the best score lost and the worst one gained, in A's scores; infinite where A had none."""
    scores = one.scores[row]
    if one.names is not None:
        by_name = {int(name): float(s) for name, s in zip(one.names[row], scores, strict=True) if name >= 0}
    else:
        by_name = dict(enumerate(scores.tolist()))
    lost = [by_name.get(i, float("inf")) for i in gone]
    gained = [by_name.get(i, float("-inf")) for i in came]
    if not lost or not gained:  # one run chose fewer: what it left out was not there for it
        return float("inf")
    margin = max(lost) - min(gained)
    return float("inf") if np.isnan(margin) else max(0.0, margin)


def score_noise(record: Record, call: Call, find: Find) -> Array:
    """Noise floor of the scores a decision was made by, f64 [T]: that of the op they come from."""
    rows = len(next(iter(call.outputs.values())))
    if record.op in ("moe_route", "moe_block"):
        return route(View(call.inputs)).floor
    if record.op in ("linear", "head_sample"):
        return noise("linear", call if record.op == "linear" else _product(call), "y")
    path = "scores" if record.op == "topk_index" else "logits"
    place: tuple[Record, Call] | None = (record, call)
    for _ in range(8):  # through ops that only move or pick scores
        source = place[0].sources.get(path) if place else None
        place = find(source[0]) if source else None
        if place is None or source is None:
            return np.zeros(rows)
        found = place[0].op
        if found in ("linear", "index_scores", "index_scores_at", "draft_heads"):
            return noise(found, place[1], source[1])
        path = {"block_max": "scores"}.get(found, "logits" if found in EDITS else "")
    return np.zeros(rows)

