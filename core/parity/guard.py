"""Indices of a trace are checked before an op sees them: kernels trust their callers, nobody should trust a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tandem.contract.cases import CacheInput, WeightInput
from tandem.contract.types import Rows
from tandem.parity.limits import require

Tensor = torch.Tensor
Bound = tuple[str, Any, int, int]  # argument, its indices, and the half-open range they lie in

_BY_CACHE = {"cache": ("slots",), "window": ("window_slots",), "main": ("main_slots",)}
_BY_SLOT = ("slot", "row_slot", "slots", "host_slot")


def check(op: str, host: Mapping[str, Any], where: str) -> None:
    """Refuse a call with an index outside what it points into.

    Args:
        host: arguments on the host.
    Raises:
        TraceError: an index is out of range.
    """
    for name, index, low, high in _bounds(op, host):
        if isinstance(index, Tensor) and index.numel():
            inside = int(index.min()) >= low and int(index.max()) < high
            require(inside, f"{where}, '{name}'", f"an index of '{op}' is outside {low} .. {high - 1}")


def _bounds(op: str, host: Mapping[str, Any]) -> Iterator[Bound]:
    for name, cache in host.items():
        if isinstance(cache, CacheInput):
            entries = cache.num_blocks * cache.layout.block_entries
            yield from ((slots, host.get(slots), -1, entries) for slots in _BY_CACHE.get(name, ()))
            yield "table", host.get("table"), -1, cache.num_blocks
    arrays = (host.get(name) for name in ("table", "last_token", "state", "history", "rates"))
    by_slot = next((array for array in arrays if isinstance(array, Tensor)), None)
    if by_slot is not None:
        yield from ((name, host.get(name), -1, by_slot.shape[0]) for name in _BY_SLOT)
    if isinstance(host.get("rows"), Rows):
        yield from _rows(host["rows"], by_slot)
        if isinstance(host.get("vocabulary"), Tensor):
            yield "rows.ids", host["rows"].ids, 0, host["vocabulary"].shape[0]
    if "width" in host:
        yield "lens", host.get("lens"), 0, host["width"] + 1
    table = host.get("table")
    if isinstance(table, WeightInput):
        first = host.get("first_row", 0)
        yield "ids", host.get("ids"), 0, table.shape[0]
        yield "rows", host.get("rows"), first, first + table.shape[0]
    yield from _drafts(host)
    if "index" in host:
        pointed = host.get("x", host.get("a"))
        yield "index", host["index"], -1, pointed.shape[1 if "a" in host else 0]


def _drafts(host: Mapping[str, Any]) -> Iterator[Bound]:
    """Of ops that judge, keep or penalise tokens of a vocabulary."""
    drafts, logits = host.get("drafts"), host.get("logits")
    if isinstance(drafts, Tensor) and "draft_row" in host:
        yield "draft_row", host["draft_row"], -1, drafts.shape[0]
    if isinstance(logits, Tensor):
        for name in ("forced", "drafts"):
            yield name, host.get(name), -1, logits.shape[1]
    if isinstance(drafts, Tensor) and "from_device" in host:
        yield "from_device", host["from_device"], 0, drafts.shape[1] + 2
    if isinstance(drafts, Tensor) and "column" in host:
        yield "column", torch.tensor([host["column"]]), 0, drafts.shape[1]


def _rows(rows: Rows, by_slot: Tensor | None) -> Iterator[Bound]:
    count = rows.ids.numel()
    yield "rows.chunk_start", rows.chunk_start, 0, count
    yield "rows.chunk_end", rows.chunk_end, 0, count + 1
    yield "rows.positions", rows.positions, 0, 1 << 31
    if by_slot is not None:
        yield "rows.slot", rows.slot, -1, by_slot.shape[0]
