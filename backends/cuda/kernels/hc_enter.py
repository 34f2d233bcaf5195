"""`hc_enter`: one pass over the trunk that collapses and projects it, then norm and coefficients in one launch.

Between the two launches the collapsed rows lie where x will, and are normalised in place.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cuda import activations
from tandem.backends.cuda.kernels._hyper import empty_partial, projection, run_pass
from tandem.backends.cuda.kernels._mixing import run_finish
from tandem.contract.types import HcMix, HcWeights, QTensor

Tensor = torch.Tensor


def hc_enter(trunk: Tensor, pre_prev: Tensor, weights: HcWeights, norm_weight: Tensor) -> tuple[Tensor, QTensor, HcMix]:
    """See core/ops/hc_enter.py."""
    rows, _, width = trunk.shape
    x, partial = trunk.new_empty((rows, width)), empty_partial(trunk)
    xq = activations.empty(rows, width, trunk.device)
    run_pass(trunk, collapsed=(pre_prev, x), projected=(projection("hc_enter", weights), partial))
    return x, xq, run_finish(trunk, partial, weights, (x, norm_weight, xq))


def _traffic(trunk: Tensor, pre_prev: Tensor, weights: HcWeights, norm_weight: Tensor) -> tuple[int, int]:
    """Collapsed rows and partial sums are written and read once; weights stay in the cache."""
    rows, m, width = trunk.shape
    between = 4 * empty_partial(trunk.to("meta")).numel() + 2 * rows * width
    read = 2 * trunk.numel() + 4 * (pre_prev.numel() + width) + weights.fn.nbytes
    return read + between, between + rows * (width * 3 + width // 32 + 4 * (m * m + 2 * m))


OPS: dict[str, Any] = {"hc_enter": hc_enter}
TRAFFIC: dict[str, Any] = {"hc_enter": _traffic}
WHY: dict[str, str] = {
    "hc_enter": "a row's norm and coefficients need all its columns, which lie on many processors: collapsed rows and "
    "partial sums go through memory once"
}
