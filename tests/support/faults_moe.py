"""Faults of router, experts and number formats."""

from __future__ import annotations

import torch
from support.mutation import Edit, Fault, edit

Tensor = torch.Tensor
ROUTE = "ops.moe_route"
SWIGLU = "ops.swiglu_quant"
NUMERICS = "ops.numerics"


def _swapped_nibbles(name: str, tensor: Tensor) -> Tensor:
    if ".ffn.experts." not in name or not name.endswith(".weight"):
        return tensor
    byte = tensor.view(torch.uint8)
    return ((byte >> 4) | (byte << 4)).view(tensor.dtype)


def _shifted_scales(name: str, tensor: Tensor) -> Tensor:
    """The scale of the neighbouring group of 32."""
    if ".ffn.experts." not in name or not name.endswith(".scale"):
        return tensor
    return tensor.view(torch.uint8).roll(1, -1).view(tensor.dtype)


ROUTER = [
    edit(17, "bias in the weights", ROUTE, "moe_route", "torch.gather(scores, 1", "torch.gather(choice, 1"),
    edit(17, "no bias", ROUTE, "moe_route", "scores + torch.where(", "scores + 0 * torch.where("),
    edit(17, "scaled before normalisation", ROUTE, "moe_route", "(total + 1e-20) * scaling", "(total + 1e-20)"),
    edit(17, "eps 1e-6", ROUTE, "moe_route", "1e-20", "1e-6"),
    edit(17, "text bias for image rows", ROUTE, "moe_route", "(roles != 0)", "(roles < 0)"),
    edit(17, "image bias for pixels only", ROUTE, "moe_route", "(roles != 0)", "(roles == 2)"),
    edit(17, "sigmoid scores", ROUTE, "moe_route", "torch.sqrt(softplus(", "torch.sigmoid(("),
    edit(17, "softplus cancels", NUMERICS, "softplus",
         "torch.clamp_min(x, 0.0) + torch.log1p(torch.exp(-torch.abs(x)))", "torch.log(1.0 + torch.exp(x))"),
]  # fmt: skip

EXPERTS = [
    edit(18, "gate clamped from below", SWIGLU, "swiglu", ".clamp_max(limit)", ".clamp(-limit, limit)"),
    edit(18, "gate not clamped", SWIGLU, "swiglu", ".clamp_max(limit)", ""),
    edit(18, "up clamped from above only", SWIGLU, "swiglu", ".clamp(-limit, limit)", ".clamp_max(limit)"),
    edit(18, "up not clamped", SWIGLU, "swiglu", ".clamp(-limit, limit)", "", variant=True),
    Fault(18, "weight after w2", (
        Edit("ops.moe_experts", "moe_experts", "limit, batch.weight)", "limit)"),
        Edit("ops.moe_experts", "moe_experts", "return result",
             "return (result.float() * batch.weight.unsqueeze(-1)).to(result.dtype)"),
    )),
    Fault(19, "high nibble first", read=_swapped_nibbles),
    Fault(19, "scale of the next group", read=_shifted_scales),
]  # fmt: skip

FORMATS = [
    edit(20, "scales round down", NUMERICS, "ue8m0_round_up", " + ((bits & 0x7FFFFF) != 0).to(torch.int32)", ""),
    edit(20, "scales round to nearest", NUMERICS, "ue8m0_round_up", "(bits & 0x7FFFFF) != 0", "(bits & 0x400000) != 0",
         variant=True),
    edit(20, "no floor of the largest value", NUMERICS, "encode_rows", "(E4M3_MAX, 1e-4)", "(E4M3_MAX, 1e-30)"),
    edit(38, "fp4 ties round up", NUMERICS, "e2m1_encode",
         "a > 1.25\n    code += a >= 1.75\n    code += a > 2.5\n    code += a >= 3.5\n    code += a > 5.0",
         "a >= 1.25\n    code += a >= 1.75\n    code += a >= 2.5\n    code += a >= 3.5\n    code += a >= 5.0"),
]  # fmt: skip

FAULTS = [*ROUTER, *EXPERTS, *FORMATS]
