"""Does the engine agree with the oracle?  The sharp form: each step judged alone, from the engine's own state.

The oracle in float64 answers every step from the state in which the engine entered it.  The same answers
by oracles in float32, with the terms of long sums in several orders, show how far legal arithmetic spreads:
that is the floor.  docs/ORACLE.md derives the limits from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from oracle import hc
from oracle.arith import Arith
from oracle.choices import Choices, Margins
from oracle.load import load_tensors
from oracle.model import Oracle, Result, Step
from oracle.quant import Weights
from oracle.vocabulary import compressed_vocabulary
from support.teacher import Trace

Tensor = torch.Tensor
Stats = dict[tuple[str, str], float]  # (sub-layer kind, statistic) -> worst over layers

LEGAL_SEEDS: tuple[int | None, ...] = (None, 1, 2, 3)
FACTOR = 4  # class A of docs/CONTRACT.md: four floors and one ulp of the row maximum
NEAR_SHARE = 0.01  # over many requests
CROWD = 0.1  # of one request: a flipped code of one index key can decide at several later positions
KINDS = ("indices", "blocks", "experts")


@dataclass
class Verdict:
    """What disagrees, and how many decisions were too close to call."""

    findings: list[str] = field(default_factory=list)
    positions: int = 0
    rerun: int = 0  # positions with a decision in which engine and oracle differ
    near: int = 0  # positions with a decision closer than the floor

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.findings + other.findings,
            self.positions + other.positions,
            self.rerun + other.rerun,
            self.near + other.near,
        )


def _rounding(got: Tensor, want: Tensor) -> dict[str, float]:
    """Elements of bf16 rows that differ, and the largest difference in ulps of the row maximum."""
    apart = (got.double() - want.double()).abs().flatten(1)
    peak = want.double().abs().flatten(1).amax(-1, keepdim=True).clamp_min(2.0**-120)
    ulps = apart / torch.exp2(torch.floor(torch.log2(peak)) - 7)
    return {"elements": float((apart > 0).sum()), "ulps": float(ulps.max())}


def _deviation(name: str, got: Tensor, want: Tensor) -> dict[str, float]:
    """Mean and largest difference of float32 values."""
    apart = (got.double() - want.double()).abs()
    return {f"{name} mean": float(apart.mean()), f"{name} max": float(apart.max())}


def _worst(stats: Stats, kind: str, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        stats[kind, name] = max(value, stats.get((kind, name), 0.0))


class Judge:
    """The oracles over one checkpoint."""

    def __init__(self, directory: Path) -> None:
        config, tensors = load_tensors(directory)
        compressed = compressed_vocabulary(directory / "tokenizer.json")
        self.exact = Oracle(config, tensors, compressed, torch.float64)
        self.legal = [Oracle(config, tensors, compressed, torch.float32, seed) for seed in LEGAL_SEEDS]
        self._mixers = [(Arith(o, s), Weights(tensors, Arith(o, s))) for o, s in self._arithmetics()]
        self.settings = self.exact.settings
        steps = range(self.settings.n_layers)
        self.steps: list[Step] = [
            (layer, kind)
            for layer in steps
            for kind in (("engram",) if layer in self.settings.engram_layers else ()) + ("attn", "ffn")
        ]

    @staticmethod
    def _arithmetics() -> Iterator[tuple[torch.dtype, int | None]]:
        yield torch.float64, None
        for seed in LEGAL_SEEDS:
            yield torch.float32, seed

    def answer(self, oracle: Oracle, trace: Trace, choices: Choices | None) -> Result:
        """The oracle's answer to each step of the engine."""
        return oracle.forward(trace.ids, trace.roles, choices, dict(trace.embeds), trace.states)

    def mixes(self, which: int, trace: Trace) -> dict[Step, tuple[Tensor, Tensor]]:
        """post and comb of each sub-layer from the engine's trunk, by oracle number ``which`` (0: float64)."""
        arith, weights = self._mixers[which]
        made = {}
        for layer, kind in self.steps:
            if kind != "engram":
                trunk = trace.values["trunk", (layer, kind)]
                _, post, comb = hc.mixes(arith, weights, self.settings, f"layers.{layer}.hc_{kind}", trunk)
                made[layer, kind] = post, comb.flatten(1)
        return made

    def floor(self, trace: Trace, orders: int = len(LEGAL_SEEDS)) -> tuple[Stats, list[Margins]]:
        """How far legal orders of summation differ from float64, and the margins each of them finds."""
        choices = trace.choices
        exact, exact_mixes = self.answer(self.exact, trace, choices), self.mixes(0, trace)
        floor: Stats = {}
        margins = [exact.margins]
        for number, oracle in enumerate(self.legal[:orders], start=1):
            legal = self.answer(oracle, trace, choices)
            margins.append(legal.margins)
            self._compare(floor, legal, self.mixes(number, trace), exact, exact_mixes)
        return floor | _margin_floor(margins), margins

    def _compare(
        self,
        stats: Stats,
        got: Result | Trace,
        got_mixes: Mapping[Step, tuple[Tensor, Tensor]],
        want: Result,
        want_mixes: Mapping[Step, tuple[Tensor, Tensor]],
    ) -> None:
        states = got.states if isinstance(got, Trace) else got.steps
        made_by = {
            arrived: left
            for left, arrived in zip(self.steps, [*self.steps[1:], (self.settings.n_layers, "head")], strict=True)
        } | {self.steps[0]: (0, "embed")}
        for key, (_, kind) in made_by.items():
            (trunk, pre), (want_trunk, want_pre) = states[key], want.steps[key]
            _worst(stats, kind, _rounding(trunk, want_trunk) | _deviation("pre", pre, want_pre))
        for key, (post, comb) in got_mixes.items():
            want_post, want_comb = want_mixes[key]
            _worst(stats, key[1], _deviation("post", post, want_post) | _deviation("comb", comb, want_comb))
        _worst(stats, "head", _deviation("logits", got.logits, want.logits))

    def limit(self, floor: Stats, kind: str, statistic: str, rows: int) -> float:
        """The largest legal value of a statistic."""
        width = self.settings.hc_mult * self.settings.hidden_size
        # One flipped rounding reaches a row; a flipped key reaches every row whose window holds it.
        reach = {"attn": min(rows, self.settings.window) * width, "ffn": width, "engram": width, "embed": 0}
        spare = {"elements": reach.get(kind, 0), "ulps": 0 if kind == "embed" else 1}.get(statistic, 1e-9)
        return FACTOR * floor.get((kind, statistic), 0.0) + spare

    def judge(self, trace: Trace, floor: Stats, margins: list[Margins] | None = None) -> Verdict:
        """Compare the engine with the oracle.

        Args:
            trace: the engine's request.
            floor: from `floor`, of this or of a similar trace.
            margins: from `floor` of this trace, to count decisions closer than the floor.
        """
        verdict = Verdict(positions=len(trace))
        lost = [f"{kind} {key} is not finite" for (kind, key), v in trace.values.items() if not v.isfinite().all()]
        if lost:
            verdict.findings = lost
            return verdict
        answer = self.answer(self.exact, trace, None)
        differing = decisions_that_differ(trace.choices, answer.choices)
        verdict.rerun = len({position for _, _, position in differing})
        if verdict.rerun > CROWD * len(trace):
            verdict.findings.append(f"other decisions at {verdict.rerun} positions, as {differing[0]}")
            return verdict
        if margins is not None:
            verdict.near = len(near_positions(margins))
        if differing:
            try:
                answer = self.answer(self.exact, trace, trace.choices)
            except ValueError as error:
                verdict.findings.append(str(error))
                return verdict
            verdict.findings += contradictions(differing, answer.margins, floor)
        stats: Stats = {}
        own = {key[1]: (v, trace.values["comb", key[1]]) for key, v in trace.values.items() if key[0] == "post"}
        self._compare(stats, trace, own, answer, self.mixes(0, trace))
        for (kind, statistic), value in stats.items():
            allowed = self.limit(floor, kind, statistic, len(trace))
            if not value <= allowed:
                verdict.findings.append(f"{kind}: {statistic} {value:.3g}, {allowed:.3g} allowed")
        return verdict

    def whole_run(self, trace: Trace) -> list[str]:
        """Logits of a text request whose state is never reset, its choices imposed: findings.

        Rounding grows, but no further than between legal orders.
        """
        exact = self.exact.forward(trace.ids, choices=trace.choices).logits

        def apart(logits: Tensor) -> Tensor:
            return (logits.double() - exact.double()).abs().amax(-1)

        legal = [apart(oracle.forward(trace.ids, choices=trace.choices).logits) for oracle in self.legal]
        ours = apart(trace.logits)
        findings = []
        judged = (("mean", torch.mean, 0.0), ("max", torch.max, 0.0), ("median", torch.median, 1e-5))
        for name, statistic, spare in judged:
            value, allowed = float(statistic(ours)), FACTOR * max(float(statistic(row)) for row in legal) + spare
            if not value <= allowed:
                findings.append(f"whole run: {name} {value:.3g}, {allowed:.3g} allowed")
        return findings


