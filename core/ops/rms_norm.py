"""`rms_norm`: root-mean-square normalisation, optionally with the quantised copy that feeds fp8 products.

Args: x[T,N] bf16, weight[N] f32 or None, eps, quant -> y[T,N] bf16, yq mxfp8 [T,N] or None; one f32 chain, one
rounding

Reads x bf16 [T, N], weight f32 [N] or None, eps.  Returns (y bf16 [T, N], yq mxfp8 or None). y = x *
rsqrt(mean(x^2) + eps) * weight, one f32 chain, rounded once.  eps may be as small as 1e-20: an all-zero row
gives zeros; yq is quantised from the rounded y.  Classes: y U(1), yq Q.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import QFormat, QTensor
from tandem.ops.numerics import row_sum

Tensor = torch.Tensor


@op("rms_norm", classes={"y": "U(1)", "yq": "Q"}, parts=("quantize",), attrs=("quant",))
def rms_norm(
    parts: Any, x: Tensor, weight: Tensor | None, eps: float, quant: bool
) -> tuple[Tensor, QTensor | None]:
    """Plain-torch reference; see the module docstring."""
    wide = x.to(torch.float32)
    y = wide * torch.rsqrt(row_sum(wide * wide).unsqueeze(-1) / x.shape[-1] + eps)
    if weight is not None:
        y = y * weight
    y = y.to(torch.bfloat16)
    return y, parts.quantize(y, QFormat.MXFP8) if quant else None


@case("rms_norm", "quantised", ROWS)
def _quantised(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {"x": draw.bf16(rows, 96, scale=5.0), "weight": draw.f32(96), "eps": 1e-20, "quant": True}


@case("rms_norm", "odd-width-without-weight", ROWS)
def _plain(seed: int, rows: int) -> dict[str, Any]:
    return {"x": Draw(seed).bf16(rows, 67), "weight": None, "eps": 1e-6, "quant": False}


@case("rms_norm", "values-of-the-size-of-eps")
def _small(seed: int) -> dict[str, Any]:
    arguments = _quantised(seed, 5) | {"x": Draw(seed).bf16(5, 96, scale=1e-3)}
    return arguments | {"eps": 1e-6}


@case("rms_norm", "zero-row-and-nan-row")
def _special(seed: int) -> dict[str, Any]:
    arguments = _quantised(seed, 5)
    arguments["x"][1] = 0.0
    arguments["x"][3, 40] = float("nan")
    return arguments


@case("rms_norm", "quantised-without-weight")
def _quantised_plain(seed: int) -> dict[str, Any]:
    return _quantised(seed, 5) | {"weight": None}


@case("rms_norm", "weighted")
def _weighted(seed: int) -> dict[str, Any]:
    return _quantised(seed, 5) | {"quant": False}


@case("rms_norm", "wide-rows")
def _wide(seed: int) -> dict[str, Any]:
    """Rows of several tiles."""
    draw = Draw(seed)
    return {"x": draw.bf16(2, 4128, scale=5.0), "weight": draw.f32(4128), "eps": 1e-6, "quant": True}
