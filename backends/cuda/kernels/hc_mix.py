"""`hc_mix`: the pass over the trunk that projects it, then coefficients from the partial sums."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cuda.kernels._hyper import empty_partial, projection, run_pass
from tandem.backends.cuda.kernels._mixing import run_finish
from tandem.contract.types import HcMix, HcWeights

Tensor = torch.Tensor


def hc_mix(trunk: Tensor, weights: HcWeights) -> HcMix:
    """See core/ops/hc_mix.py."""
    partial = empty_partial(trunk)
    run_pass(trunk, projected=(projection("hc_mix", weights), partial))
    return run_finish(trunk, partial, weights)


def _traffic(trunk: Tensor, weights: HcWeights) -> tuple[int, int]:
    """Partial sums are written and read once; the projection stays in the cache."""
    rows, m, _ = trunk.shape
    sums = 4 * empty_partial(trunk.to("meta")).numel()
    return 2 * trunk.numel() + weights.fn.nbytes + sums, sums + 4 * rows * (m * m + 2 * m)


OPS: dict[str, Any] = {"hc_mix": hc_mix}
TRAFFIC: dict[str, Any] = {"hc_mix": _traffic}
