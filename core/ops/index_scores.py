"""`index_scores`: lightning-indexer scores of all visible entries.

Args: q mxfp4 [T,Hi*Di], w[T,Hi] bf16, cache, table[R+1,NB] i32, row_slot[T] i32, lens[T] i32, width ->
[T,width] bf16, -inf beyond lens; dot exact, heads summed in f32 in order

Reads q mxfp4 [T, Hi*Di], head weights bf16 [T, Hi], the index cache with table int32 [R + 1, NB], row_slot
int32 [T], lens int32 [T] (visible entries) and the host bound width >= max(lens).  Returns bf16 [T, width]:
score[t, j] = sum over heads, ascending, of w[t, h] * relu(q[t, h] . k[j]), -inf for j >= lens[t]. The dot
product of fp4 values is exact in f64 and rounded to f32 once, so its order is free; the head sum is f32; one
rounding to bf16.  Class A.  Entries beyond lens may hold anything.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import KVCache, QFormat, QTensor
from tandem.ops.numerics import decode_rows

Tensor = torch.Tensor

KEY_VALUES = 1 << 21  # decoded key values held at a time


@op(
    "index_scores",
    classes={"scores": "A"},
    parts=("kv_load", "to_canonical", "aux.map_entries"),
    attrs=("heads", "dim", "fmt", "layout"),
    passes=(("kv_load", {"fmt": "fmt", "dim": "dim", "layout": "layout"}),),
)
def index_scores(
    parts: Any,
    q: QTensor,
    w: Tensor,
    cache: KVCache,
    table: Tensor,
    row_slot: Tensor,
    lens: Tensor,
    width: int,
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    entries = torch.arange(width, device=w.device, dtype=torch.int32)
    visible = entries < lens.unsqueeze(-1)
    entries = torch.where(visible, entries, torch.full_like(entries, -1))
    return score_entries(parts, q, w, cache, table, row_slot, entries)


def score_entries(
    parts: Any, q: QTensor, w: Tensor, cache: KVCache, table: Tensor, row_slot: Tensor, entries: Tensor
) -> Tensor:
    """Scores of explicit entries int32 [T, P]; -1 gives -inf."""
    slots = parts.map_entries(entries, row_slot, table, cache.layout.block_entries)
    plain = parts.to_canonical(q)
    query = decode_rows(plain.data, plain.scale, plain.fmt).to(torch.float64).unflatten(-1, (w.shape[1], -1))
    result = w.new_empty(entries.shape)
    rows = max(1, KEY_VALUES // (entries.shape[1] * query.shape[-1]))
    for start in range(0, entries.shape[0], rows):
        part = slice(start, start + rows)
        keys = parts.kv_load(cache, slots[part]).to(torch.float64)
        dots = torch.matmul(query[part], keys.transpose(1, 2))
        result[part] = combine_heads(dots.transpose(0, 1), w[part].t().unsqueeze(-1))
    return torch.where(entries >= 0, result, torch.full_like(result, float("-inf")))


def combine_heads(dots: Tensor, w: Tensor) -> Tensor:
    """Exact dots f64 [Hi, ...] and weights bf16 [Hi, ...] -> bf16 [...], heads added in order in f32."""
    positive = dots.to(torch.float32).clamp_min(0.0)
    wide = w.to(torch.float32)
    total = wide[0] * positive[0]
    for h in range(1, dots.shape[0]):
        total = total + wide[h] * positive[h]
    return total.to(torch.bfloat16)


@case("index_scores", "three-requests", ROWS)
def _three(seed: int, rows: int) -> dict[str, Any]:
    """Rows of three requests in runs, visible lengths up to the whole width."""
    arguments, draw = paged_arguments(seed, rows), Draw(seed + 1)
    return arguments | {"lens": draw.i32(1, 25, rows), "width": 24}


@case("index_scores", "one-row-a-request")
def _decode(seed: int) -> dict[str, Any]:
    arguments = paged_arguments(seed, 4)
    arguments["row_slot"] = torch.tensor([2, 0, -1, 1], dtype=torch.int32)
    return arguments | {"lens": torch.tensor([5, 24, 0, 17], dtype=torch.int32), "width": 32}


@case("index_scores", "nothing-visible-and-padding")
def _sparse(seed: int) -> dict[str, Any]:
    arguments = paged_arguments(seed, 6)
    arguments["row_slot"] = torch.tensor([0, 0, 0, -1, 2, -1], dtype=torch.int32)
    return arguments | {"lens": torch.tensor([0, 1, 24, 0, 0, 0], dtype=torch.int32), "width": 32}


def paged_arguments(seed: int, rows: int) -> dict[str, Any]:
    """Queries of rows of three requests with 24 entries each in blocks of 4; the rest is junk."""
    draw = Draw(seed)
    table = draw.block_table(3, 8)
    held = [int(table[r, e // 4]) * 4 + e % 4 for r in range(3) for e in range(24)]
    return {
        "q": draw.quantised(QFormat.MXFP4, rows, 64),
        "w": draw.bf16(rows, 2),
        "cache": draw.cache(QFormat.MXFP4, 32, 4, 24, held),
        "table": table,
        "row_slot": draw.i32(0, 3, rows).sort().values,
    }


@case("index_scores", "many-entries")
def _many(seed: int) -> dict[str, Any]:
    """More entries than one tile holds."""
    draw = Draw(seed)
    return {
        "q": draw.quantised(QFormat.MXFP4, 3, 64),
        "w": draw.bf16(3, 2),
        "cache": draw.cache(QFormat.MXFP4, 32, 4, 900),
        "table": draw.block_table(3, 300),
        "row_slot": torch.tensor([0, 1, 2], dtype=torch.int32),
        "lens": torch.tensor([1200, 1, 1030], dtype=torch.int32),
        "width": 1200,
    }


@case("index_scores", "chunk-over-many-entries")
def _chunk(seed: int) -> dict[str, Any]:
    """Consecutive rows of one request, between rows of others, whose keys fill several tiles and blocks."""
    draw = Draw(seed)
    return {
        "q": draw.quantised(QFormat.MXFP4, 9, 64),
        "w": draw.bf16(9, 2),
        "cache": draw.cache(QFormat.MXFP4, 32, 64, 18),
        "table": draw.block_table(3, 6),
        "row_slot": torch.tensor([0, 2, 2, 2, 2, 2, 2, 2, 1], dtype=torch.int32),
        "lens": torch.arange(250, 259, dtype=torch.int32),
        "width": 300,
    }