def decisions_that_differ(ours: Choices, theirs: Choices) -> list[tuple[str, int, int]]:
    """(kind, layer, position) of every decision that was taken otherwise."""
    return [
        (kind, layer, position)
        for kind in KINDS
        for layer, rows in getattr(theirs, kind).items()
        for position, row in enumerate(rows)
        if list(row) != list(getattr(ours, kind)[layer][position])
    ]


def contradictions(differing: list[tuple[str, int, int]], found: Margins, floor: Stats) -> list[str]:
    """Decisions against a margin that no rounding explains."""
    wrong = []
    for kind, layer, position in differing:
        margin = getattr(found, kind)[layer][position]
        if -margin > FACTOR * floor.get((kind, "margin"), 0.0):
            wrong.append(f"{kind} of layer {layer} at {position} were chosen against a margin of {margin:.3g}")
    return wrong


def _margin_floor(margins: list[Margins]) -> Stats:
    """How far the margin of a decision moves between legal orders, at most, per kind of decision."""
    floor: Stats = {}
    for kind in KINDS:
        for layer, rows in getattr(margins[0], kind).items():
            for other in margins[1:]:
                with np.errstate(invalid="ignore"):
                    change = np.abs(np.array(getattr(other, kind)[layer]) - np.array(rows))
                _worst(floor, kind, {"margin": float(np.max(change[np.isfinite(change)], initial=0.0))})
    return floor


def near_positions(margins: list[Margins]) -> set[int]:
    """Positions with a decision whose margin is within what legal orders move it by; an exact tie is not near."""
    near: set[int] = set()
    exact = margins[0]
    for kind in KINDS:
        for layer, rows in getattr(exact, kind).items():
            own = np.array(rows)
            with np.errstate(invalid="ignore"):
                moved = np.max([np.abs(np.array(getattr(m, kind)[layer]) - own) for m in margins[1:]], axis=0)
            near |= set(np.flatnonzero((moved > 0) & (np.abs(own) <= moved)).tolist())
    return near
