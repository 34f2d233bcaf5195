"""`hc_collapse`: the pass over the trunk that adds its streams up by weight."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cuda.kernels._hyper import run_pass

Tensor = torch.Tensor


def hc_collapse(trunk: Tensor, pre: Tensor) -> Tensor:
    """See core/ops/hc_collapse.py."""
    x = trunk.new_empty((trunk.shape[0], trunk.shape[2]))
    run_pass(trunk, collapsed=(pre, x))
    return x


def _traffic(trunk: Tensor, pre: Tensor) -> tuple[int, int]:
    """Everything is read once and written once."""
    return 2 * trunk.numel() + 4 * pre.numel(), 2 * trunk.numel() // trunk.shape[1]


OPS: dict[str, Any] = {"hc_collapse": hc_collapse}
TRAFFIC: dict[str, Any] = {"hc_collapse": _traffic}
