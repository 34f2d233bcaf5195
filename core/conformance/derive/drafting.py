"""Derivations of the draft module's own ops: loops over rows, float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.conformance.compare import Accumulated, Array, Exact, Ulps
from tandem.conformance.derive.base import Check, Dot, View, accumulated, derives, logistic, short_sum


@derives("aux.draft_rows")
def draft_rows(v: View, got: dict[str, Any]) -> dict[str, Check]:
    block, noise = v.raw["block"], v.raw["noise"]
    rows, keys = [], []
    for anchor, position, slot in zip(*(v[name].tolist() for name in ("anchor", "position", "slot")), strict=True):
        if slot < 0 or anchor < 0:
            rows.append([(0, 0, -1, 0, -1)] * block)
            keys.append([[-1] * block] * block)
            continue
        tokens = [anchor] + [noise] * (block - 1)
        rows.append([(t, position + i, slot, position - 1, slot * block + i) for i, t in enumerate(tokens)])
        keys.append([[slot * block + j for j in range(block)]] * block)
    names = ("ids", "positions", "row_slot", "context", "own")
    columns = dict(zip(names, np.moveaxis(np.array(rows), -1, 0), strict=True)) | {"keys": np.array(keys)}
    return {name: Exact(column) for name, column in columns.items()}


@derives("draft_heads")
def draft_heads(v: View, got: dict[str, Any]) -> dict[str, Check]:
    """Rows without a token before them are minus infinity and 0."""
    previous, temperature = v["previous"], v.raw["temperature"]
    known = previous >= 0
    embedded = np.where(known[:, None], v["embedding"][previous], 0.0)
    base, hidden = (np.where(known[:, None], v[name], 0.0) for name in ("base", "hidden"))

    def logits(dot: Dot) -> Array:
        total: Array = base + dot(embedded, v["head"])
        return total

    made = accumulated(logits)
    terms = np.concatenate((hidden, embedded), axis=1) * v["proj"]
    total, lost = short_sum(terms, axis=1)
    rate = logistic(np.clip(total / temperature, -60.0, 60.0))
    # The slope of the logistic function turns what the sum may lose into what the rate may.
    floor = lost / temperature * rate * (1.0 - rate)
    return {
        "logits": Accumulated(np.where(known[:, None], made.value, -np.inf), made.floor),
        "confidence": Ulps(np.where(known, rate, 0.0), 4, floor=np.where(known, floor, 0.0)),
    }
