"""`quantize`: bf16 rows to a quantised tensor.

Args: x[T,N] bf16, fmt -> QTensor [T,N]

Reads x bf16 [T, N], N a multiple of the format's group; returns a QTensor in the layout this backend's ops
read. mxfp8: e4m3, groups of 32, ue8m0 scale = amax/448 rounded up, amax at least 1e-4.  mxfp4: e2m1, groups
of 32, ue8m0 scale = amax/6 rounded up.  nvfp4: e2m1, groups of 16, scale = e4m3_rn(min(amax/6, 448)), amax at
least 6*2^-9, codes from the division by the rounded scale.  Ties to even codes, saturating, -0 becomes 0 in
e2m1. A NaN makes its group's scale NaN (and, in e4m3, its own code).  Class Q.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import QFormat, QTensor
from tandem.ops.numerics import encode_rows

Tensor = torch.Tensor


@op("quantize", classes={"q": "Q"}, attrs=("fmt",))
def quantize(x: Tensor, fmt: QFormat) -> QTensor:
    """Plain-torch reference; see the module docstring."""
    codes, scales = encode_rows(x, fmt)
    return QTensor(codes, scales, fmt, tuple(x.shape))


@case("quantize", "mxfp8", ROWS)
def _mxfp8(seed: int, rows: int) -> dict[str, Any]:
    return {"x": _spread(seed, rows), "fmt": QFormat.MXFP8}


@case("quantize", "mxfp4", ROWS)
def _mxfp4(seed: int, rows: int) -> dict[str, Any]:
    return {"x": _spread(seed, rows), "fmt": QFormat.MXFP4}


@case("quantize", "nvfp4", ROWS)
def _nvfp4(seed: int, rows: int) -> dict[str, Any]:
    return {"x": _spread(seed, rows), "fmt": QFormat.NVFP4}


@case("quantize", "mxfp8-ties-zeros-and-limits")
def _mxfp8_edges(seed: int) -> dict[str, Any]:
    return {"x": _edges(448.0), "fmt": QFormat.MXFP8}


@case("quantize", "mxfp4-ties-zeros-and-limits")
def _mxfp4_edges(seed: int) -> dict[str, Any]:
    return {"x": _edges(6.0), "fmt": QFormat.MXFP4}


@case("quantize", "nvfp4-ties-zeros-and-limits")
def _nvfp4_edges(seed: int) -> dict[str, Any]:
    return {"x": _edges(6.0), "fmt": QFormat.NVFP4}


@case("quantize", "several-tiles")
def _wide(seed: int) -> dict[str, Any]:
    """Rows of several tiles, the last one not full."""
    return {"x": Draw(seed).bf16(3, 288), "fmt": QFormat.MXFP8}


def _spread(seed: int, rows: int) -> Tensor:
    """Groups whose sizes differ by many powers of two."""
    draw = Draw(seed)
    size = torch.exp2(draw.i32(-20, 20, rows, 6, 1).to(torch.float32))
    return (draw.f32(rows, 6, 16) * size).flatten(1).to(torch.bfloat16)


def _edges(largest: float) -> Tensor:
    """Groups of 32 that start with the largest code: the scale is one and later values fall on ties."""
    ties = torch.tensor(
        [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.1, -0.0, 0.125, -5.0, 0.0625, 2.25, 1.125]
    )
    row = torch.cat((torch.tensor([largest]), ties)).repeat(2)
    tiny, huge = torch.full((32,), 2.0**-130), torch.full((32,), 3.0e38)
    above = torch.full((32,), largest * 1.0625)
    return torch.stack((row, -row, torch.zeros(32), tiny, huge, above)).to(torch.bfloat16)
