"""Which arguments of an op have one entry per row, and how to take rows of a call."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from tandem.contract.types import MoEBatch, QTensor

Tensor = torch.Tensor

# Ops whose rows are independent of each other; ops that read neighbouring rows or sort them have their own tests.
ROW_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "attn_block": ("q", "cos_sin", "window_slots", "main_slots"),
    "aux.entry_slots": ("positions", "slot"),
    "aux.group_start": ("positions",),
    "aux.map_entries": ("entries", "slot"),
    "aux.step_inputs": ("host_ids", "host_positions", "from_device", "host_slot"),
    "aux.take": ("a", "index"),
    "aux.visible": ("positions", "slot"),
    "aux.window_slots": ("positions", "slot"),
    "block_max": ("scores", "lens"),
    "dequantize": ("q",),
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
    "index_query": ("x", "cos_sin"),
    "index_scores": ("q", "w", "row_slot", "lens"),
    "index_scores_at": ("q", "w", "row_slot", "entries"),
    "kv_load": ("slots",),
    "kv_store": ("x", "slots"),
    "kv_write": ("x", "cos_sin", "slots"),
    "linear": ("x",),
    "moe_block": ("x", "xq", "row_slot", "roles"),
    "moe_combine": ("batch", "shared"),
    "moe_route": ("x", "roles"),
    "pool_expand": ("blocks", "lens"),
    "quantize": ("x",),
    "rms_norm": ("x",),
    "rope": ("x", "cos_sin"),
    "sparse_attn": ("q", "window_slots", "main_slots"),
    "swiglu_quant": ("gate", "up", "weight"),
    "topk_index": ("scores",),
}

# The argument that says which rows are padding when it is negative.
SLOT_ARGUMENTS = {"index_scores": "row_slot", "index_scores_at": "row_slot", "moe_block": "row_slot"}


def take(value: Any, index: Tensor) -> Any:
    """Rows of an argument."""
    if isinstance(value, Tensor):
        return value.index_select(0, index)
    if isinstance(value, QTensor):
        return value.take_rows(index)
    if isinstance(value, MoEBatch):
        return dataclasses.replace(value, source=value.source.index_select(0, index))
    if isinstance(value, tuple):
        return type(value)(*(take(item, index) for item in value))
    return value


def take_call(op: str, args: dict[str, Any], index: Tensor) -> dict[str, Any]:
    """The same call for these rows only."""
    return args | {name: take(args[name], index) for name in ROW_ARGUMENTS[op] if name in args}


def row_count(op: str, args: dict[str, Any]) -> int:
    """Number of rows of a call."""
    first = args[ROW_ARGUMENTS[op][0]]
    if isinstance(first, MoEBatch):
        return int(first.source.shape[0])
    return int(first.shape[0])
