"""Derivations of sampling: big integers for what is drawn, float64 for logarithms, one row at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tandem.conformance.compare import Array, Drawn, Exact, Ulps, same
from tandem.conformance.derive.base import Check, View, backward_dot, derives, exact_dot, forward_dot
from tandem.conformance.formats import ulp

WORD = 2**64
# exp is the one number that comes from a library; these many f32 places around an edge of the distribution are free.
EDGE_ULPS = 4


def splitmix(state: int) -> int:
    """One output of SplitMix64, after Steele, Lea and Flood."""
    z = (state + 0x9E3779B97F4A7C15) % WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def uniform(seed: int, position: int, case: int = 0) -> int:
    """The 53-bit integer of a draw."""
    c = (3 * position + case) * 0x9E3779B97F4A7C15 % WORD
    return splitmix((seed + (c ^ c << 13)) % WORD) >> 11


def log_softmax(d: Array) -> Array:
    """Of numbers whose maximum is 0, which is left to log1p so that a peaked row keeps its digits."""
    others = sorted(d.tolist())[:-1]
    result: Array = d - math.log1p(math.fsum(math.exp(x) for x in others))
    return result


class Row:
    """The distribution of one row by the letter of the contract; not usable where nothing can be drawn.

    Args:
        noise: share of its weight by which a token may be off, because its logit is.
    """

    def __init__(
        self, logits: Array, temperature: float, top_p: float, top_k: int, min_p: float = 0.0, noise: float = 0.0
    ) -> None:
        self.noise = noise
        logits = logits.astype(np.float32)
        best = max(logits.tolist())
        self.usable = not np.isnan(logits).any() and math.isfinite(best)
        if not self.usable:
            return
        self.order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
        greedy = np.float32(temperature) < np.float32(1e-5)
        inverse = np.float32(1) if greedy else np.float32(1) / np.float32(temperature)
        below = logits - np.float32(best)
        self.raw: Array = below.astype(np.float64)
        self.scaled: Array = np.where(np.isinf(below), below, below * inverse).astype(np.float64)
        rounded = np.exp(self.scaled).astype(np.float32).astype(np.float64)
        self.weight = [int(e * 2.0**30) for e in rounded.tolist()]
        self.inexact = any(w > 0 and d != 0.0 for w, d in zip(self.weight, self.scaled.tolist(), strict=True))
        least, share = float(np.float32(min_p)), float(np.float32(top_p))
        self.counts = [1] if greedy else self._counts(least, share, top_k)

    def _counts(self, min_p: float, top_p: float, top_k: int) -> list[int]:
        """How many tokens the filters leave, the letter of the rule first; others only next to the edges."""
        edge = round(min_p * 2**32)
        slack = 4 * self.slack(edge, 2**32) if edge else 0
        heavy = [max(1, sum(1 for w in self.weight if 4 * w >= edge + s)) for s in (0, slack, -slack)]  # the best stays
        choices = list(dict.fromkeys([heavy[0], *range(heavy[1], heavy[2] + 1)]))
        return list(dict.fromkeys(count for some in choices for count in self._prefixes(some, top_p, top_k)))

    def _prefixes(self, heavy: int, top_p: float, top_k: int) -> list[int]:
        """The same, where min-p leaves this many."""
        total = sum(self.weight[token] for token in self.order[:heavy])
        limit, before, sums = round(top_p * 2**32) * total >> 32, 0, []
        for token in self.order[:heavy]:
            sums.append(before)
            before += self.weight[token]
        slack = self.slack(limit, total)
        most = top_k if top_k >= 1 else len(sums)
        counts = [min(most, sum(1 for b in sums if b <= limit + s)) for s in (0, -slack, slack)]
        return list(dict.fromkeys([counts[0], *range(counts[1], counts[2] + 1)]))

    def slack(self, edge: int, total: int) -> int:
        """The free places around an edge, as weight; none where every weight is exact."""
        step = float(ulp(np.array(edge / total), "f32"))
        return math.ceil((EDGE_ULPS * step + self.noise) * total) if self.inexact else 0

    def kept(self, count: int) -> list[int]:
        """Tokens left, best first."""
        return self.order[:count]

    def token(self, seed: int, position: int) -> int:
        """What is drawn by the letter of the rule."""
        kept = sorted(self.kept(self.counts[0]))
        sums = np.cumsum([self.weight[i] for i in kept])
        target = uniform(seed, position) * int(sums[-1]) >> 53
        return kept[int(np.searchsorted(sums, target, side="right"))]

    def tokens(self, seed: int, position: int) -> frozenset[int]:
        """What may be drawn: the token of the rule, and its neighbours where an edge is nearer than the free places."""
        near = [self._tokens(self.kept(count), seed, position) for count in self.counts]
        return frozenset([self.token(seed, position), *(token for tokens in near for token in tokens)])

    def _tokens(self, kept: list[int], seed: int, position: int) -> list[int]:
        total = sum(self.weight[i] for i in kept)
        target, end, legal = uniform(seed, position) * total >> 53, 0, []
        for token in sorted(kept):
            start, end = end, end + self.weight[token]
            early, late = self.slack(start, total), self.slack(end, total)
            if self.weight[token] and start - early <= target < end + late:
                legal.append(token)
        return legal

    def logprobs(self, count: int) -> Array:
        """Logarithms of the distribution that is drawn from."""
        out, kept = np.full(len(self.scaled), -np.inf), self.kept(count)
        out[kept] = log_softmax(self.scaled[kept])
        return out

    def nearest(self, got: Array, token: int | None = None) -> Array:
        """Logarithms for the legal count that is nearest to what was found, of all tokens or of one."""
        choices = [self.logprobs(count) for count in self.counts]
        if token is not None:
            choices = [choice[token : token + 1] for choice in choices]
        return min(choices, key=lambda choice: _distance(got, choice))


def _distance(got: Array, want: Array) -> float:
    with np.errstate(invalid="ignore"):
        return float(np.where(got == want, 0.0, np.nan_to_num(np.abs(got - want), nan=np.inf)).max(initial=0.0))


def rows_of(v: View) -> list[Row]:
    """The rows of a call of an op that draws."""
    return [Row(logits, *numbers) for logits, numbers in zip(v["logits"], numbers_of(v), strict=True)]


def numbers_of(v: View) -> list[tuple[float, float, int, float]]:
    """Temperature, top-p, top-k and min-p of each row."""
    columns = [v[name].tolist() for name in ("temperature", "top_p", "top_k")]
    none = [0.0] * len(columns[0])
    columns.append(v["min_p"].tolist() if v.raw.get("min_p") is not None else none)
    return list(zip(*columns, strict=True))


@derives("sample")
def sample(v: View, got: dict[str, Any]) -> dict[str, Check]:
    legal, drawn, raw, processed = [], [], [], []
    draws = zip(rows_of(v), v["seed"].tolist(), v["position"].tolist(), v.of(got["token"]).tolist(), strict=True)
    found = v.of(got["logprob"])
    for t, (row, seed, position, token) in enumerate(draws):
        legal.append(row.tokens(seed, position) if row.usable else frozenset({-1}))
        drawn.append(row.token(seed, position) if row.usable else -1)
        chosen = token if token in legal[-1] else drawn[-1]  # a wrong token is told of first
        raw.append(float(log_softmax(row.raw)[chosen]) if row.usable else math.nan)
        processed.append(float(row.nearest(found[t : t + 1], chosen)[0]) if row.usable else math.nan)
    return {
        "token": Drawn(np.array(drawn), tuple(legal)),
        "logprob_raw": Ulps(np.array(raw), 4),
        "logprob": Ulps(np.array(processed), 4),
    }


@derives("head_sample")
def head_sample(v: View, got: dict[str, Any]) -> dict[str, Check]:
    """Of logits in float64: what legal sums may move a token across is free, and nothing where every sum is exact."""
    x, head = v["x"], v["head"]
    logits = exact_dot(x, head)
    exact = ((forward_dot(x, head) == logits) & (backward_dot(x, head) == logits)).all(axis=1, keepdims=True)
    lost = np.where(exact, 0.0, x.shape[1] * 2.0**-24 * exact_dot(np.abs(x), np.abs(head)))
    legal, drawn = [], []
    places = zip(logits, lost, numbers_of(v), v["seed"].tolist(), v["position"].tolist(), strict=True)
    for values, off, numbers, seed, position in places:
        temperature = numbers[0]
        greedy = temperature < 1e-5
        noise = 0.0 if greedy else math.expm1(min(2.0 * float(np.nan_to_num(off).max()) / temperature, 1.0))
        row = Row(values, *numbers, noise)
        drawn.append(row.token(seed, position) if row.usable else -1)
        if not row.usable:
            legal.append(frozenset({-1}))
        elif greedy and off.any():
            legal.append(frozenset(np.flatnonzero(values + off >= (values - off).max()).tolist()))
        else:
            legal.append(row.tokens(seed, position))
    return {"token": Drawn(np.array(drawn), tuple(legal))}


@derives("process_logits")
def process_logits(v: View, got: dict[str, Any]) -> dict[str, Check]:
    width = v["logits"].shape[1]
    pairs = zip(rows_of(v), v.of(got["logprobs"]), strict=True)
    table = [row.nearest(found) if row.usable else np.full(width, math.nan) for row, found in pairs]
    return {"logprobs": Ulps(np.array(table), 4)}


@derives("top_logprobs")
def top_logprobs(v: View, got: dict[str, Any]) -> dict[str, Check]:
    n, ids, best = v.raw["n"], [], []
    for row in v["values"].tolist():
        choices = [i for i, value in enumerate(row) if not math.isnan(value) and value != -math.inf]
        order: list[tuple[float, int]] = sorted((-row[i], i) for i in choices)[:n]
        missing = n - len(order)
        ids.append([i for _, i in order] + [-1] * missing)
        best.append([row[i] for _, i in order] + [-math.inf] * missing)
    return {"ids": Exact(np.array(ids)), "logprobs": Exact(np.array(best))}


@derives("adjust_logits")
def adjust_logits(v: View, got: dict[str, Any]) -> dict[str, Check]:
    """Places that are named once are rounded once; where several values meet, their order is free."""
    logits, count = v["logits"].copy(), np.zeros(v["logits"].shape, dtype=int)
    before, size = logits.copy(), np.abs(logits)
    for row, token, value in zip(v["row"].tolist(), v["token"].tolist(), v["value"].tolist(), strict=True):
        if row >= 0:
            logits[row, token] += value
            size[row, token] += abs(value)
            count[row, token] += 1
    found, untouched, free = v.of(got["logits"]), count == 0, count > 1
    rounded = logits.astype(np.float32).astype(np.float64)
    same(np.where(free, rounded, found), rounded, "adjust_logits logits, places named once at most")
    same(np.signbit(found[untouched]), np.signbit(before[untouched]), "adjust_logits logits, sign of untouched places")
    lost = np.where(free & np.isfinite(size), (count + 1) * 2.0**-24 * size, 0.0)
    return {"logits": Ulps(logits, 1, floor=lost)}


@derives("mask_logits")
def mask_logits(v: View, got: dict[str, Any]) -> dict[str, Check]:
    logits = v["logits"].copy()
    for row, words in enumerate(v["bits"].tolist()):
        for token in range(logits.shape[1]):
            if not words[token // 32] % 2**32 >> token % 32 & 1:
                logits[row, token] = -np.inf
    return {"logits": Exact(logits)}
