"""Differentiable building blocks of the graph: products, norms, rotations, residual streams."""

from __future__ import annotations

from typing import Any

import torch

from tools.train_nano.fakequant import Precision, round_bf16, round_mxfp8, straight_through
from tools.train_nano.fuse import fused

Tensor = torch.Tensor

_ITERATIONS_WITH_GRADIENT = 4


class _FastProduct(torch.autograd.Function):
    """x @ w.T with bf16 operands, gradients included; twice as fast as f32 here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        narrow_x, narrow_w = x.to(torch.bfloat16), w.to(torch.bfloat16)
        ctx.save_for_backward(narrow_x, narrow_w)
        return (narrow_x @ narrow_w.mT).to(torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        gradient = gradients[0].to(torch.bfloat16)
        to_x = (gradient @ w).to(torch.float32)
        if w.ndim == 2:
            to_w = gradient.flatten(0, -2).mT @ x.flatten(0, -2)
        else:
            to_w = gradient.mT @ x
        return to_x, to_w.to(torch.float32)


def fast_product(x: Tensor, w: Tensor) -> Tensor:
    """x @ w.mT with bf16 operands and result, held as f32."""
    result: Tensor = _FastProduct.apply(x, w)  # type: ignore[no-untyped-call]
    return result


def product(x: Tensor, w: Tensor, precision: Precision, wide: bool = False) -> Tensor:
    """x [..., K] @ w [N, K].T, or batched x [E, T, K] and w [E, N, K].

    The result is rounded to bf16 where activations are, unless `wide`.
    """
    if precision.fast:
        return fast_product(x, w)
    result = x @ w.mT
    return result if wide else rounded(result, precision)


def quantised(x: Tensor, precision: Precision) -> Tensor:
    """The fp8 copy of an activation that quantised products read."""
    return straight_through(x, round_mxfp8) if precision.activations else x


def rounded(x: Tensor, precision: Precision) -> Tensor:
    """An activation as it is stored between operations."""
    return straight_through(x, round_bf16) if precision.activations else x


@fused
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@fused
def rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """Rotate interleaved pairs of the last dims of x [B, T, ..., D]; cos and sin [T, rd/2]."""
    width = 2 * cos.shape[-1]
    shape = (1, cos.shape[0], *(1,) * (x.ndim - 3), cos.shape[-1])
    cos, sin = cos.view(shape), (-sin if inverse else sin).view(shape)
    plain, turned = x[..., :-width], x[..., -width:].unflatten(-1, (-1, 2))
    even, odd = turned.unbind(-1)
    pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return torch.cat((plain, pairs.flatten(-2)), dim=-1)


@fused
def mixing(
    trunk: Tensor, fn: Tensor, base: Tensor, scale: Tensor, settings: tuple[float, float, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients of a sub-layer from the trunk [B, T, m, H]: pre, post [B, T, m] and comb [B, T, m, m].

    `settings` is (norm eps, hyper-connection eps, Sinkhorn iterations).
    """
    norm_eps, eps, iterations = settings
    m = trunk.shape[-2]
    flat = trunk.flatten(-2)
    mixes = (flat @ fn.t()) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    pre = torch.sigmoid(mixes[..., :m] * scale[0] + base[:m]) + eps
    post = 2.0 * torch.sigmoid(mixes[..., m : 2 * m] * scale[1] + base[m : 2 * m])
    comb = (mixes[..., 2 * m :] * scale[2] + base[2 * m :]).unflatten(-1, (m, m))
    return pre, post, _sinkhorn(comb, eps, iterations)


def _sinkhorn(logits: Tensor, eps: float, iterations: int) -> Tensor:
    """Rows and columns normalised in turn.

    The scalings have settled long before the last iterations, so the first ones are computed without a
    gradient and enter the others as constants.
    """
    comb = torch.softmax(logits, dim=-1) + eps
    early = max(iterations - _ITERATIONS_WITH_GRADIENT, 0)
    if early and comb.requires_grad:
        fixed = comb.detach()
        return _alternate(comb * (_normalise(fixed, eps, early) / fixed), eps, iterations - early)
    return _normalise(comb, eps, iterations)


def _normalise(comb: Tensor, eps: float, iterations: int) -> Tensor:
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return _alternate(comb, eps, iterations - 1)


def _alternate(comb: Tensor, eps: float, iterations: int) -> Tensor:
    for _ in range(iterations):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb


@fused
def collapse(trunk: Tensor, pre: Tensor) -> Tensor:
    """Sum of the streams [B, T, m, H] weighted by pre [B, T, m] -> [B, T, H]."""
    return (trunk * pre.unsqueeze(-1)).sum(-2)


@fused
def write_back(trunk: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """new[j] = post[j] * y + sum over i of comb[i, j] * old[i]."""
    mixed = (comb.unsqueeze(-1) * trunk.unsqueeze(-2)).sum(-3)
    return mixed + post.unsqueeze(-1) * y.unsqueeze(-2)
