"""The entries of paged caches that one op call reads or writes, and moving single entries in and out of a backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.contract.backend import Backend
from tandem.contract.cases import CacheInput
from tandem.contract.types import KVCache
from tandem.ops.aux_map_entries import map_entries

Tensor = torch.Tensor
Slots = npt.NDArray[np.int64]

WRITERS = frozenset({"kv_store", "kv_write"})
# Cache argument -> argument with the slots that are read in it.
_READ_BY_SLOT = {
    "kv_load": {"cache": "slots"},
    "sparse_attn": {"window": "window_slots", "main": "main_slots"},
    "attn_block": {"window": "window_slots", "main": "main_slots"},
}


def slots_read(op: str, name: str, cache: KVCache, args: dict[str, Any]) -> Slots:
    """Ascending slots of cache argument ``name`` that a call may read.

    Args:
        args: the call's arguments on the host, caches left out.
    """
    if op in WRITERS:
        return np.empty(0, dtype=np.int64)
    if op in _READ_BY_SLOT:
        return _used(args[_READ_BY_SLOT[op][name]])
    if op in ("index_scores", "index_scores_at"):
        lens = args.get("lens")
        entries = args["entries"] if lens is None else _visible(lens, args["width"])
        return _used(map_entries(entries, args["row_slot"], args["table"], cache.layout.block_entries))
    return np.arange(cache.num_blocks * cache.layout.block_entries)  # an op this version does not know reads anything


def slots_written(op: str, args: dict[str, Any]) -> Slots:
    """Ascending slots that a call writes."""
    return _used(args["slots"]) if op in WRITERS else np.empty(0, dtype=np.int64)


def _visible(lens: Tensor, width: int) -> Tensor:
    entries = torch.arange(width, dtype=torch.int32)
    return torch.where(entries < lens.unsqueeze(-1), entries, torch.full_like(entries, -1))


def _used(slots: Tensor) -> Slots:
    found = np.unique(slots.numpy()).astype(np.int64)
    return found[found >= 0]


def read_entries(backend: Backend, cache: KVCache, slots: Slots) -> CacheInput:
    """The entries at ascending slots, in canonical bytes."""
    layout = cache.layout
    if not len(slots):
        data = np.empty((0, layout.entry_bytes), dtype=np.uint8)
    else:
        blocks = np.unique(slots // layout.block_entries)
        pages = np.asarray(backend.kv_export(cache, blocks)).reshape(len(blocks), layout.block_entries, -1)
        data = pages[np.searchsorted(blocks, slots // layout.block_entries), slots % layout.block_entries]
    return CacheInput(layout, cache.num_blocks, tuple(slots.tolist()), np.ascontiguousarray(data))


def write_entries(backend: Backend, cache: KVCache, slots: Slots, data: npt.NDArray[np.uint8]) -> None:
    """Write canonical entries at ascending slots; the others of their blocks keep what they hold."""
    if not len(slots):
        return
    layout = cache.layout
    blocks = np.unique(slots // layout.block_entries)
    pages = np.array(backend.kv_export(cache, blocks)).reshape(len(blocks), layout.block_entries, -1)
    pages[np.searchsorted(blocks, slots // layout.block_entries), slots % layout.block_entries] = data
    backend.kv_import(cache, blocks, pages.reshape(len(blocks), -1))
