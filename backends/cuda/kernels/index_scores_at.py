"""`index_scores_at`: a program scores a tile of one row's entries."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels._indexer import load_keys, load_queries, scattered, score, shape
from tandem.backends.cuda.kernels._paging import look_up, table_rows
from tandem.backends.cuda.launch import launch
from tandem.contract.types import KVCache, QTensor

Tensor = torch.Tensor
KEYS = 128


@triton.jit
def _index_scores_at(
    codes,
    scales,
    weights,
    cache,
    table,
    row_slot,
    entries,
    out,
    width,
    columns,
    BLOCK_ENTRIES: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ENTRY: tl.constexpr,
    PAD: tl.constexpr,
    WIDE: tl.constexpr,
    KEYS: tl.constexpr,
):
    row = tl.program_id(0)
    place = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    start = row.to(tl.int64) * width
    entry = tl.load(entries + start + place, mask=place < width, other=-1)
    request = tl.load(row_slot + row)
    known = tl.where(request >= 0, entry, -1)
    slot = look_up(known, table_rows(table, request, columns), columns, known >= 0, BLOCK_ENTRIES, False)
    query, query_scale, weight = load_queries(codes, scales, weights, row, 1, HEADS, PAD, DIM, WIDE)
    key, key_scale = load_keys(*scattered(cache, slot, ENTRY), DIM, WIDE)
    total = tl.reshape(score(key, key_scale, query, query_scale, weight, 1, HEADS, PAD), (KEYS,))
    total = tl.where(entry >= 0, total, float("-inf"))
    tl.store(out + start + place, total.to(tl.bfloat16), mask=place < width)


def index_scores_at(
    q: QTensor, w: Tensor, cache: KVCache, table: Tensor, row_slot: Tensor, entries: Tensor
) -> Tensor:
    """See core/ops/index_scores_at.py."""
    sizes = shape(q, w, cache, "index_scores_at")
    rows, width = entries.shape
    out = w.new_empty((rows, width))
    launch(
        _index_scores_at,
        (rows, triton.cdiv(width, KEYS)),
        q.data,
        q.scale,
        w,
        cache.data,
        table,
        row_slot,
        entries,
        out,
        width,
        table.shape[1],
        KEYS=KEYS,
        num_warps=4,
        **sizes,
    )
    return out


def _traffic(q: QTensor, w: Tensor, cache: KVCache, entries: Tensor, **others: Any) -> tuple[int, int]:
    """Queries once (each tile of a row finds them in the cache), and each entry's key; rows of a chunk that ask for the
    same keys find them in L2, which holds the keys of a million tokens."""
    places = entries.numel()
    keys = min(places, cache.num_blocks * cache.layout.block_entries)
    read = q.data.numel() + q.scale.numel() + w.numel() * 2 + places * 4 + keys * cache.layout.entry_bytes
    return read, places * 2


OPS: dict[str, Any] = {"index_scores_at": index_scores_at}
TRAFFIC: dict[str, Any] = {"index_scores_at": _traffic}
