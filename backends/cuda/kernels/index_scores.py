"""`index_scores`: a program scores a span of keys for a tile of rows.

Where all rows of a tile belong to one request, as in a chunk of a prompt, each key is read once for all of them;
where they do not, as in decoding, the rows are taken one after another.  Both make a row's score from the same
products in the same order, so its bits do not depend on its neighbours.  Keys that no row sees are not read.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels._indexer import consecutive, load_keys, load_queries, score, shape
from tandem.backends.cuda.kernels._paging import table_rows
from tandem.backends.cuda.launch import launch
from tandem.contract.types import KVCache, QTensor

Tensor = torch.Tensor
ROWS = 4  # of a tile
KEYS = 256  # of a product with one row; half with a whole tile, whose columns are more
STAGES = 5  # table entries, then keys, are on their way while a product is made
PROGRAMS = 1024  # wanted at most: a program of a large step takes several groups of keys


@triton.jit
def _score_rows(
    codes,
    scales,
    weights,
    cache,
    table,
    request,
    lens,
    out,
    width,
    columns,
    first,
    begin,
    end,
    BLOCK_ENTRIES: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ENTRY: tl.constexpr,
    PAD: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Scores of entries begin..end of one request for ROWS rows from the first on; -inf past what a row sees."""
    row = first + tl.arange(0, ROWS)
    seen = tl.load(lens + row)
    stop = tl.minimum(tl.max(seen), end)
    readable = tl.where(request >= 0, stop, begin)
    table_row = table_rows(table, request, columns)
    place = tl.arange(0, KEYS)
    target = out + row.to(tl.int64)[None, :] * width
    query, query_scale, weight = load_queries(codes, scales, weights, first, ROWS, HEADS, PAD, DIM, WIDE)
    for start in range(begin, stop, KEYS):
        entry = start + place
        pointer, held = consecutive(cache, table_row, columns, start, readable, BLOCK_ENTRIES, ENTRY, KEYS)
        key, key_scale = load_keys(pointer, held, DIM, WIDE)
        total = score(key, key_scale, query, query_scale, weight, ROWS, HEADS, PAD)
        total = tl.where(entry[:, None] < seen[None, :], total, float("-inf"))
        tl.store(target + entry[:, None], total.to(tl.bfloat16), mask=(entry < end)[:, None])
    hidden = tl.full((KEYS, ROWS), float("-inf"), tl.bfloat16)
    for start in range(begin + tl.cdiv(tl.maximum(stop - begin, 0), KEYS) * KEYS, end, KEYS):
        entry = start + place
        tl.store(target + entry[:, None], hidden, mask=(entry < end)[:, None])


@triton.jit
def _index_scores(
    codes,
    scales,
    weights,
    cache,
    table,
    row_slot,
    lens,
    out,
    rows,
    width,
    columns,
    span,
    BLOCK_ENTRIES: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ENTRY: tl.constexpr,
    PAD: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    first = tl.program_id(0) * ROWS
    begin = tl.program_id(1) * span
    end = tl.minimum(begin + span, width)
    row = first + tl.arange(0, ROWS)
    request = tl.load(row_slot + row, mask=row < rows, other=-2)
    one = tl.load(row_slot + first)
    if tl.sum((request == one).to(tl.int32)) == ROWS:
        _score_rows(
            codes, scales, weights, cache, table, one, lens, out, width, columns, first, begin, end,
            BLOCK_ENTRIES, HEADS, DIM, ENTRY, PAD, WIDE, ROWS, KEYS // 2,
        )  # fmt: skip
    else:
        for each in range(first, tl.minimum(first + ROWS, rows)):
            one = tl.load(row_slot + each)
            _score_rows(
                codes, scales, weights, cache, table, one, lens, out, width, columns, each, begin, end,
                BLOCK_ENTRIES, HEADS, DIM, ENTRY, PAD, WIDE, 1, KEYS,
            )  # fmt: skip


def index_scores(
    q: QTensor, w: Tensor, cache: KVCache, table: Tensor, row_slot: Tensor, lens: Tensor, width: int
) -> Tensor:
    """See core/ops/index_scores.py."""
    sizes = shape(q, w, cache, "index_scores")
    rows = w.shape[0]
    out = w.new_empty((rows, width))
    tiles = triton.cdiv(rows, ROWS)
    groups = triton.cdiv(width, KEYS)
    span = KEYS * max(1, min(16, tiles * groups // PROGRAMS))
    launch(
        _index_scores,
        (tiles, triton.cdiv(width, span)),
        q.data,
        q.scale,
        w,
        cache.data,
        table,
        row_slot,
        lens,
        out,
        rows,
        width,
        table.shape[1],
        span,
        ROWS=ROWS,
        KEYS=KEYS,
        num_warps=8,
        num_stages=STAGES,
        **sizes,
    )
    return out


def _traffic(q: QTensor, w: Tensor, cache: KVCache, table: Tensor, width: int, **others: Any) -> tuple[int, int]:
    """Queries once, and the keys of as many requests as there can be, as if all of the width were seen.

    Programs that read the same keys for other rows of a request are neighbours in time and find them in the cache.
    """
    rows = w.shape[0]
    keys = min(rows, table.shape[0] - 1) * width * cache.layout.entry_bytes
    return q.data.numel() + q.scale.numel() + w.numel() * 2 + keys, rows * width * 2


OPS: dict[str, Any] = {"index_scores": index_scores}
TRAFFIC: dict[str, Any] = {"index_scores": _traffic}
