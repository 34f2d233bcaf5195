"""`hc_step`: one pass over the trunk leaves a sub-layer and enters the next, then norm and coefficients in one launch.

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


def hc_step(
    y: Tensor, trunk: Tensor, mix: HcMix, weights: HcWeights, norm_weight: Tensor
) -> tuple[Tensor, Tensor, QTensor, HcMix]:
    """See core/ops/hc_step.py."""
    mixed, x, partial = torch.empty_like(trunk), torch.empty_like(y), empty_partial(trunk)
    xq = activations.empty(y.shape[0], y.shape[1], y.device)
    run_pass(
        trunk,
        left=(y, mix.post, mix.comb, mixed),
        collapsed=(mix.pre, x),
        projected=(projection("hc_step", weights), partial),
    )
    return mixed, x, xq, run_finish(mixed, partial, weights, (x, norm_weight, xq))


def _traffic(y: Tensor, trunk: Tensor, weights: HcWeights, **others: Any) -> tuple[int, int]:
    """Collapsed rows and partial sums are written and read once; weights stay in the cache."""
    rows, m, width = trunk.shape
    between = 4 * empty_partial(trunk.to("meta")).numel() + 2 * rows * width
    coefficients = 4 * rows * (m * m + 2 * m)
    read = 2 * (trunk.numel() + y.numel()) + coefficients + 4 * width + weights.fn.nbytes
    return read + between, between + 2 * trunk.numel() + rows * (width * 3 + width // 32) + coefficients


OPS: dict[str, Any] = {"hc_step": hc_step}
TRAFFIC: dict[str, Any] = {"hc_step": _traffic}
