"""Quantisation inside the training graph: forward values are the stored ones, gradients pass straight through.

Rounding is written as arithmetic, which is many times faster here than encoding and decoding; tests hold it to the
codecs of `tandem` bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tools.train_nano.fuse import fused, fused_any_shape

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Precision:
    """What is quantised in a forward pass.

    Args:
        weights: weights as a checkpoint stores them (fp8, fp4, bf16).
        activations: inputs of quantised products, cached keys and index keys, and bf16 between operations.
        fast: matrix products with bf16 operands and results; for training, where speed counts for more.
    """

    weights: bool
    activations: bool
    fast: bool = False


FULL = Precision(False, False)
STORED = Precision(True, True)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, quantise: Callable[[Tensor], Tensor]) -> Tensor:
        return quantise(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def straight_through(x: Tensor, quantise: Callable[[Tensor], Tensor]) -> Tensor:
    """quantise(x) with the gradient of the identity."""
    result: Tensor = _StraightThrough.apply(x, quantise)  # type: ignore[no-untyped-call]
    return result


def round_bf16(x: Tensor) -> Tensor:
    """Nearest bf16 value, as f32."""
    return x.to(torch.bfloat16).to(torch.float32)


def _power_at_most(x: Tensor) -> Tensor:
    """Largest power of two <= |x| (0 below the smallest normal)."""
    return (x.view(torch.int32) & 0x7F800000).view(torch.float32)


def _power_at_least(x: Tensor) -> Tensor:
    """Smallest power of two >= x > 0."""
    bits = x.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def _to_grid(y: Tensor, mantissa_bits: int, smallest_normal: float, largest: float) -> Tensor:
    """Nearest value of a small float format, ties to even, saturating; -0 may come out where a codec has 0."""
    step = _power_at_most(y).clamp_min(smallest_normal) * 2.0**-mantissa_bits
    return (torch.round(y / step) * step).clamp(-largest, largest)


def _e4m3(y: Tensor) -> Tensor:
    return _to_grid(y, 3, 2.0**-6, 448.0)


def _e2m1(y: Tensor) -> Tensor:
    return _to_grid(y, 1, 1.0, 6.0)


@fused_any_shape
def round_mxfp8(x: Tensor) -> Tensor:
    """fp8 activations and Engram rows: groups of 32, power-of-two scale rounded up."""
    grouped = x.unflatten(-1, (-1, 32))
    scale = _power_at_least(grouped.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448.0)
    return (_e4m3(grouped / scale) * scale).flatten(-2)


@fused
def round_mxfp4(x: Tensor) -> Tensor:
    """fp4 index vectors: groups of 32, power-of-two scale rounded up."""
    grouped = x.unflatten(-1, (-1, 32))
    scale = _power_at_least(grouped.abs().amax(-1, keepdim=True).clamp_min(6.0 * 2.0**-126) / 6.0)
    return (_e2m1(grouped / scale) * scale).flatten(-2)


@fused
def round_nvfp4(x: Tensor) -> Tensor:
    """fp4 cached keys: groups of 16, e4m3 scale."""
    grouped = x.unflatten(-1, (-1, 16))
    scale = _e4m3((grouped.abs().amax(-1, keepdim=True).clamp_min(6.0 * 2.0**-9) / 6.0).clamp_max(448.0))
    return (_e2m1(grouped / scale) * scale).flatten(-2)


@fused
def stored_fp8_blocks(w: Tensor) -> Tensor:
    """A dense weight [N, K] as stored: fp8 in 32x32 blocks."""
    rows, columns = w.shape
    padded = torch.nn.functional.pad(w, (0, -columns % 32, 0, -rows % 32))
    blocks = padded.unflatten(0, (-1, 32)).unflatten(2, (-1, 32))
    scale = _power_at_least(blocks.abs().amax(dim=(1, 3), keepdim=True).clamp_min(1e-4) / 448.0)
    return (_e4m3(blocks / scale) * scale).reshape(padded.shape)[:rows, :columns]


@fused
def stored_fp4_rows(w: Tensor) -> Tensor:
    """Expert weights [..., N, K] as stored: packed fp4 in groups of 32 of a row."""
    grouped = w.unflatten(-1, (-1, 32))
    scale = _power_at_least(grouped.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 6.0)
    return (_e2m1(grouped / scale) * scale).flatten(-2)
