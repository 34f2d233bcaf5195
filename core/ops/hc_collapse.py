"""`hc_collapse`: weighted sum of the residual streams.

Reads trunk bf16 [T, m, H], pre f32 [T, m]; returns bf16 [T, H] = sum over streams 0..m-1, in that order, in f32,
rounded once.  Class U(1).  Source: hyper-connection input of a sub-layer, and the final collapse.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op

Tensor = torch.Tensor


@op("hc_collapse", classes={"x": "U1"}, attrs=("m",))
def hc_collapse(trunk: Tensor, pre: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    wide = trunk.to(torch.float32)
    total = pre[:, 0:1] * wide[:, 0]
    for i in range(1, trunk.shape[1]):
        total = total + pre[:, i : i + 1] * wide[:, i]
    return total.to(torch.bfloat16)
