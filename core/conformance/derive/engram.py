"""Derivations of the Engram ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tandem.conformance.compare import Accumulated, Array, Exact, same
from tandem.conformance.derive.base import Check, Dot, View, accumulated, derives, logistic, mean_square


@derives("engram_context")
def engram_context(v: View, got: dict[str, Any]) -> dict[str, Check]:
    """Token by token: a dictionary of what each request saw at each position."""
    rows, vocabulary, n, pad = v.raw["rows"], v["vocabulary"], v.raw["n"], v.raw["pad"]
    history = v["history"].copy()
    ring = history.shape[1]
    columns = (rows.ids, rows.positions, rows.slot, rows.chunk_start, rows.roles)
    context, seen = [], {}
    for t, (token, position, slot, start, role) in enumerate(zip(*(v.of(c) for c in columns), strict=True)):
        own = -1 if role else int(vocabulary[token])
        seen[slot, position] = own
        line, blocked = [], False
        for back in range(n):
            at = position - back
            if at < 0 or blocked:
                blocked = True
            else:
                past = seen[slot, at] if back <= t - start else int(history[slot, at % ring])
                blocked = past < 0
            line.append(pad if blocked else past)
        context.append(line)
    for (slot, position), token in seen.items():  # insertion order: the latest of a ring place wins
        if slot >= 0:
            history[slot, position % ring] = token
    return {"context": Exact(np.array(context)), "history": Exact(history[:-1])}


@derives("engram_hash")
def engram_hash(v: View, got: dict[str, Any]) -> dict[str, Check]:
    multipliers, primes, offsets = (v[name].tolist() for name in ("multipliers", "primes", "offsets"))
    rows = []
    for tokens in v["context"].tolist():
        mixed, line = tokens[0] * multipliers[0], []
        for s in range(1, len(tokens)):
            mixed ^= tokens[s] * multipliers[s]
            if mixed >= 2**63:
                raise ValueError("the case needs integers that wrap, which this derivation does not do")
            line += [mixed % p + o for p, o in zip(primes[s - 1], offsets[s - 1], strict=True)]
        rows.append(line)
    return {"rows": Exact(np.array(rows))}


@derives("engram_gather")
def engram_gather(v: View, got: dict[str, Any]) -> dict[str, Check]:
    table = v.raw["table"].weight
    index = v["rows"] - v.raw["first_row"]
    flat = (len(index), -1)
    return {
        "q.data": Exact(table.data.numpy()[index].reshape(flat)),
        "q.scale": Exact(table.scale.numpy()[index].reshape(flat)),
    }


@derives("engram_gate")
def engram_gate(v: View, got: dict[str, Any]) -> dict[str, Check]:
    trunk, qk, eps, roles = v["trunk"], v["qk"], v.raw["eps"], v["roles"]
    rows, m, width = trunk.shape
    kv = v["kv"].reshape(rows, m + 1, width)

    def compute(dot: Dot) -> Array:
        result = trunk.copy()
        for t in range(rows):
            for j in range(m if roles[t] == 0 else 0):
                h, key = trunk[t, j], kv[t, j]
                s = float(dot((h * qk[j])[None], key[None])[0, 0])
                s /= float(np.sqrt(mean_square(h) + eps)[0] * np.sqrt(mean_square(key) + eps)[0]) * math.sqrt(width)
                root = math.copysign(math.sqrt(max(abs(s), 1e-6)), s)
                result[t, j] = h + logistic(np.array(root)) * kv[t, m]
        return result

    check = accumulated(compute)
    passed = roles != 0
    same(v.of(got["trunk"])[passed], trunk[passed], "engram_gate trunk, rows of images")
    return {"trunk": Accumulated(check.value, check.floor)}
