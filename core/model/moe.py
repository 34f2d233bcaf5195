"""The mixture-of-experts sub-layer."""

from __future__ import annotations

import torch

from tandem.contract.plan import Plan, weight_attrs
from tandem.contract.types import MoEWeights, QTensor
from tandem.model.config import TextConfig
from tandem.model.step import StepContext
from tandem.model.weights import WeightLoader

Tensor = torch.Tensor


class MoE:
    """Routed experts and the shared expert of one layer."""

    def __init__(self, plan: Plan, load: WeightLoader, text: TextConfig, layer: int) -> None:
        site = f"layers.{layer}.ffn"
        count = text.n_routed_experts
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
            k=text.num_experts_per_tok,
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

    def forward(self, x: Tensor, xq: QTensor, context: StepContext) -> Tensor:
        """x bf16 [T, H] normalised input, xq its quantised copy -> bf16 [T, H]."""
        rows = context.step.rows
        result: Tensor = self._block(x, xq, rows.slot, rows.roles, self.weights)
        return result
