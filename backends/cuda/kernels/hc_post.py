"""`hc_post`: the pass over the trunk that mixes in a sub-layer's output."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cuda.kernels._hyper import run_pass

Tensor = torch.Tensor


def hc_post(y: Tensor, trunk: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """See core/ops/hc_post.py."""
    mixed = torch.empty_like(trunk)
    run_pass(trunk, left=(y, post, comb, mixed))
    return mixed


def _traffic(y: Tensor, trunk: Tensor, post: Tensor, comb: Tensor) -> tuple[int, int]:
    """All is written once, and read once: what a program reads again, and coefficients, come from the cache."""
    read = 2 * (y.numel() + trunk.numel()) + 4 * (post.numel() + comb.numel())
    return read, 2 * trunk.numel()


OPS: dict[str, Any] = {"hc_post": hc_post}
TRAFFIC: dict[str, Any] = {"hc_post": _traffic}
