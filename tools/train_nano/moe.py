"""Differentiable mixture of experts: tokens grouped by expert, one batched product for each matrix."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tandem.model.config import TextConfig
from tools.train_nano.fakequant import Precision
from tools.train_nano.primitives import product, quantised, rounded

Tensor = torch.Tensor


def moe(
    x: Tensor, w: Mapping[str, Tensor], k: int, text: TextConfig, precision: Precision
) -> tuple[Tensor, Tensor]:
    """x [N, H] normalised -> output [N, H] and the tokens of each expert, int64 [E].

    `w` has names relative to ``layers.N.ffn.``; `gate.bias` takes part in the choice only.
    """
    rows, experts = x.shape[0], w["gate"].shape[0]
    scores = torch.sqrt(torch.nn.functional.softplus(x @ w["gate"].t()))
    choice = torch.sort(scores.detach() + w["gate.bias"].detach(), dim=-1, descending=True, stable=True).indices[:, :k]
    picked = torch.gather(scores, 1, choice)
    weights = picked / (picked.sum(-1, keepdim=True) + 1e-20) * text.routed_scaling_factor
    load = torch.bincount(choice.flatten(), minlength=experts)
    xq = quantised(x, precision)
    order = torch.argsort(choice.flatten(), stable=True)
    token, expert = order // k, choice.flatten()[order]
    capacity = int(load.max())
    starts = torch.cumsum(load, 0) - load
    place = expert * capacity + torch.arange(rows * k) - starts[expert]
    grouped = x.new_zeros((experts * capacity, x.shape[1])).index_copy(0, place, xq[token])
    share = x.new_zeros(experts * capacity).index_copy(0, place, weights.flatten()[order])
    grouped = grouped.view(experts, capacity, -1)
    gate, up = (product(grouped, w[f"experts.{name}"], precision) for name in ("w1", "w3"))
    inner = _swiglu(gate, up, text.swiglu_limit)
    inner = quantised(inner * share.view(experts, capacity, 1), precision)
    routed = product(inner, w["experts.w2"], precision).flatten(0, 1)[place]
    gate, up = (product(xq, w[f"shared_experts.{name}"], precision) for name in ("w1", "w3"))
    shared = quantised(_swiglu(gate, up, text.swiglu_limit), precision)
    output = product(shared, w["shared_experts.w2"], precision)
    return rounded(output.index_add(0, token, routed), precision), load


def _swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return torch.nn.functional.silu(gate.clamp_max(limit)) * up.clamp(-limit, limit)
