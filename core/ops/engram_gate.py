"""`engram_gate`: add the looked-up memory to the residual streams.

Reads trunk bf16 [T, m, H], kv bf16 [T, (m + 1) * H] (m keys, then one value), qk f32 [m, H] (product of the two norm
weights), eps, roles int32 [T].  Returns bf16 [T, m, H].
s_j = sum(h_j qk_j k_j) * rsqrt(mean h_j^2 + eps) * rsqrt(mean k_j^2 + eps) * H^-0.5;
g = sigmoid(copysign(sqrt(max(|s|, 1e-6)), s)); h_j + g v, rounded once.  Rows with a role other than 0 pass
unchanged.  Class A.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op
from tandem.ops.numerics import sigmoid

Tensor = torch.Tensor


@op("engram_gate", classes={"trunk": "A"}, attrs=("m",))
def engram_gate(trunk: Tensor, kv: Tensor, qk: Tensor, eps: float, roles: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    m, width = trunk.shape[1], trunk.shape[2]
    h = trunk.to(torch.float32)
    k = kv.to(torch.float32).unflatten(-1, (m + 1, width))
    key, value = k[:, :m], k[:, m:]
    dot = (h * qk * key).sum(-1)
    inverse_h = torch.rsqrt((h * h).sum(-1) / width + eps)
    inverse_k = torch.rsqrt((key * key).sum(-1) / width + eps)
    s = dot * inverse_h * inverse_k * width**-0.5
    gate = sigmoid(torch.copysign(torch.sqrt(s.abs().clamp_min(1e-6)), s))
    updated = (h + gate.unsqueeze(-1) * value).to(torch.bfloat16)
    return torch.where((roles == 0)[:, None, None], updated, trunk)
