"""Derivations of the ops that carry drafts from step to step: plain Python loops over requests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tandem.conformance.compare import Exact
from tandem.conformance.derive.base import Check, View, derives


@derives("aux.accept")
def accept(v: View, got: dict[str, Any]) -> dict[str, Check]:
    last_token, length, emitted = v["last_token"].copy(), v["length"].copy(), []
    names = ("first", "count", "base", "slots")
    for first, count, base, slot in zip(*(v[name].tolist() for name in names), strict=True):
        tokens = []
        for row in range(first, first + count):
            tokens.append(v["token"][row])
            if not v["accepted"][row]:
                break
        emitted.append(len(tokens))
        if slot >= 0 and tokens:
            last_token[slot], length[slot] = tokens[-1], base + len(tokens)
    return {"emitted": Exact(np.array(emitted)), "last_token": Exact(last_token[:-1]), "length": Exact(length[:-1])}


@derives("aux.draft_commit")
def draft_commit(v: View, got: dict[str, Any]) -> dict[str, Check]:
    drafts, proposal, rates = v["drafts"].copy(), v["proposal"].copy(), v["rates"].copy()
    column, depth = v.raw["column"], drafts.shape[1]
    names = ("slots", "token", "weight", "confidence")
    for slot, token, weight, confidence in zip(*(v[name] for name in names), strict=True):
        if slot >= 0:
            drafts[slot, column] = token
            proposal[slot * depth + column] = weight
            before = rates[slot, column - 1] if column else 1.0
            rates[slot, column] = np.float32(np.float32(confidence) * np.float32(before))
    return {"drafts": Exact(drafts[:-1]), "proposal": Exact(proposal[:-1]), "rates": Exact(rates[:-1])}


@derives("aux.verify_rows")
def verify_rows(v: View, got: dict[str, Any]) -> dict[str, Check]:
    """Rows are given one at a time, each to the request whose next draft is the likeliest."""
    slots, most = v["slots"].tolist(), v["most"].tolist()
    given = [0] * len(slots)

    def next_rate(i: int) -> float:
        """Rate of the next draft of a request, -1 where it has none."""
        slot, j = slots[i], given[i]
        if slot < 0 or j >= min(most[i], v["drafts"].shape[1]) or v["drafts"][slot, j] < 0:
            return -1.0
        if v["length"][slot] + 1 + j >= v["limit"][slot] - 1:
            return -1.0
        so_far = [0.0 if math.isnan(rate) else float(rate) for rate in v["rates"][slot, : j + 1]]
        return min(so_far)

    for _ in range(v.raw["rows"] - sum(slot >= 0 for slot in slots)):
        best = max(range(len(slots)), key=lambda i: (next_rate(i), -i))
        if next_rate(best) < 0:
            break
        given[best] += 1
    rows: list[tuple[int, int, int, int]] = []
    counts = [1 + count if slot >= 0 else 0 for slot, count in zip(slots, given, strict=True)]
    for slot, count in zip(slots, counts, strict=True):
        start = len(rows)
        rows += [(slot, j, start, start + count) for j in range(count)]
    rows += [(-1, 0, at, at + 1) for at in range(len(rows), v.raw["rows"])]
    slot_, offset, start_, end = (np.array(column) for column in zip(*rows, strict=True))
    columns = {"slot": slot_, "offset": offset, "chunk_start": start_, "chunk_end": end, "counts": np.array(counts)}
    return {name: Exact(column) for name, column in columns.items()}
