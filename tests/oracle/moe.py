"""Mixture of experts: sqrt-softplus router, clamped SwiGLU experts, one shared expert."""

from __future__ import annotations

import torch
from torch import Tensor

from .arith import Arith
from .attention import Shared
from .choices import select
from .quant import Weights
from .settings import Settings


def router_scores(logits: Tensor) -> Tensor:
    """sqrt(softplus(x)) without cancellation for very negative x."""
    return (torch.log1p(torch.exp(-logits.abs())) + logits.clamp(min=0)).sqrt()


class Moe:
    """The MoE sub-layer of every layer."""

    def __init__(self, settings: Settings, weights: Weights, arith: Arith) -> None:
        self._settings, self._weights, self._arith = settings, weights, arith

    def route(self, layer: int, x: Tensor, roles: Tensor, shared: Shared) -> tuple[Tensor, Tensor]:
        """Expert ids [T, k] in slot order and weights [T, k]; the bias decides, the plain score weighs."""
        arith, weights, settings = self._arith, self._weights, self._settings
        prefix = f"layers.{layer}.ffn.gate"
        scores = router_scores(arith.linear(x, weights.get(f"{prefix}.weight")))
        bias = torch.where(
            (roles == 0)[:, None], weights.get(f"{prefix}.bias"), weights.get(f"{prefix}.bias_vl")
        )
        every = torch.ones_like(scores, dtype=torch.bool)
        picked, gaps = select(
            scores + bias, every, every, settings.experts_per_token, shared.given.experts, layer
        )
        shared.made.experts = {**shared.made.experts, layer: picked}
        shared.margins.experts[layer] = gaps
        experts = torch.tensor(picked)
        chosen = scores.gather(1, experts)
        return experts, chosen / (chosen.sum(dim=1, keepdim=True) + 1e-20) * settings.route_scale

    def expert(self, prefix: str, x: Tensor, weight: Tensor | None) -> Tensor:
        """One expert on rows x [n, D]; the routing weight [n, 1] scales the activation before w2."""
        arith, weights, limit = self._arith, self._weights, self._settings.swiglu_limit
        gate = arith.wide(weights.qlin(x, f"{prefix}.w1.weight")).clamp(max=limit)
        up = arith.wide(weights.qlin(x, f"{prefix}.w3.weight")).clamp(-limit, limit)
        inner = gate * torch.sigmoid(gate) * up
        return weights.qlin(inner if weight is None else inner * weight, f"{prefix}.w2.weight")

    def __call__(self, layer: int, x: Tensor, roles: Tensor, shared: Shared) -> Tensor:
        """x bf16 [T, D], the normed input -> bf16 [T, D]."""
        arith, prefix = self._arith, f"layers.{layer}.ffn"
        experts, share = self.route(layer, x, roles, shared)
        outputs = torch.zeros(*experts.shape, x.shape[1], dtype=torch.bfloat16)
        for e in experts.unique().tolist():
            token, slot = torch.nonzero(experts == e, as_tuple=True)
            outputs[token, slot] = self.expert(f"{prefix}.experts.{e}", x[token], share[token, slot, None])
        total = arith.wide(outputs[:, 0])
        for slot_number in range(1, experts.shape[1]):
            total = total + arith.wide(outputs[:, slot_number])
        return arith.bf16(total + arith.wide(self.expert(f"{prefix}.shared_experts", x, None)))
