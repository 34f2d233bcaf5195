"""`quantize`: bf16 rows to a quantised tensor.

Reads x bf16 [T, N], N a multiple of the format's group; returns a QTensor in the layout this backend's ops read.
mxfp8: e4m3, groups of 32, ue8m0 scale = amax/448 rounded up, amax at least 1e-4.  mxfp4: e2m1, groups of 32, ue8m0
scale = amax/6 rounded up.  nvfp4: e2m1, groups of 16, scale = e4m3_rn(min(amax/6, 448)), amax at least 6*2^-9, codes from
the division by the rounded scale.  Ties to even codes, saturating, -0 becomes 0 in e2m1.
A NaN makes its group's scale NaN (and, in e4m3, its own code).  Class Q.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op
from tandem.contract.types import QFormat, QTensor
from tandem.ops.numerics import encode_rows

Tensor = torch.Tensor


@op("quantize", classes={"q": "Q"}, attrs=("fmt",))
def quantize(x: Tensor, fmt: QFormat) -> QTensor:
    """Plain-torch reference; see the module docstring."""
    codes, scales = encode_rows(x, fmt)
    return QTensor(codes, scales, fmt, tuple(x.shape))
