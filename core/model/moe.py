"""The mixture-of-experts sub-layer."""

from __future__ import annotations

import torch

from tandem.contract.plan import Plan, weight_attrs
from tandem.contract.types import MoEWeights, QTensor
from tandem.model.config import TextConfig
from tandem.model.weights import WeightLoader

Tensor = torch.Tensor


class MoE:
    """Routed experts and the shared expert of one layer.

    Args:
        site: prefix of the layer's tensors, and its name in plans.
        count: routed experts.
        chosen: how many of them a row goes to.
    """

    def __init__(
        self, plan: Plan, load: WeightLoader, text: TextConfig, site: str, count: int, chosen: int
    ) -> None:
        self.weights = MoEWeights(
            gate=load.linear(f"{site}.gate"),
            bias=load.vector(f"{site}.gate.bias"),
            bias_vl=load.vector(f"{site}.gate.bias_vl"),
            w1=load.experts(f"{site}.experts", "w1", count),
            w3=load.experts(f"{site}.experts", "w3", count),
            w2=load.experts(f"{site}.experts", "w2", count),
            shared_w1=load.linear(f"{site}.shared_experts.w1"),
            shared_w3=load.linear(f"{site}.shared_experts.w3"),
            shared_w2=load.linear(f"{site}.shared_experts.w2"),
            k=chosen,
            scaling=text.routed_scaling_factor,
            limit=text.swiglu_limit,
            local=load.shard.expert_range(count),
        )
        shared = self.weights.shared_w1
        self._block = plan.bind(
            "moe_block",
            site,
            k=self.weights.k,
            experts=count,
            x="mxfp8",
            shared_w=shared.fmt.value,
            shared_layout=shared.layout,
            **weight_attrs(self.weights.w1),
        )

    def forward(self, x: Tensor, xq: QTensor, slot: Tensor, roles: Tensor) -> Tensor:
        """x bf16 [T, H] normalised input, xq its quantised copy, slot and roles int32 [T] -> bf16 [T, H]."""
        result: Tensor = self._block(x, xq, slot, roles, self.weights)
        return result
