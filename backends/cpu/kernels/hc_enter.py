"""`hc_enter`: see csrc/cpu/ops/hc_enter.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native, temporary
from tandem.backends.cpu.kernels import _hyper
from tandem.backends.cpu.kernels._shapes import require
from tandem.contract.types import HcMix, HcWeights, QFormat, QTensor

Tensor = torch.Tensor


def hc_enter(trunk: Tensor, pre_prev: Tensor, weights: HcWeights, norm_weight: Tensor) -> tuple[Tensor, QTensor, HcMix]:
    """See core/ops/hc_enter.py."""
    rows, m, width = trunk.shape
    require("hc_enter", pre_prev=(pre_prev, (rows, m)), norm_weight=(norm_weight, (width,)))
    trunk, partial, mix = trunk.contiguous(), _hyper.empty_partial(trunk), _hyper.empty_mix(trunk)
    x = temporary.empty((rows, width), dtype=torch.bfloat16)
    xq = activations.empty("hc_enter", (rows, width), QFormat.MXFP8)
    read = (trunk, pre_prev, *_hyper.projection("hc_enter", trunk, weights), norm_weight)
    written = (partial, x, xq.data, xq.scale, *mix)
    native.run("hc_enter", *read, *written, *_hyper.numbers(trunk, partial, weights))
    return x, xq, mix


OPS: dict[str, Any] = {"hc_enter": hc_enter}
