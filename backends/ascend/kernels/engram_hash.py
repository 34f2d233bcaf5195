"""`engram_hash`: 64-bit integer hashes, one a SIMT thread."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def engram_hash(context: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """See core/ops/engram_hash.py."""
    rows, n = context.shape
    heads = primes.shape[1]
    hashed = torch.empty((rows, (n - 1) * heads), dtype=torch.int64, device=context.device)
    native.run("engram_hash", context, multipliers, primes, offsets, hashed, rows, n, heads)
    return hashed


def _plan(device: Device, context: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> list[Plan]:
    """Contexts are read once; the constants stay in the cache."""
    constants = 8 * (multipliers.numel() + primes.numel() + offsets.numel())
    hashes = context.shape[0] * primes.numel()
    return _grid.plan(device, hashes, 4 * context.numel() + constants, 8 * hashes)


OPS: dict[str, Any] = {"engram_hash": engram_hash}
PLAN: dict[str, Any] = {"engram_hash": _plan}
