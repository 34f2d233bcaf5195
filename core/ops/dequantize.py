"""`dequantize`: a quantised tensor back to bf16, exactly.

Args: q (QTensor [T,N]) -> [T,N] bf16

Reads a QTensor [T, N]; returns bf16 [T, N] = code * scale in f32, rounded once (exact for every format within
bf16's range).  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import QFormat, QTensor
from tandem.ops.numerics import decode_rows

Tensor = torch.Tensor


@op("dequantize", classes={"x": "X"}, parts=("to_canonical",), attrs=("fmt",))
def dequantize(parts: Any, q: QTensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    plain = parts.to_canonical(q)
    return decode_rows(plain.data, plain.scale, plain.fmt).to(torch.bfloat16)


@case("dequantize", "mxfp8", FEW_ROWS)
def _mxfp8(seed: int, rows: int) -> dict[str, Any]:
    return {"q": Draw(seed).quantised(QFormat.MXFP8, rows, 96)}


@case("dequantize", "mxfp4", FEW_ROWS)
def _mxfp4(seed: int, rows: int) -> dict[str, Any]:
    return {"q": Draw(seed).quantised(QFormat.MXFP4, rows, 96)}


@case("dequantize", "nvfp4", FEW_ROWS)
def _nvfp4(seed: int, rows: int) -> dict[str, Any]:
    return {"q": Draw(seed).quantised(QFormat.NVFP4, rows, 96)}


@case("dequantize", "every-e4m3-number")
def _all_codes(seed: int) -> dict[str, Any]:
    codes = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F] + [0, 0], dtype=torch.uint8).view(1, 256)
    scales = torch.tensor([[3, 60, 100, 126, 127, 128, 140, 240]], dtype=torch.uint8)
    return {"q": QTensor(codes, scales, QFormat.MXFP8, (1, 256))}
