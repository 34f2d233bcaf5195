"""`aux.take`: a program picks a tile of one row's columns."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
TILE = 1024


@triton.jit
def _take(a, index, out, width, wanted, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = place < wanted
    column = tl.load(index + row * wanted + place, mask=inside, other=-1)
    found = tl.load(a + row * width + column, mask=column >= 0, other=-1)
    tl.store(out + row * wanted + place, found, mask=inside)


def take(a: Tensor, index: Tensor) -> Tensor:
    """See core/ops/aux_take.py."""
    rows, wanted = index.shape
    out = torch.empty_like(index)
    tile = min(TILE, triton.next_power_of_2(wanted))
    launch(_take, (rows, triton.cdiv(wanted, tile)), a, index, out, a.shape[1], wanted, TILE=tile)
    return out


def _traffic(a: Tensor, index: Tensor) -> tuple[int, int]:
    """The index once, and what it picks."""
    return index.numel() * 8, index.numel() * 4


OPS: dict[str, Any] = {"aux.take": take}
TRAFFIC: dict[str, Any] = {"aux.take": _traffic}
