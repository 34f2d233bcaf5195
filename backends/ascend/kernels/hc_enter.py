"""`hc_enter`: see csrc/ascend/hc_enter.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native
from tandem.backends.ascend.kernels import _hyper, _mixing, _tiles
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import HcMix, HcWeights, QTensor

Tensor = torch.Tensor


def hc_enter(trunk: Tensor, pre_prev: Tensor, weights: HcWeights, norm_weight: Tensor) -> tuple[Tensor, QTensor, HcMix]:
    """See core/ops/hc_enter.py."""
    rows, _, width = trunk.shape
    device = _tiles.device(trunk)
    split = _hyper.projecting(device, *trunk.shape)
    x, partial = trunk.new_empty((rows, width)), _mixing.empty_partial(split, trunk.device)
    xq, mix = activations.empty(rows, width, trunk.device), _mixing.empty_mix(split, trunk.device)
    read = (trunk, pre_prev, _hyper.fn_of("hc_enter", weights), weights.base, weights.scale, norm_weight)
    written = (partial, x, xq.data, xq.scale, mix.pre, mix.post, mix.comb)
    pieces = (*split.pieces, _mixing.rows_of_task(device, split))
    native.run("hc_enter", *read, *written, *trunk.shape, *_mixing.numbers(weights), *pieces)
    return x, xq, mix


def _plan(device: Device, trunk: Tensor, pre_prev: Tensor, weights: HcWeights, norm_weight: Tensor) -> list[Plan]:
    """Collapsed rows and sums of chunks are written and read once."""
    split = _hyper.projecting(device, *trunk.shape)
    first = _hyper.pass_plan(device, split, mixes=False, collapses=True, projects=True)
    return first + _mixing.finish_plan(device, split)


OPS: dict[str, Any] = {"hc_enter": hc_enter}
PLAN: dict[str, Any] = {"hc_enter": _plan}
WHY: dict[str, str] = {
    "hc_enter": "a row's norm and coefficients need all its columns, which lie on many cores: collapsed rows and sums "
    "of chunks go through memory once"
}
