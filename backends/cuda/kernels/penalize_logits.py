"""`penalize_logits`: places occur once, so entries are independent."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.strided import with_stride
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
BLOCK = 256
SECTOR = 32


@triton.jit
def _penalize(logits, stride, row, token, repetition, minus, entries, BLOCK: tl.constexpr):
    """One block of entries; padding neither reads nor writes a logit."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at_row = tl.load(row + entry, mask=entry < entries, other=-1)
    real = at_row >= 0
    place = logits + at_row.to(tl.int64) * stride + tl.load(token + entry, mask=real, other=0)
    old = tl.load(place, mask=real, other=0.0)
    factor = tl.load(repetition + entry, mask=real, other=1.0)
    scaled = tl.where(old > 0, tl.div_rn(old, factor), old * factor)
    tl.store(place, scaled - tl.load(minus + entry, mask=real, other=0.0), mask=real)


def penalize_logits(logits: Tensor, row: Tensor, token: Tensor, repetition: Tensor, minus: Tensor) -> None:
    """See core/ops/penalize_logits.py."""
    entries = row.shape[0]
    grid = (triton.cdiv(entries, BLOCK),)
    launch(_penalize, grid, *with_stride(logits), row, token, repetition, minus, entries, BLOCK=BLOCK, num_warps=4)


def _traffic(row: Tensor, **others: Any) -> tuple[int, int]:
    """A sector for each logit."""
    return row.shape[0] * (16 + SECTOR), row.shape[0] * SECTOR


OPS: dict[str, Any] = {"penalize_logits": penalize_logits}
TRAFFIC: dict[str, Any] = {"penalize_logits": _traffic}
WHY: dict[str, str] = {"penalize_logits": "a logit alone in its sector moves 32 bytes"}
