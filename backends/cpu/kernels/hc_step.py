"""`hc_step`: see csrc/cpu/ops/hc_step.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native, temporary
from tandem.backends.cpu.kernels import _hyper
from tandem.backends.cpu.kernels._shapes import require
from tandem.contract.types import HcMix, HcWeights, QFormat, QTensor

Tensor = torch.Tensor


def hc_step(
    y: Tensor, trunk: Tensor, mix: HcMix, weights: HcWeights, norm_weight: Tensor
) -> tuple[Tensor, Tensor, QTensor, HcMix]:
    """See core/ops/hc_step.py."""
    rows, m, width = trunk.shape
    require("hc_step", y=(y, (rows, width)), norm_weight=(norm_weight, (width,)))
    require("hc_step", pre=(mix.pre, (rows, m)), post=(mix.post, (rows, m)), comb=(mix.comb, (rows, m, m)))
    y, trunk, partial = y.contiguous(), trunk.contiguous(), _hyper.empty_partial(trunk)
    left, entered = temporary.empty((rows, m, width), dtype=torch.bfloat16), _hyper.empty_mix(trunk)
    x = temporary.empty((rows, width), dtype=torch.bfloat16)
    xq = activations.empty("hc_step", (rows, width), QFormat.MXFP8)
    read = (y, trunk, *mix, *_hyper.projection("hc_step", trunk, weights), norm_weight)
    written = (partial, left, x, xq.data, xq.scale, *entered)
    native.run("hc_step", *read, *written, *_hyper.numbers(trunk, partial, weights))
    return left, x, xq, entered


OPS: dict[str, Any] = {"hc_step": hc_step}
