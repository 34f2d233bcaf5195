"""`hc_mix`: see csrc/ascend/hc_mix.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _hyper, _mixing, _tiles
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import HcMix, HcWeights

Tensor = torch.Tensor


def hc_mix(trunk: Tensor, weights: HcWeights) -> HcMix:
    """See core/ops/hc_mix.py."""
    device = _tiles.device(trunk)
    split = _hyper.projecting(device, *trunk.shape)
    mix, partial = _mixing.empty_mix(split, trunk.device), _mixing.empty_partial(split, trunk.device)
    arrays = (trunk, _hyper.fn_of("hc_mix", weights), weights.base, weights.scale, partial, mix.pre, mix.post, mix.comb)
    pieces = (*split.pieces, _mixing.rows_of_task(device, split))
    native.run("hc_mix", *arrays, *trunk.shape, *_mixing.numbers(weights), *pieces)
    return mix


def _plan(device: Device, trunk: Tensor, weights: HcWeights) -> list[Plan]:
    """Sums of chunks are written and read once."""
    split = _hyper.projecting(device, *trunk.shape)
    first = _hyper.pass_plan(device, split, mixes=False, collapses=False, projects=True)
    return first + _mixing.plan(device, split)


OPS: dict[str, Any] = {"hc_mix": hc_mix}
PLAN: dict[str, Any] = {"hc_mix": _plan}
