"""Workloads of the ops around the graph: bookkeeping of a step, logits, drafts."""

from __future__ import annotations

from typing import Any

from tandem.contract.types import QFormat, WeightKind
from tools.kernels import workloads as w
from tools.kernels.workloads import Maker, Phase, call


def _verified(p: Phase) -> int:
    """Rows that draw when every request verifies a block."""
    return p.requests * (1 + w.DRAFTS)


@call("aux.group_start")
def _group_start(m: Maker, p: Phase) -> dict[str, Any]:
    return {"positions": m.i32(p.rows), "ratio": 2}


@call("aux.visible")
def _visible(m: Maker, p: Phase) -> dict[str, Any]:
    return {"positions": m.i32(p.rows), "slot": m.i32(p.rows), "ratio": 2}


@call("aux.entry_slots")
def _entry_slots(m: Maker, p: Phase) -> dict[str, Any]:
    more = {"block_entries": w.BLOCK, "ratio": 2, "wrap": False}
    return {"positions": m.i32(p.rows), "slot": m.i32(p.rows), "table": m.table(p), **more}


@call("aux.map_entries")
def _map(m: Maker, p: Phase) -> dict[str, Any]:
    entries, slot = m.i32(p.rows, w.TOP_K), m.i32(p.rows)
    return {"entries": entries, "slot": slot, "table": m.table(p), "block_entries": w.BLOCK}


@call("aux.take")
def _take(m: Maker, p: Phase) -> dict[str, Any]:
    pool = min(w.POOL_BLOCKS * w.POOL_BLOCK, p.context)
    return {"a": m.i32(p.rows, pool), "index": m.i32(p.rows, w.TOP_K)}


@call("aux.window_slots")
def _window(m: Maker, p: Phase) -> dict[str, Any]:
    state = {"table": m.i32(p.requests + 1, 3), "first": m.i32(p.requests + 1)}
    return {
        "positions": m.i32(p.rows), "slot": m.i32(p.rows), **state, "block_entries": w.BLOCK, "window": w.WINDOW
    }  # fmt: skip


@call("aux.step_inputs")
def _inputs(m: Maker, p: Phase) -> dict[str, Any]:
    hosts = {name: m.i32(p.rows) for name in ("host_ids", "host_positions", "from_device", "host_slot")}
    states = {name: m.i32(p.requests + 1) for name in ("last_token", "length", "limit")}
    return hosts | states | {"drafts": m.i32(p.requests + 1, w.DRAFTS)}


@call("aux.verify_rows")
def _verify_rows(m: Maker, p: Phase) -> dict[str, Any]:
    slots, states = p.requests, p.requests + 1
    more = {"length": m.i32(states), "limit": m.i32(states), "most": m.i32(slots), "rows": _verified(p)}
    drafts = {"rates": m.f32(states, w.DRAFTS), "drafts": m.i32(states, w.DRAFTS)}
    return {"slots": m.i32(slots), **drafts, **more}


@call("aux.accept")
def _accept(m: Maker, p: Phase) -> dict[str, Any]:
    rows, count = _verified(p), p.requests
    by_entry = {name: m.i32(count) for name in ("first", "count", "base", "slots")}
    states = {name: m.i32(count + 1) for name in ("last_token", "length")}
    return {"token": m.i32(rows), "accepted": m.i32(rows), **by_entry, **states}


@call("aux.commit")
def _commit(m: Maker, p: Phase) -> dict[str, Any]:
    rows = {name: m.i32(p.requests) for name in ("tokens", "slots", "positions")}
    return rows | {name: m.i32(p.requests + 1) for name in ("last_token", "length")}


@call("aux.draft_rows")
def _draft_rows(m: Maker, p: Phase) -> dict[str, Any]:
    rows = {name: m.i32(p.requests) for name in ("anchor", "position", "slot")}
    return rows | {"block": w.DRAFTS, "noise": 128799}


@call("aux.draft_commit")
def _draft_commit(m: Maker, p: Phase) -> dict[str, Any]:
    count, states = p.requests, p.requests + 1
    drawn = {"slots": m.i32(count), "column": 2, "token": m.i32(count), "weight": m.i32(count, w.VOCAB)}
    held = {"drafts": m.i32(states, w.DRAFTS), "proposal": m.i32(states * w.DRAFTS, w.VOCAB)}
    return {**drawn, "confidence": m.f32(count), **held, "rates": m.f32(states, w.DRAFTS)}


@call("draft_heads")
def _heads(m: Maker, p: Phase) -> dict[str, Any]:
    count = p.requests
    embedding = m.weight(WeightKind.EMBED, QFormat.BF16, w.VOCAB, w.RANK)
    head, proj = m.linear(QFormat.BF16, w.VOCAB, w.RANK), m.f32(w.HIDDEN + w.RANK)
    rows = {"base": m.f32(count, w.VOCAB), "hidden": m.bf16(count, w.HIDDEN), "previous": m.i32(count)}
    return {**rows, "embedding": embedding, "head": head, "proj": proj, "temperature": 1.0}


def _logits(m: Maker, rows: int) -> dict[str, Any]:
    return {"logits": m.f32(rows, w.VOCAB)}


def _cells(m: Maker, p: Phase, *values: str) -> dict[str, Any]:
    count = p.requests * 64
    cells = {"row": m.i32(count), "token": m.i32(count)}
    return _logits(m, p.requests) | cells | {name: m.f32(count) for name in values}


@call("adjust_logits")
def _adjust(m: Maker, p: Phase) -> dict[str, Any]:
    return _cells(m, p, "value")


@call("penalize_logits")
def _penalize(m: Maker, p: Phase) -> dict[str, Any]:
    return _cells(m, p, "repetition", "minus")


@call("mask_logits")
def _mask(m: Maker, p: Phase) -> dict[str, Any]:
    return _logits(m, p.requests) | {"bits": m.i32(p.requests, -(-w.VOCAB // 32))}


@call("process_logits")
def _process(m: Maker, p: Phase) -> dict[str, Any]:
    numbers = m.numbers(p.requests)
    first = {name: numbers[name] for name in ("temperature", "top_p", "top_k")}
    return _logits(m, p.requests) | first | {"filtered": True, "min_p": numbers["min_p"]}


@call("sample", "filtered")
def _sample(m: Maker, p: Phase) -> dict[str, Any]:
    numbers = m.numbers(p.requests)
    min_p = numbers.pop("min_p")
    return _logits(m, p.requests) | numbers | {"filtered": True, "min_p": min_p}


@call("sample", "plain")
def _sample_plain(m: Maker, p: Phase) -> dict[str, Any]:
    return _sample(m, p) | {"filtered": False, "min_p": None}


@call("draft_sample")
def _draft_sample(m: Maker, p: Phase) -> dict[str, Any]:
    return _logits(m, p.requests) | m.numbers(p.requests) | {"coupled": False, "filtered": True}


@call("spec_verify")
def _spec_verify(m: Maker, p: Phase) -> dict[str, Any]:
    rows, drafts = _verified(p), p.requests * w.DRAFTS
    verified = {"forced": m.i32(rows), "drafts": m.i32(drafts), "proposal": m.i32(drafts, w.VOCAB)}
    more = {"draft_row": m.i32(rows), "coupled": False, "filtered": True}
    return _logits(m, rows) | m.numbers(rows) | verified | more


@call("top_logprobs")
def _top(m: Maker, p: Phase) -> dict[str, Any]:
    return {"values": m.f32(p.requests, w.VOCAB), "n": 20}
