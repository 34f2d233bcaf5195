"""`hc_collapse`: see csrc/ascend/hc_collapse.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _hyper, _tiles
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def hc_collapse(trunk: Tensor, pre: Tensor) -> Tensor:
    """See core/ops/hc_collapse.py."""
    rows, m, width = trunk.shape
    x = trunk.new_empty((rows, width))
    split = _hyper.plain(_tiles.device(trunk), rows, m, width, mixes=False)
    native.run("hc_collapse", trunk, pre, x, rows, m, width, *split.pieces[:3])
    return x


def _plan(device: Device, trunk: Tensor, pre: Tensor) -> list[Plan]:
    """Everything is read once and written once."""
    rows, m, width = trunk.shape
    split = _hyper.plain(device, rows, m, width, mixes=False)
    return _hyper.pass_plan(device, split, mixes=False, collapses=True, projects=False)


OPS: dict[str, Any] = {"hc_collapse": hc_collapse}
PLAN: dict[str, Any] = {"hc_collapse": _plan}
