"""`hc_post`: see csrc/ascend/hc_post.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _hyper, _tiles
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def hc_post(y: Tensor, trunk: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """See core/ops/hc_post.py."""
    rows, m, width = trunk.shape
    mixed = torch.empty_like(trunk)
    split = _hyper.plain(_tiles.device(trunk), rows, m, width, mixes=True)
    native.run("hc_post", y, trunk, post, comb, mixed, rows, m, width, *split.pieces[:3])
    return mixed


def _plan(device: Device, y: Tensor, trunk: Tensor, post: Tensor, comb: Tensor) -> list[Plan]:
    """Everything is read once and written once."""
    rows, m, width = trunk.shape
    split = _hyper.plain(device, rows, m, width, mixes=True)
    return _hyper.pass_plan(device, split, mixes=True, collapses=False, projects=False)


OPS: dict[str, Any] = {"hc_post": hc_post}
PLAN: dict[str, Any] = {"hc_post": _plan}
