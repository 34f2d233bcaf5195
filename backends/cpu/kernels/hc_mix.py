"""`hc_mix`: see csrc/cpu/ops/hc_mix.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native
from tandem.backends.cpu.kernels import _hyper
from tandem.contract.types import HcMix, HcWeights

Tensor = torch.Tensor


def hc_mix(trunk: Tensor, weights: HcWeights) -> HcMix:
    """See core/ops/hc_mix.py."""
    trunk, partial, mix = trunk.contiguous(), _hyper.empty_partial(trunk), _hyper.empty_mix(trunk)
    arrays = (trunk, *_hyper.projection("hc_mix", trunk, weights), partial, *mix)
    native.run("hc_mix", *arrays, *_hyper.numbers(trunk, partial, weights))
    return mix


OPS: dict[str, Any] = {"hc_mix": hc_mix}
