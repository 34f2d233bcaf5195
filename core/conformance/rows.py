"""Which arguments of an op have one entry per row, and how to take rows of a call, as data of a case."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from tandem.contract.cases import PartlyUsed
from tandem.contract.types import MoEBatch, QTensor

Tensor = torch.Tensor

# Ops whose rows are independent of each other.  Of the others, chunks.py has those whose rows are computed from
# neighbours or sorted; the rest copies.
_DRAWN = ("logits", "temperature", "top_p", "top_k", "min_p", "seed", "position")
ROW_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "attn_block": ("q", "cos_sin", "window_slots", "main_slots"),
    "aux.draft_rows": ("anchor", "position", "slot"),
    "aux.entry_slots": ("positions", "slot"),
    "aux.group_start": ("positions",),
    "aux.map_entries": ("entries", "slot"),
    "aux.step_inputs": ("host_ids", "host_positions", "from_device", "host_slot"),
    "aux.take": ("a", "index"),
    "aux.visible": ("positions", "slot"),
    "aux.window_slots": ("positions", "slot"),
    "block_max": ("scores", "lens"),
    "dequantize": ("q",),
    "draft_heads": ("base", "hidden", "previous"),
    "draft_sample": _DRAWN,
    "embed": ("ids", "override_index"),
    "engram_gate": ("trunk", "kv", "roles"),
    "engram_gather": ("rows",),
    "engram_hash": ("context",),
    "gather_rows": ("index",),
    "group_linear": ("x",),
    "hc_collapse": ("trunk", "pre"),
    "hc_enter": ("trunk", "pre_prev"),
    "hc_expand": ("x",),
    "hc_mean": ("trunk",),
    "hc_mix": ("trunk",),
    "hc_post": ("y", "trunk", "post", "comb"),
    "hc_step": ("y", "trunk", "mix"),
    "head_sample": ("x", *_DRAWN[1:]),
    "index_query": ("x", "cos_sin"),
    "index_scores": ("q", "w", "row_slot", "lens"),
    "index_scores_at": ("q", "w", "row_slot", "entries"),
    "kv_load": ("slots",),
    "kv_store": ("x", "slots"),
    "kv_write": ("x", "cos_sin", "slots"),
    "linear": ("x",),
    "moe_block": ("x", "xq", "row_slot", "roles"),
    "moe_combine": ("batch", "shared"),
    "mask_logits": ("logits", "bits"),
    "moe_route": ("x", "roles"),
    "pool_expand": ("blocks", "lens"),
    "process_logits": _DRAWN[:5],
    "quantize": ("x",),
    "rms_norm": ("x",),
    "rope": ("x", "cos_sin"),
    "sample": _DRAWN,
    "sparse_attn": ("q", "window_slots", "main_slots"),
    "spec_verify": (*_DRAWN, "forced", "draft_row"),
    "swiglu_quant": ("gate", "up", "weight"),
    "top_logprobs": ("values",),
    "topk_index": ("scores",),
}

# The argument that says which rows are padding when it is negative.
SLOT_ARGUMENTS = {"index_scores": "row_slot", "index_scores_at": "row_slot", "moe_block": "row_slot"}
MANY = 256  # rows of the largest tiles
COPIES = frozenset(
    {
        *("adjust_logits", "aux.accept", "aux.commit", "aux.draft_commit", "aux.verify_rows", "moe_dispatch"),
        *("penalize_logits", "scatter_rows"),
    }
)


def take(value: Any, index: Tensor) -> Any:
    """Rows of an argument."""
    if isinstance(value, Tensor):
        return value.index_select(0, index)
    if isinstance(value, QTensor):
        return value.take_rows(index)
    if isinstance(value, PartlyUsed):
        return PartlyUsed(value.value.index_select(0, index), value.used.index_select(0, index))
    if isinstance(value, MoEBatch):
        return dataclasses.replace(value, source=value.source.index_select(0, index))
    if isinstance(value, tuple):
        return type(value)(*(take(item, index) for item in value))
    return value


def cut(op: str, data: dict[str, Any], index: Tensor) -> dict[str, Any]:
    """The arguments that change when a call is made for these rows only."""
    return {name: take(data[name], index) for name in ROW_ARGUMENTS[op] if name in data}


def row_count(op: str, data: dict[str, Any]) -> int:
    """Number of rows of a call."""
    first = data[ROW_ARGUMENTS[op][0]]
    if isinstance(first, PartlyUsed):
        first = first.value
    rows = first.source if isinstance(first, MoEBatch) else first
    return int(rows.shape[0])


def selections(count: int, quick: bool) -> Iterator[Tensor]:
    """Single rows, row counts around tiles, another order, one row between copies of itself, all several times.

    All of them come three times; of a case with many rows, as often as it takes to have more than `MANY`.

    A quick run takes the last row alone, another order and all three times.
    """
    order = torch.arange(count)
    if not quick:
        singles = sorted({0, 1, count // 2, count - 2} & set(range(count - 1)))
        yield from (order[i : i + 1] for i in singles)
        for size in (2, 7, 8, 9, 15, 16, 17):
            if size < count:
                yield order[-size:]
        yield order.flip(0)
        yield torch.full((5,), count - 1)
    yield order[-1:]
    yield order.roll(3)
    yield order.repeat(max(3, MANY // count + 1) if count > MANY // 8 and not quick else 3)
