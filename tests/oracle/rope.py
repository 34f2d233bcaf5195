"""Rotary embedding: plain and YaRN frequencies, interleaved pairs on the last channels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .arith import Arith


def plain_frequencies(theta: float, dim: int) -> list[float]:
    return [theta ** (-2.0 * i / dim) for i in range(dim // 2)]


def yarn_bounds(theta: float, dim: int, scaling: dict[str, Any]) -> tuple[int, int]:
    """First pair that is slowed down, first pair that is slowed down fully."""

    def pair_of(rotations: float) -> float:
        original = scaling["original_max_position_embeddings"]
        return dim * math.log(original / (rotations * 2.0 * math.pi)) / (2.0 * math.log(theta))

    low = max(math.floor(pair_of(scaling["beta_fast"])), 0)
    high = min(math.ceil(pair_of(scaling["beta_slow"])), dim - 1)
    return low, high


def yarn_frequencies(theta: float, dim: int, scaling: dict[str, Any]) -> list[float]:
    """YaRN: fast pairs keep their frequency, slow ones are divided by the factor, a linear ramp between."""
    low, high = yarn_bounds(theta, dim, scaling)
    width = high - low if high != low else 0.001
    result = []
    for i, f in enumerate(plain_frequencies(theta, dim)):
        slowed = min(max((i - low) / width, 0.0), 1.0)
        result.append(f / scaling["factor"] * slowed + f * (1.0 - slowed))
    return result


def rotate(
    arith: Arith, x: Tensor, positions: Tensor, frequencies: list[float], inverse: bool = False
) -> Tensor:
    """Rotate the last 2*len(frequencies) channels of x [T, ..., D] (bf16) by position; rounded to bf16.

    Channels pair up as (0,1), (2,3), ... inside the rotated tail. Angles are formed in float64.
    """
    width = 2 * len(frequencies)
    angle = positions.to(torch.float64)[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    if inverse:
        angle = -angle
    shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (len(frequencies),)
    cos, sin = arith.wide(angle.cos()).view(shape), arith.wide(angle.sin()).view(shape)
    tail = arith.wide(x[..., -width:])
    even, odd = tail[..., 0::2], tail[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., :-width], arith.bf16(turned)), dim=-1)
