"""`rms_norm` as one kernel: a row per program, read once, with the quantised copy written from registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda import activations
from tandem.backends.cuda.kernels._codec import mxfp8_groups, sf_offset
from tandem.backends.cuda.launch import launch
from tandem.contract.types import QTensor

Tensor = torch.Tensor


@triton.jit
def _rms_norm(x, weight, y, codes, scale, width, eps, BLOCK: tl.constexpr, QUANT: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    value = value * (1.0 / tl.sqrt_rn(tl.sum(value * value, axis=0) / width + eps))
    if weight is not None:
        value = value * tl.load(weight + column, mask=inside, other=0.0)
    rounded = value.to(tl.bfloat16)
    tl.store(y + row * width + column, rounded, mask=inside)
    if QUANT:
        group = tl.arange(0, BLOCK // 32)
        code, exponent = mxfp8_groups(tl.reshape(rounded.to(tl.float32), (BLOCK // 32, 32)))
        tl.store(codes + row * width + column, tl.reshape(code, (BLOCK,)), mask=inside)
        groups = width // 32
        filled = tl.where(group < groups, exponent, 127).to(tl.uint8)
        tl.store(scale + sf_offset(row, group, groups), filled, mask=group < (groups + 3) // 4 * 4)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, quant: bool) -> tuple[Tensor, QTensor | None]:
    """See core/ops/rms_norm.py."""
    rows, width = x.shape
    y = torch.empty_like(x)
    quantised = activations.empty(rows, width, x.device) if quant else None
    codes, scale = (None, None) if quantised is None else (quantised.data, quantised.scale)
    block = max(128, triton.next_power_of_2(width))
    warps = min(16, max(4, block // 512))
    launch(_rms_norm, (rows,), x, weight, y, codes, scale, width, eps, BLOCK=block, QUANT=quant, num_warps=warps)
    return y, quantised


def _traffic(x: Tensor, weight: Tensor | None, eps: float, quant: bool) -> tuple[int, int]:
    """Each row is read once; its weights come from the cache after the first row."""
    rows, width = x.shape
    written = rows * width * 2 + (rows * width + rows * width // 32 if quant else 0)
    return rows * width * 2 + (0 if weight is None else width * 4), written


OPS: dict[str, Any] = {"rms_norm": rms_norm}
TRAFFIC: dict[str, Any] = {"rms_norm": _traffic}
