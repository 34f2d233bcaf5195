"""`rms_norm`: root-mean-square normalisation, optionally with the quantised copy that feeds fp8 products.

Reads x bf16 [T, N], weight f32 [N] or None, eps.  Returns (y bf16 [T, N], yq mxfp8 or None).
y = x * rsqrt(mean(x^2) + eps) * weight, one f32 chain, rounded once.  eps may be as small as 1e-20: an all-zero row gives zeros.
Class U(1) for y, Q for yq (quantised from the rounded y).
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import op
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


@op("rms_norm", classes={"y": "U1", "yq": "Q"}, parts=("quantize",), attrs=("quant",))
def rms_norm(
    parts: Any, x: Tensor, weight: Tensor | None, eps: float, quant: bool
) -> tuple[Tensor, QTensor | None]:
    """Plain-torch reference; see the module docstring."""
    wide = x.to(torch.float32)
    y = wide * torch.rsqrt((wide * wide).sum(-1, keepdim=True) / x.shape[-1] + eps)
    if weight is not None:
        y = y * weight
    y = y.to(torch.bfloat16)
    return y, parts.quantize(y, QFormat.MXFP8) if quant else None
