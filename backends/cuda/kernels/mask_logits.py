"""`mask_logits`: -inf is stored where a bit is 0; logits are not read."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.strided import with_stride
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
BLOCK = 4096


@triton.jit
def _mask(logits, stride, vocab, bits, words, blocks, BLOCK: tl.constexpr):
    """One block of one row."""
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    token = block * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(bits + row * words + token // 32, mask=token < vocab, other=0)
    banned = (word >> (token % 32)) & 1 == 0
    tl.store(logits + row * stride + token, float("-inf"), mask=(token < vocab) & banned)


def mask_logits(logits: Tensor, bits: Tensor) -> None:
    """See core/ops/mask_logits.py."""
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    grid = (rows * blocks,)
    launch(_mask, grid, *with_stride(logits), vocab, bits, bits.shape[1], blocks, BLOCK=BLOCK, num_warps=4)


def _traffic(logits: Tensor, bits: Tensor) -> tuple[int, int]:
    """Every token banned, which is the most."""
    return bits.numel() * 4, logits.numel() * 4


OPS: dict[str, Any] = {"mask_logits": mask_logits}
TRAFFIC: dict[str, Any] = {"mask_logits": _traffic}
