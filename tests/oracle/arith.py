"""Arithmetic between rounding points: one accumulation type, optionally one legal reordering of long sums."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOWEST = -1022
_POWERS = torch.tensor([math.ldexp(1.0, e) for e in range(_LOWEST, 1024)], dtype=torch.float64)


def power_of_two(exponent: Tensor) -> Tensor:
    """2**exponent for an integer tensor, exactly, as float64. Exponents are limited to the normal range."""
    return _POWERS[(exponent.long() - _LOWEST).clamp(0, len(_POWERS) - 1)]


def round_to_grid(x: Tensor, mantissa_bits: int, lowest_exponent: int, limit: float) -> Tensor:
    """Nearest value (ties to even) of a binary float format, saturating at +-limit; same dtype as x.

    `mantissa_bits` are the stored ones, `lowest_exponent` is that of the smallest normal number.
    """
    exact = x.to(torch.float64)
    exponent = torch.frexp(exact).exponent - 1
    step = power_of_two(exponent.clamp(min=lowest_exponent) - mantissa_bits)
    return (torch.round(exact / step) * step).clamp(-limit, limit).to(x.dtype)


class Arith:
    """Sums and products in `accumulate`; with a seed, the terms of each sum come in a random order."""

    def __init__(self, accumulate: torch.dtype, reorder_seed: int | None) -> None:
        if accumulate not in (torch.float32, torch.float64):
            raise ValueError(f"accumulate must be float32 or float64, got {accumulate}")
        self.dtype = accumulate
        self._seed = reorder_seed
        self._generator = torch.Generator()
        self.restart()

    def restart(self) -> None:
        """Begin the sequence of random orders anew, so that every forward repeats itself."""
        if self._seed is not None:
            self._generator.manual_seed(self._seed)

    def wide(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)

    def bf16(self, x: Tensor) -> Tensor:
        """Round once to bf16. (A direct float64 cast would go through float32 and round twice.)"""
        if x.dtype == torch.float64:
            x = round_to_grid(x, 7, -126, math.inf)
        return x.to(torch.bfloat16)

    def _order(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self._generator)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """a [..., M, K] @ b [..., K, N]."""
        a, b = self.wide(a), self.wide(b)
        if self._seed is not None:
            order = self._order(a.shape[-1])
            a, b = a[..., order], b[..., order, :]
        return a @ b

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [T, K] times weight [N, K] transposed, unrounded."""
        return self.matmul(x, weight.transpose(-1, -2))

    def total(self, x: Tensor) -> Tensor:
        """Sum over the last axis, which is kept with length 1."""
        x = self.wide(x)
        if self._seed is not None:
            x = x[..., self._order(x.shape[-1])]
        return x.sum(dim=-1, keepdim=True)

    def inverse_rms(self, x: Tensor, eps: float) -> Tensor:
        """rsqrt(mean(x^2) + eps) over the last axis, which is kept with length 1."""
        x = self.wide(x)
        return torch.rsqrt(self.total(x * x) / x.shape[-1] + eps)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x * rsqrt(mean(x^2) + eps) * weight in one chain, rounded once to bf16."""
        return self.bf16(self.wide(x) * self.inverse_rms(x, eps) * self.wide(weight))
