"""`dequantize`: a quantised tensor back to bf16, exactly.

Reads a QTensor [T, N]; returns bf16 [T, N] = code * scale in f32, rounded once (exact for every format within
bf16's range).  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import op
from tandem.contract.types import QTensor
from tandem.ops.numerics import decode_rows

Tensor = torch.Tensor


@op("dequantize", classes={"x": "X"}, parts=("to_canonical",), attrs=("fmt",))
def dequantize(parts: Any, q: QTensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    plain = parts.to_canonical(q)
    return decode_rows(plain.data, plain.scale, plain.fmt).to(torch.bfloat16)
