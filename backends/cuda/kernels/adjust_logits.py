"""`adjust_logits`: values for one place are added in the order of the list, by the first entry that names it.

Order decides the bits, so there are no atomics.  Each entry looks for others of its place, in blocks of entries whose
rows can be its own: where the entries of a row stand together, as the engine sends them, these are few.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.strided import with_stride
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
BLOCK = 128
SECTOR = 32


@triton.jit
def _row_range(row, ranges, entries, BLOCK: tl.constexpr):
    """Smallest and largest row of one block of entries; an empty range where all are padding."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at_row = tl.load(row + entry, mask=entry < entries, other=-1)
    tl.store(ranges + tl.program_id(0) * 2, tl.min(tl.where(at_row >= 0, at_row, 0x7FFFFFFF)))
    tl.store(ranges + tl.program_id(0) * 2 + 1, tl.max(at_row))


@triton.jit
def _adjust(logits, stride, row, token, value, ranges, entries, blocks, BLOCK: tl.constexpr):
    """One block of entries against all blocks with a row in its range.

    The total of an entry begins with -0, which keeps the bits of a single value.
    """
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at_row = tl.load(row + entry, mask=entry < entries, other=-1)
    real = at_row >= 0
    at_token = tl.load(token + entry, mask=real, other=0)
    low, high = tl.load(ranges + tl.program_id(0) * 2), tl.load(ranges + tl.program_id(0) * 2 + 1)
    total = tl.full((BLOCK,), -0.0, tl.float32)
    first = real
    for block in range(0, blocks):
        if (tl.load(ranges + block * 2) <= high) & (tl.load(ranges + block * 2 + 1) >= low):
            for other in range(block * BLOCK, tl.minimum(block * BLOCK + BLOCK, entries)):
                same = real & (tl.load(row + other) == at_row) & (tl.load(token + other) == at_token)
                total = tl.where(same, total + tl.load(value + other), total)
                first = first & ~(same & (other < entry))
    place = logits + at_row.to(tl.int64) * stride + at_token
    tl.store(place, tl.load(place, mask=first, other=0.0) + total, mask=first)


def adjust_logits(logits: Tensor, row: Tensor, token: Tensor, value: Tensor) -> None:
    """See core/ops/adjust_logits.py."""
    entries = row.shape[0]
    blocks = triton.cdiv(entries, BLOCK)
    ranges = torch.empty((blocks, 2), dtype=torch.int32, device=logits.device)
    launch(_row_range, (blocks,), row, ranges, entries, BLOCK=BLOCK, num_warps=4)
    launch(
        _adjust, (blocks,), *with_stride(logits), row, token, value, ranges, entries, blocks, BLOCK=BLOCK,
        num_warps=4,
    )  # fmt: skip


def _traffic(row: Tensor, **others: Any) -> tuple[int, int]:
    """A sector for each logit; rows are read twice, and what is looked through again stays in the cache."""
    entries = row.shape[0]
    ranges = triton.cdiv(entries, BLOCK) * 8
    return entries * (16 + SECTOR) + ranges, entries * SECTOR + ranges


OPS: dict[str, Any] = {"adjust_logits": adjust_logits}
TRAFFIC: dict[str, Any] = {"adjust_logits": _traffic}
WHY: dict[str, str] = {"adjust_logits": "a logit alone in its sector moves 32 bytes"}
