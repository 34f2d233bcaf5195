"""`block_max`: see csrc/cpu/ops/block_max.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary

Tensor = torch.Tensor


def block_max(scores: Tensor, lens: Tensor, block: int) -> Tensor:
    """See core/ops/block_max.py."""
    rows, width = scores.shape
    best = temporary.empty((rows, -(-width // block)), dtype=torch.bfloat16)
    native.run("block_max", scores, lens, best, rows, width, block)
    return best


OPS: dict[str, Any] = {"block_max": block_max}
