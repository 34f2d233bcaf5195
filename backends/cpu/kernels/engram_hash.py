"""`engram_hash`: see csrc/cpu/ops/engram_hash.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require

Tensor = torch.Tensor


def engram_hash(context: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """See core/ops/engram_hash.py."""
    count, n = context.shape
    heads = primes.shape[1]
    shape = (n - 1, heads)
    require("engram_hash", multipliers=(multipliers, (n,)), primes=(primes, shape), offsets=(offsets, shape))
    rows = temporary.empty((count, (n - 1) * heads), dtype=torch.int64)
    native.run("engram_hash", context.contiguous(), multipliers, primes, offsets, rows, count, n, heads)
    return rows


OPS: dict[str, Any] = {"engram_hash": engram_hash}
