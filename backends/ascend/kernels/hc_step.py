"""`hc_step`: see csrc/ascend/hc_step.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native
from tandem.backends.ascend.kernels import _hyper, _mixing, _tiles
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import HcMix, HcWeights, QTensor

Tensor = torch.Tensor


def hc_step(
    y: Tensor, trunk: Tensor, mix: HcMix, weights: HcWeights, norm_weight: Tensor
) -> tuple[Tensor, Tensor, QTensor, HcMix]:
    """See core/ops/hc_step.py."""
    device = _tiles.device(trunk)
    split = _hyper.projecting(device, *trunk.shape)
    left, x, partial = torch.empty_like(trunk), torch.empty_like(y), _mixing.empty_partial(split, trunk.device)
    xq, entered = activations.empty(y.shape[0], y.shape[1], y.device), _mixing.empty_mix(split, trunk.device)
    read = (y, trunk, mix.pre, mix.post, mix.comb)
    held = (_hyper.fn_of("hc_step", weights), weights.base, weights.scale, norm_weight)
    written = (partial, left, x, xq.data, xq.scale, entered.pre, entered.post, entered.comb)
    pieces = (*split.pieces, _mixing.rows_of_task(device, split))
    native.run("hc_step", *read, *held, *written, *trunk.shape, *_mixing.numbers(weights), *pieces)
    return left, x, xq, entered


def _plan(device: Device, y: Tensor, trunk: Tensor, mix: HcMix, weights: HcWeights, norm_weight: Tensor) -> list[Plan]:
    """Collapsed rows and sums of chunks are written and read once."""
    split = _hyper.projecting(device, *trunk.shape)
    first = _hyper.pass_plan(device, split, mixes=True, collapses=True, projects=True)
    return first + _mixing.finish_plan(device, split)


OPS: dict[str, Any] = {"hc_step": hc_step}
PLAN: dict[str, Any] = {"hc_step": _plan}
