"""Derivations of the index arithmetic: plain Python loops over rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.conformance.compare import Exact
from tandem.conformance.derive.base import Check, View, derives


@derives("aux.step_inputs")
def step_inputs(v: View, got: dict[str, Any]) -> dict[str, Check]:
    rows = []
    names = ("host_ids", "host_positions", "from_device", "host_slot")
    for token, position, device, slot in zip(*(v[name].tolist() for name in names), strict=True):
        if device:
            known = v["last_token"][slot] if device == 1 else v["drafts"][slot, device - 2]
            token, position = int(known), int(v["length"][slot]) + position
        alive = slot >= 0 and token >= 0 and position < v["limit"][slot]
        rows.append((token, position, slot) if alive else (0, 0, -1))
    ids, positions, slots = np.array(rows).T
    return {"ids": Exact(ids), "positions": Exact(positions), "slot": Exact(slots)}


@derives("aux.commit")
def commit(v: View, got: dict[str, Any]) -> dict[str, Check]:
    last_token, length = v["last_token"].copy(), v["length"].copy()
    for token, slot, position in zip(v["tokens"], v["slots"], v["positions"], strict=True):
        if slot >= 0:
            last_token[slot], length[slot] = token, position + 1
    return {"last_token": Exact(last_token[:-1]), "length": Exact(length[:-1])}


@derives("aux.entry_slots")
def entry_slots(v: View, got: dict[str, Any]) -> dict[str, Check]:
    table, size, ratio = v["table"], v.raw["block_entries"], v.raw["ratio"]
    slots = []
    for position, slot in zip(v["positions"], v["slot"], strict=True):
        entry = position // ratio
        column = entry // size % table.shape[1] if v.raw["wrap"] else entry // size
        completes = slot >= 0 and position % ratio == ratio - 1
        block = table[slot, column] if completes else -1
        slots.append(block * size + entry % size if block >= 0 else -1)
    return {"slots": Exact(np.array(slots))}


@derives("aux.window_slots")
def window_slots(v: View, got: dict[str, Any]) -> dict[str, Check]:
    table, size, first = v["table"], v.raw["block_entries"], v["first"]
    rows = []
    for position, slot in zip(v["positions"], v["slot"], strict=True):
        row = []
        for p in range(position - v.raw["window"] + 1, position + 1):
            there = slot >= 0 and p >= max(0, first[slot])
            block = table[slot, p // size % table.shape[1]] if there else -1
            row.append(block * size + p % size if block >= 0 else -1)
        rows.append(row)
    return {"slots": Exact(np.array(rows))}


@derives("aux.map_entries")
def map_entries(v: View, got: dict[str, Any]) -> dict[str, Check]:
    table, size = v["table"], v.raw["block_entries"]
    rows = []
    for entries, slot in zip(v["entries"], v["slot"], strict=True):
        blocks = [table[slot, e // size] if e >= 0 and slot >= 0 else -1 for e in entries]
        rows.append([b * size + e % size if b >= 0 else -1 for b, e in zip(blocks, entries, strict=True)])
    return {"slots": Exact(np.array(rows))}


@derives("aux.visible")
def visible(v: View, got: dict[str, Any]) -> dict[str, Check]:
    ratio = v.raw["ratio"]
    counts = []
    for position, slot in zip(v["positions"], v["slot"], strict=True):
        # An entry is there once the last of its positions is.
        complete = range(ratio - 1, int(position) + 1, ratio)
        counts.append(len(complete) if slot >= 0 else 0)
    return {"lens": Exact(np.array(counts))}


@derives("aux.group_start")
def group_start(v: View, got: dict[str, Any]) -> dict[str, Check]:
    starts = [range(0, int(position) + 1, v.raw["ratio"])[-1] for position in v["positions"]]
    return {"positions": Exact(np.array(starts))}


@derives("aux.take")
def take(v: View, got: dict[str, Any]) -> dict[str, Check]:
    rows = [[row[i] if i >= 0 else -1 for i in index] for row, index in zip(v["a"], v["index"], strict=True)]
    return {"values": Exact(np.array(rows))}
