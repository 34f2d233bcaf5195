"""Shifted manifold-constrained hyper-connections: four residual streams, mixed by a Sinkhorn matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from .arith import Arith
from .quant import Weights
from .settings import Settings


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Row softmax + eps, one column normalisation, then (iterations - 1) of rows then columns. [T, m, m]."""
    comb = torch.softmax(logits, dim=-1) + eps
    comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(dim=-1, keepdim=True) + eps)
        comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    return comb


def mixes(
    arith: Arith, weights: Weights, settings: Settings, prefix: str, trunk: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """pre [T, m], post [T, m], comb [T, m, m] from the trunk [T, m, D] as it enters the sub-layer."""
    m = settings.hc_mult
    fn, base, scale = (weights.get(f"{prefix}_{part}") for part in ("fn", "base", "scale"))
    flat = arith.wide(trunk.flatten(1))
    raw = arith.linear(flat, fn) * arith.inverse_rms(flat, settings.norm_eps)
    pre = torch.sigmoid(raw[:, :m] * scale[0] + base[:m]) + settings.hc_eps
    post = 2.0 * torch.sigmoid(raw[:, m : 2 * m] * scale[1] + base[m : 2 * m])
    logits = (raw[:, 2 * m :] * scale[2] + base[2 * m :]).view(-1, m, m)
    return pre, post, sinkhorn(logits, settings.hc_sinkhorn_iters, settings.hc_eps)


def collapse(arith: Arith, pre: Tensor, trunk: Tensor) -> Tensor:
    """One bf16 row per token: the streams weighted by pre [T, m]."""
    total = pre[:, 0, None] * arith.wide(trunk[:, 0])
    for i in range(1, trunk.shape[1]):
        total = total + pre[:, i, None] * arith.wide(trunk[:, i])
    return arith.bf16(total)


def spread(arith: Arith, post: Tensor, comb: Tensor, y: Tensor, trunk: Tensor) -> Tensor:
    """New stream j = post_j * y + sum over i of comb[i, j] * old stream i, rounded once to bf16."""
    streams = []
    for j in range(trunk.shape[1]):
        total = post[:, j, None] * arith.wide(y)
        for i in range(trunk.shape[1]):
            total = total + comb[:, i, j, None] * arith.wide(trunk[:, i])
        streams.append(arith.bf16(total))
    return torch.stack(streams, dim=1)
