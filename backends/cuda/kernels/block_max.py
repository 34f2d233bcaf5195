"""`block_max`: a program takes a tile of one row's blocks.

Scores from the last visible block on decide nothing and are not read.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
TILE = 4096  # scores of a program
LARGEST = tl.constexpr(torch.finfo(torch.bfloat16).max)


@triton.jit
def _block_max(scores, lens, out, width, count, BLOCK: tl.constexpr, WIDE: tl.constexpr, BLOCKS: tl.constexpr):
    row = tl.program_id(0)
    seen = tl.load(lens + row)
    last = tl.where(seen > 0, (seen - 1) // BLOCK, -1)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    place = tl.arange(0, WIDE)[None, :]
    column = block[:, None] * BLOCK + place
    inside = (block < last)[:, None] & (place < BLOCK) & (column < width)
    score = tl.load(scores + row.to(tl.int64) * width + column, mask=inside, other=float("-inf")).to(tl.float32)
    best = tl.max(tl.where(score != score, float("-inf"), score), axis=1)
    best = tl.where(block == last, float("inf"), tl.minimum(best, LARGEST))
    tl.store(out + row.to(tl.int64) * count + block, best.to(tl.bfloat16), mask=block < count)


def block_max(scores: Tensor, lens: Tensor, block: int) -> Tensor:
    """See core/ops/block_max.py."""
    rows, width = scores.shape
    count = triton.cdiv(width, block)
    out = scores.new_empty((rows, count))
    wide = triton.next_power_of_2(block)
    blocks = min(max(1, TILE // wide), triton.next_power_of_2(count))
    grid = (rows, triton.cdiv(count, blocks))
    launch(_block_max, grid, scores, lens, out, width, count, BLOCK=block, WIDE=wide, BLOCKS=blocks)
    return out


def _traffic(scores: Tensor, lens: Tensor, block: int) -> tuple[int, int]:
    """All scores, as if all were visible."""
    rows, width = scores.shape
    return rows * width * 2 + rows * 4, rows * triton.cdiv(width, block) * 2


OPS: dict[str, Any] = {"block_max": block_max}
TRAFFIC: dict[str, Any] = {"block_max": _traffic}
