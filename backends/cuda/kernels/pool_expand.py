"""`pool_expand`: a program writes a tile of one row's entries."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
TILE = 1024


@triton.jit
def _pool_expand(blocks, lens, out, count, width, BLOCK: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = place < width
    held = tl.load(blocks + row.to(tl.int64) * count + place // BLOCK, mask=inside, other=-1)
    entry = held * BLOCK + place % BLOCK
    seen = (held >= 0) & (entry < tl.load(lens + row))
    tl.store(out + row.to(tl.int64) * width + place, tl.where(seen, entry, -1), mask=inside)


def pool_expand(blocks: Tensor, block: int, lens: Tensor) -> Tensor:
    """See core/ops/pool_expand.py."""
    rows, count = blocks.shape
    width = count * block
    out = blocks.new_empty((rows, width))
    tile = min(TILE, triton.next_power_of_2(width))
    launch(_pool_expand, (rows, triton.cdiv(width, tile)), blocks, lens, out, count, width, BLOCK=block, TILE=tile)
    return out


def _traffic(blocks: Tensor, block: int, lens: Tensor) -> tuple[int, int]:
    """Blocks and lengths once."""
    return blocks.numel() * 4 + lens.numel() * 4, blocks.numel() * block * 4


OPS: dict[str, Any] = {"pool_expand": pool_expand}
TRAFFIC: dict[str, Any] = {"pool_expand": _traffic}
