"""Derivations of the mixture-of-experts ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.conformance.compare import Accumulated, Array, Exact, Quantised, Selected, Ulps
from tandem.conformance.derive.base import Check, Dot, View, accumulated, derives, exact_dot, logistic, short_sum
from tandem.conformance.formats import decode, encode, round_bf16


def affinity(logits: Array) -> Array:
    """sqrt(log(1 + exp(x)))."""
    score: Array = np.sqrt(np.logaddexp(0.0, logits))
    return score


def choose(scores: Array, bias: Array, k: int) -> list[int]:
    """The k best by score plus bias, best first, the lower index on ties."""
    return sorted(range(len(scores)), key=lambda e: (-(scores[e] + bias[e]), e))[:k]


@derives("moe_route")
def moe_route(v: View, got: dict[str, Any]) -> dict[str, Check]:
    x, gate, k = v["x"], v["gate"], v.raw["k"]
    logits = accumulated(lambda dot: dot(x, gate))
    scores = affinity(logits.value)
    biases = [v["bias_vl"] if role else v["bias"] for role in v["roles"]]
    total = scores + np.array(biases)
    best = np.array([choose(scores[t], biases[t], k) for t in range(len(x))])
    found = v.of(got["experts"])
    chosen = np.where((found >= 0) & (found < len(total[0])), found, best)  # those that do not exist are named below

    def weights(dot: Dot) -> Array:
        share = np.take_along_axis(affinity(dot(x, gate)), chosen, axis=1)
        weight: Array = share / share.sum(axis=1, keepdims=True) * v.raw["scaling"]
        return weight

    slack = 2 * logits.floor[:, 0]
    return {"experts": Selected(best, total, slack), "weights": accumulated(weights, 4)}


@derives("moe_dispatch")
def moe_dispatch(v: View, got: dict[str, Any]) -> dict[str, Check]:
    experts, slots, (first, last) = v["experts"], v["row_slot"], v.raw["local"]
    k = experts.shape[1]
    sent = sorted(
        (int(experts[t, i]), t, i)
        for t in range(len(experts))
        for i in range(k)
        if slots[t] >= 0 and first <= experts[t, i] < last
    )
    source = np.full(experts.shape, -1)
    for place, (_, t, i) in enumerate(sent):
        source[t, i] = place
    plain = v.raw["xq"]
    tokens = [t for _, t, _ in sent]
    ends = np.cumsum([sum(e == owner for e, _, _ in sent) for owner in range(first, last)])
    return {
        "batch.x.data": Exact(plain.data.numpy()[tokens]),
        "batch.x.scale": Exact(plain.scale.numpy()[tokens]),
        "batch.weight": Exact(np.array([v["weights"][t, i] for _, t, i in sent])),
        "batch.ends": Exact(ends),
        "batch.source": Exact(source),
    }


def by_expert(x: Array, w: Array, ends: Array, dot: Dot) -> Array:
    """Each row times the weight of the expert whose range it lies in; zero past the last range."""
    y = np.zeros((len(x), w.shape[1]))
    start = 0
    for expert, end in enumerate(ends):
        for row in range(start, end):
            y[row] = dot(x[row : row + 1], w[expert])[0]
        start = end
    return y


@derives("grouped_linear")
def grouped_linear(v: View, got: dict[str, Any]) -> dict[str, Check]:
    return {"y": accumulated(lambda dot: by_expert(v["x"], v["weight"], v["ends"], dot))}


def gated(gate: Array, up: Array, limit: float, weight: Array | None) -> Array:
    """The gated activation, its clamp on one side for the gate and on both for the other factor."""
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    product: Array = gate * logistic(gate) * up
    return product if weight is None else product * weight[:, None]


@derives("swiglu_quant")
def swiglu_quant(v: View, got: dict[str, Any]) -> dict[str, Check]:
    weight = None if v.raw.get("weight") is None else v["weight"]
    product = gated(v["gate"], v["up"], v.raw["limit"], weight)
    return {"q": Quantised(*encode(product, "mxfp8"), "mxfp8")}


def expert_chain(x: Array, weight: Array, ends: Array, w: tuple[Array, Array, Array], limit: float, dot: Dot) -> Array:
    """Experts on sorted rows: two products rounded to bf16, gated, quantised, the third product."""
    gate, up = (round_bf16(by_expert(x, matrix, ends, dot)) for matrix in w[:2])
    hidden = decode(*encode(gated(gate, up, limit, weight), "mxfp8"), "mxfp8")
    return by_expert(hidden, w[2], ends, dot)


@derives("moe_experts")
def moe_experts(v: View, got: dict[str, Any]) -> dict[str, Check]:
    batch = v.raw["batch"]
    x, weight, ends = v.of(batch.x), v.of(batch.weight), v.of(batch.ends)
    w = (v["w1"], v["w3"], v["w2"])
    return {"y": accumulated(lambda dot: expert_chain(x, weight, ends, w, v.raw["limit"], dot))}


@derives("moe_combine")
def moe_combine(v: View, got: dict[str, Any]) -> dict[str, Check]:
    source, y = v.of(v.raw["batch"].source), v["y"]
    terms = np.concatenate((y, np.zeros((1, y.shape[1]))))[source]  # -1 is the row of zeros
    if v.raw["shared"] is not None:
        terms = np.concatenate((terms, v["shared"][:, None]), axis=1)
    total, lost = short_sum(terms, axis=1)
    return {"y": Ulps(total, 1, floor=lost)}


@derives("moe_block")
def moe_block(v: View, got: dict[str, Any]) -> dict[str, Check]:
    """Token by token: the shared expert plus the chosen experts that are held here."""
    p = v.raw["weights"]
    x, xq, first = v["x"], v["xq"], p.local[0]
    routed = (v.of(p.w1), v.of(p.w3), v.of(p.w2))
    shared = (v.of(p.shared_w1)[None], v.of(p.shared_w3)[None], v.of(p.shared_w2)[None])
    scores = affinity(exact_dot(x, v.of(p.gate)))

    def compute(dot: Dot) -> Array:
        rows = []
        for t in range(len(x)):
            row, one = xq[t : t + 1], np.array([1])
            total = round_bf16(expert_chain(row, np.ones(1), one, shared, p.limit, dot)[0])
            chosen = choose(scores[t], v.of(p.bias_vl if v["roles"][t] else p.bias), p.k)
            share = scores[t][chosen] / scores[t][chosen].sum() * p.scaling
            for e, s in zip(chosen, share, strict=True):
                if v["row_slot"][t] >= 0 and p.local[0] <= e < p.local[1]:
                    held = slice(e - first, e - first + 1)
                    w = (routed[0][held], routed[1][held], routed[2][held])
                    total = total + round_bf16(expert_chain(row, np.array([s]), one, w, p.limit, dot)[0])
            rows.append(total)
        return np.array(rows)

    return {"y": _several_roundings(accumulated(compute))}


def _several_roundings(check: Accumulated) -> Accumulated:
    """Up to three expert outputs of about the row's size are rounded before the last rounding."""
    return Accumulated(check.value, check.floor, 2)
