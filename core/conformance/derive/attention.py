"""Derivations of caches, compression, index and attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tandem.conformance.compare import Accumulated, AccumulatedCodes, Array, Entries, Exact, Quantised, Ulps
from tandem.conformance.derive.base import (
    Check,
    Dot,
    View,
    accumulated,
    derives,
    exact_dot,
    normalise,
    rotate,
    short_sum,
)
from tandem.conformance.formats import encode, round_bf16

Held = Callable[[Array, float], Array]
Turn = Callable[[Array], Array]


def stored(v: View, x: Array) -> Array:
    """Bytes of the cache after the rows x went to their slots, everything else as it was."""
    cache = v.raw["cache"]
    image: Array = cache.image(v.poison)
    codes, scales = encode(x, cache.layout.fmt.value)
    for t, slot in enumerate(v["slots"]):
        if slot >= 0:
            image[slot] = np.concatenate((codes[t], scales[t]))
    return image


@derives("kv_store")
def kv_store(v: View, got: dict[str, Any]) -> dict[str, Check]:
    x = np.where(v["slots"][:, None] >= 0, v["x"], 0.0)
    return {"cache": Exact(stored(v, x))}


@derives("kv_load")
def kv_load(v: View, got: dict[str, Any]) -> dict[str, Check]:
    entries, slots = v["cache"], v["slots"]
    rows = [entries[s] if s >= 0 else np.zeros(entries.shape[1]) for s in slots.ravel()]
    return {"x": Exact(np.array(rows).reshape(*slots.shape, -1))}


@derives("kv_write")
def kv_write(v: View, got: dict[str, Any]) -> dict[str, Check]:
    live = v["slots"] >= 0
    normed = np.where(live[:, None], v.of(got["normed"]), 0.0)
    rotated = round_bf16(rotate(normed[:, None], v["cos_sin"])[:, 0])
    wanted = normalise(np.where(live[:, None], v["x"], 0.0), v["norm_weight"], v.raw["eps"])
    layout = v.raw["cache"].layout
    image, target = stored(v, rotated), v["slots"][live]
    cache = Entries(image, target, layout.data_bytes, layout.fmt.value)
    return {"normed": Ulps(wanted, 1, live), "cache": cache}


@derives("compress_update")
def compress_update(v: View, got: dict[str, Any]) -> dict[str, Check]:
    """Token by token: remember (gate, value) by position, pool the last r at the end of a group."""
    rows, ratio = v.raw["rows"], v.raw["ratio"]
    gate, value, state = v["gate"], v["value"], v["state"].copy()
    ring = state.shape[1]
    latent, lost, complete = np.zeros(value.shape), np.zeros(value.shape), np.zeros(len(value), dtype=bool)
    for t, (slot, position) in enumerate(zip(v.of(rows.slot), v.of(rows.positions), strict=True)):
        if slot < 0:
            continue
        state[slot, position % ring, 0], state[slot, position % ring, 1] = gate[t], value[t]
        if (position + 1) % ratio:
            continue
        complete[t] = True
        group = [state[slot, p % ring] for p in range(position - ratio + 1, position + 1)]
        for d in range(value.shape[1]):
            weights = [math.exp(float(entry[0, d])) for entry in group]
            shares = [w / sum(weights) * float(entry[1, d]) for w, entry in zip(weights, group, strict=True)]
            latent[t, d], lost[t, d] = short_sum(np.array(shares), axis=0)
    return {"latent": Ulps(latent, 4, complete, lost), "state": Exact(state[:-1])}


@derives("index_query")
def index_query(v: View, got: dict[str, Any]) -> dict[str, Check]:
    x = v["x"]
    heads = x.reshape(len(x), v.raw["heads"], -1)
    rotated = round_bf16(rotate(heads, v["cos_sin"])).reshape(x.shape)
    return {"q": Quantised(*encode(rotated, "mxfp4"), "mxfp4")}


def index_row(v: View, t: int, entries: list[int], add: type) -> list[float]:
    """Scores of one row; -1 gives -inf.  Heads are added in the arithmetic of `add`."""
    cache, table = v.raw["cache"], v["table"]
    keys, query, w, slot = v["cache"], v["q"][t], v["w"][t], v["row_slot"][t]
    size, scores = cache.layout.block_entries, []
    for entry in entries:
        if entry < 0 or slot < 0:
            scores.append(-math.inf)
            continue
        key = keys[table[slot, entry // size] * size + entry % size]
        total = add(0.0)
        for h, q in enumerate(query.reshape(len(w), -1)):
            total = add(total + add(add(w[h]) * add(max(float(q @ key), 0.0))))
        scores.append(float(total))
    return scores


def index_check(v: View, entries: list[list[int]]) -> Check:
    """Heads added in f32, in their order, is the only legal order; float64 is the exact value."""
    value, single = (
        np.array([index_row(v, t, row, add) for t, row in enumerate(entries)]) for add in (float, np.float32)
    )
    visible = np.isfinite(value)
    error = np.abs(np.where(visible, single, 0.0) - np.where(visible, value, 0.0))
    return Accumulated(value, error.max(axis=1, keepdims=True))


@derives("index_scores")
def index_scores(v: View, got: dict[str, Any]) -> dict[str, Check]:
    width = v.raw["width"]
    return {"scores": index_check(v, [[j if j < n else -1 for j in range(width)] for n in v["lens"]])}


@derives("index_scores_at")
def index_scores_at(v: View, got: dict[str, Any]) -> dict[str, Check]:
    return {"scores": index_check(v, v["entries"].tolist())}


@derives("block_max")
def block_max(v: View, got: dict[str, Any]) -> dict[str, Check]:
    scores, size = v["scores"], v.raw["block"]
    rows = []
    for row, visible in zip(scores, v["lens"], strict=True):
        blocks = []
        for start in range(0, len(row), size):
            numbers = [x for x in row[start : start + size] if not math.isnan(x)]
            best = min(max(numbers, default=-math.inf), (2 - 2.0**-7) * 2.0**127)
            last = start <= visible - 1 < start + size
            blocks.append(math.inf if last else best if start < visible else -math.inf)
        rows.append(blocks)
    return {"blocks": Exact(np.array(rows))}


@derives("topk_index")
def topk_index(v: View, got: dict[str, Any]) -> dict[str, Check]:
    k, rows = v.raw["k"], []
    for row in v["scores"]:
        usable = [i for i, x in enumerate(row) if not math.isnan(x) and x > -math.inf]
        order: list[tuple[float, int]] = sorted((-float(row[i]), i) for i in usable)
        best = sorted(i for _, i in order[:k])
        rows.append(best + [-1] * (k - len(best)))
    return {"index": Exact(np.array(rows))}


@derives("pool_expand")
def pool_expand(v: View, got: dict[str, Any]) -> dict[str, Check]:
    size, rows = v.raw["block"], []
    for blocks, visible in zip(v["blocks"], v["lens"], strict=True):
        entries = [b * size + i if b >= 0 else -1 for b in blocks for i in range(size)]
        rows.append([e if e < visible else -1 for e in entries])
    return {"entries": Exact(np.array(rows))}


# Legal ways to round the weights of a softmax to bf16 before their product with values: with the largest of them and of
# the sink's as 1, with the largest of them as 1, and as shares of the total.
BF16: tuple[Held, ...] = (
    lambda weights, total: round_bf16(weights),
    lambda weights, total: round_bf16(weights / weights.max()) * weights.max(),
    lambda weights, total: round_bf16(weights / total) * total,
)


def attention(v: View, q: Array, dot: Dot, held: Held | None = None) -> Array:
    """Softmax attention with a sink, one row and head at a time, over the slots that are there."""
    window, sink, scale = v["window"], v["sink"], v.raw["scale"]
    main = None if v.raw["main"] is None else v["main"]
    output = np.zeros(q.shape)
    for t in range(len(q)):
        keys = [window[s] for s in v["window_slots"][t] if s >= 0]
        if main is not None:
            keys += [main[s] for s in v["main_slots"][t] if s >= 0]
        if not keys:
            continue
        stack = np.array(keys)
        for h in range(q.shape[1]):
            scores = dot(q[t, h : h + 1], stack)[0] * scale
            peak = max(scores.max(), sink[h])
            weights = np.exp(scores - peak)
            total = float(weights.sum() + math.exp(sink[h] - peak))
            if held is not None:
                weights = held(weights, total)
            output[t, h] = dot(weights[None], stack.T)[0] / total
    return output


def attended(v: View, q: Array, turn: Turn, n: int) -> Accumulated:
    """Class A of attention that is turned after it."""
    narrow = [turn(attention(v, q, exact_dot, held)) for held in BF16]
    return accumulated(lambda dot: turn(attention(v, q, dot)), n, narrow)


@derives("sparse_attn")
def sparse_attn(v: View, got: dict[str, Any]) -> dict[str, Check]:
    return {"o": attended(v, v["q"], lambda o: o, 1)}


@derives("attn_block")
def attn_block(v: View, got: dict[str, Any]) -> dict[str, Check]:
    """Two roundings to bf16 may lie between the sums and the codes, after attention and after the rotation."""
    q = round_bf16(rotate(v["q"], v["cos_sin"]))
    before = attended(v, q, lambda o: rotate(o, v["cos_sin"], inverse=True), 2)
    value, rows = before.value, len(q)
    unit = np.broadcast_to(before.unit("bf16"), value.shape)
    return {"q": AccumulatedCodes(value.reshape(rows, -1), unit.reshape(rows, -1))}
