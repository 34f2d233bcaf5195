"""`hc_mean`: mean of the residual streams, the feature that draft stages tap.

Reads trunk bf16 [T, m, H]; returns bf16 [T, H], summed in stream order in f32, rounded once.  Class U(1).
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op

Tensor = torch.Tensor


@op("hc_mean", classes={"x": "U1"}, attrs=("m",))
def hc_mean(trunk: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    wide = trunk.to(torch.float32)
    total = wide[:, 0]
    for i in range(1, trunk.shape[1]):
        total = total + wide[:, i]
    return (total / trunk.shape[1]).to(torch.bfloat16)
