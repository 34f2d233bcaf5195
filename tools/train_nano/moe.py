"""Differentiable mixture of experts: tokens sorted by expert, each expert's rows multiplied at once."""

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
    experts = w["gate"].shape[0]
    scores = torch.sqrt(torch.nn.functional.softplus(x @ w["gate"].t()))
    choice = torch.sort(scores.detach() + w["gate.bias"].detach(), dim=-1, descending=True, stable=True).indices[:, :k]
    picked = torch.gather(scores, 1, choice)
    weights = picked / (picked.sum(-1, keepdim=True) + 1e-20) * text.routed_scaling_factor
    load = torch.bincount(choice.flatten(), minlength=experts)
    xq = quantised(x, precision)
    order = torch.argsort(choice.flatten(), stable=True)
    token = order // k
    sizes = load.tolist()
    grouped, share = xq[token], weights.flatten()[order]
    gate, up = (_by_expert(grouped, w[f"experts.{name}"], sizes, precision) for name in ("w1", "w3"))
    inner = quantised(_swiglu(gate, up, text.swiglu_limit) * share.unsqueeze(-1), precision)
    routed = _by_expert(inner, w["experts.w2"], sizes, precision)
    gate, up = (product(xq, w[f"shared_experts.{name}"], precision) for name in ("w1", "w3"))
    shared = quantised(_swiglu(gate, up, text.swiglu_limit), precision)
    output = product(shared, w["shared_experts.w2"], precision)
    return rounded(output.index_add(0, token, routed), precision), load


def _by_expert(x: Tensor, w: Tensor, sizes: list[int], precision: Precision) -> Tensor:
    """Rows x [N, K] sorted by expert times their experts' w [E, N', K]; `sizes` are the rows of each."""
    pairs = zip(x.split(sizes), w.unbind(0), strict=True)
    return torch.cat([product(rows, matrix, precision) for rows, matrix in pairs])


def _swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return torch.nn.functional.silu(gate.clamp_max(limit)) * up.clamp(-limit, limit)
