"""Derivations of speculative sampling: masses in big integers, one row at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from tandem.conformance.compare import Drawn, Ulps, same
from tandem.conformance.derive.base import Check, View, derives
from tandem.conformance.derive.sampling import Row, log_softmax, rows_of, uniform

WHOLE = 2**42


class Outcome(NamedTuple):
    """A token, and whether it is the draft."""

    token: int
    accepted: int


def masses(weight: Sequence[int]) -> list[int]:
    """Floored shares of 2^42, the rest on the first of the heaviest; zeros where there is no weight."""
    total = sum(weight)
    if not total:
        return [0] * len(weight)
    shares = [w * WHOLE // total for w in weight]
    shares[weight.index(max(weight))] += WHOLE - sum(shares)
    return shares


def pick(weight: Sequence[int], target: int) -> int:
    """First id whose inclusive sum exceeds the target."""
    return next(i for i, total in enumerate(accumulate(weight)) if total > target)


def near(weight: Sequence[int], target: int, slack: int) -> set[int]:
    """Ids with weight whose share of the line comes within the slack of the target."""
    places = enumerate(zip(weight, accumulate(weight), strict=True))
    return {i for i, (w, end) in places if w and end - w - slack <= target < end + slack}


class Judge:
    """What one row may give.

    Args:
        row: the target.
        seed, position: of the draw.
        draft: the token offered, -1 for none.
        proposal: the weights it was drawn by.
    """

    def __init__(self, row: Row, seed: int, position: int, draft: int, proposal: Sequence[int]) -> None:
        self._row, self._draft = row, draft
        self._draws = [uniform(seed, position, case) for case in (0, 1, 2)]
        self._offer = masses(proposal)

    def _target(self, count: int) -> list[int]:
        kept = set(self._row.kept(count))
        return masses([w if i in kept else 0 for i, w in enumerate(self._row.weight)])

    def _bar(self) -> int:
        return self._draws[2] * self._offer[self._draft] >> 53

    def _left(self, target: list[int]) -> list[int]:
        left = [max(q - p, 0) for q, p in zip(target, self._offer, strict=True)]
        return left if any(left) else target

    def letter(self) -> Outcome:
        """By rejection, by the letter of the rule."""
        target = self._target(self._row.counts[0])
        if self._bar() < target[self._draft]:
            return Outcome(self._draft, 1)
        left = self._left(target)
        return Outcome(pick(left, self._draws[1] * sum(left) >> 53), 0)

    def legal(self) -> set[Outcome]:
        """By rejection, the same and what lies next to an edge."""
        found = {self.letter()}
        for count in self._row.counts:
            target = self._target(count)
            mass = target[self._draft]
            slack = self._row.slack(mass, WHOLE) if mass else 0
            if self._bar() < mass + slack:
                found.add(Outcome(self._draft, 1))
            if self._bar() >= mass - slack:
                left = self._left(target)
                free = 2 * self._row.slack(WHOLE, WHOLE)
                found |= {Outcome(i, 0) for i in near(left, self._draws[1] * sum(left) >> 53, free)}
        return found


@derives("spec_verify")
def spec_verify(v: View, got: dict[str, Any]) -> dict[str, Check]:
    names = ("seed", "position", "forced", "draft_row")
    numbers = zip(*(v[name].tolist() for name in names), strict=True)
    answers = zip(v.of(got["token"]).tolist(), v.of(got["accepted"]).tolist(), strict=True)
    letters, choices, raw, processed = [], [], [], []
    for t, (row, (seed, position, forced, at), answer) in enumerate(zip(rows_of(v), numbers, answers, strict=True)):
        draft = int(v["drafts"][at]) if at >= 0 else -1
        letter, legal = Outcome(-1, 0), {Outcome(-1, 0)}
        if row.usable and forced >= 0:
            letter = Outcome(forced, int(forced == draft))
            legal = {letter}
        elif row.usable and (draft < 0 or v.raw["coupled"]):
            plain = row.token(seed, position)
            letter = Outcome(plain, int(plain == draft))
            legal = {Outcome(token, int(token == draft)) for token in row.tokens(seed, position)}
        elif row.usable:
            judge = Judge(row, seed, position, draft, v["proposal"][at].tolist())
            letter, legal = judge.letter(), judge.legal()
        letters.append(letter)
        choices.append(legal)
        chosen = answer[0] if Outcome(*answer) in legal else letter.token
        raw.append(float(log_softmax(row.raw)[chosen]) if row.usable else math.nan)
        found = v.of(got["logprob"])[t : t + 1]
        processed.append(float(row.nearest(found, chosen)[0]) if row.usable else math.nan)
    # A token goes with its verdict: where that is legal, only tokens with it are.
    verdicts = v.of(got["accepted"]).tolist()
    tokens = []
    for legal, verdict in zip(choices, verdicts, strict=True):
        fitting = frozenset(o.token for o in legal if o.accepted == verdict)
        tokens.append(fitting or frozenset(o.token for o in legal))
    return {
        "token": Drawn(np.array([o.token for o in letters]), tuple(tokens)),
        "accepted": Drawn(
            np.array([o.accepted for o in letters]), tuple(frozenset(o.accepted for o in legal) for legal in choices)
        ),
        "logprob_raw": Ulps(np.array(raw), 4),
        "logprob": Ulps(np.array(processed), 4),
    }


@derives("draft_sample")
def draft_sample(v: View, got: dict[str, Any]) -> dict[str, Check]:
    width = v["logits"].shape[1]
    letters, legal, weights, floors = [], [], [], []
    shift = 0 if v.raw["coupled"] else 1_000_000_007
    draws = zip(rows_of(v), v["seed"].tolist(), v["position"].tolist(), v.of(got["weight"]), strict=True)
    for row, seed, position, found in draws:
        if not row.usable:
            letters.append(-1)
            legal.append(frozenset({-1}))
            weights.append(np.zeros(width))
            floors.append(np.zeros(width))
            continue
        target = uniform(seed + shift, position) >> 11
        tables = [np.array([w if i in set(row.kept(c)) else 0 for i, w in enumerate(row.weight)]) for c in row.counts]
        letters.append(pick(masses(tables[0].tolist()), target))
        slack = 2 * row.slack(WHOLE, WHOLE)
        legal.append(frozenset({letters[-1]}.union(*(near(masses(t.tolist()), target, slack) for t in tables))))
        nearest = min(tables, key=lambda table: float(np.abs(found - table).max()))
        weights.append(nearest.astype(np.float64))
        floors.append((nearest > 0).astype(np.float64))  # a weight is cut to an integer
    return {
        "token": Drawn(np.array(letters), tuple(legal)),
        "weight": Ulps(np.array(weights), 4, floor=np.array(floors)),
    }


@derives("penalize_logits")
def penalize_logits(v: View, got: dict[str, Any]) -> dict[str, Check]:
    """Two operations, so half a place of the first result may be lost before the second is rounded."""
    logits = v["logits"].copy()
    before, lost, named = logits.copy(), np.zeros(logits.shape), np.zeros(logits.shape, dtype=bool)
    columns = ("row", "token", "repetition", "minus")
    for row, token, repetition, minus in zip(*(v[name].tolist() for name in columns), strict=True):
        if row >= 0:
            old = logits[row, token]
            scaled = old / repetition if old > 0 else old * repetition
            logits[row, token] = scaled - minus
            lost[row, token] = 2.0**-24 * abs(scaled) if math.isfinite(scaled) else 0.0
            named[row, token] = True
    found = np.signbit(v.of(got["logits"]))
    same(found[~named], np.signbit(before)[~named], "penalize_logits logits, sign of untouched places")
    return {"logits": Ulps(logits, 1, floor=lost)}
