"""How close a recorded decision was, and how far its values stick out: what a small trace is chosen by."""

from __future__ import annotations

from typing import Any

import torch

from tandem.ops.numerics import softplus
from tandem.parity.values import leaves

Tensor = torch.Tensor
# Ops whose outputs are choices.  Their records are kept whatever the budget.
DECISIONS = frozenset(
    {"moe_route", "topk_index", "sample", "head_sample", "top_logprobs", "draft_sample", "spec_verify", "aux.accept"}
)


def margin(op: str, host: dict[str, Any], gate: Tensor | None) -> float:
    """The smallest gap between chosen and not chosen over the rows, relative to the row's largest score.

    Args:
        host: arguments on the host.
        gate: f32 [E, H] of a routing call.
    Returns:
        Infinity for ops that decide nothing, where everything is chosen, and where the scores are no argument.
    """
    if op in ("sample", "draft_sample", "spec_verify"):
        return _gap(host["logits"], 1)
    if op == "topk_index":
        return _gap(host["scores"].float(), host["k"])
    if op == "moe_route" and gate is not None:
        scores = torch.sqrt(softplus(host["x"].float() @ gate.t()))
        bias = torch.where((host["roles"] != 0).unsqueeze(-1), host["bias_vl"], host["bias"])
        return _gap(scores + bias, host["k"])
    return float("inf")


def _gap(scores: Tensor, k: int) -> float:
    if scores.shape[-1] <= k or not scores.numel():
        return float("inf")
    scores = torch.where(torch.isnan(scores), float("-inf"), scores)
    best = torch.topk(scores, k + 1, dim=-1).values
    last, next_one = best[:, k - 1], best[:, k]
    usable = torch.isfinite(last) & torch.isfinite(next_one)
    gaps = (last - next_one)[usable] / best[:, 0].abs()[usable].clamp_min(1e-30)
    return float(gaps.min()) if gaps.numel() else float("inf")


def outlier(outputs: dict[str, Any]) -> float:
    """Largest magnitude in units of the root mean square, over all floating-point outputs."""
    found = 0.0
    for value in leaves(outputs).values():
        if value.is_floating_point() and value.numel():
            wide = torch.nan_to_num(value.float(), posinf=0.0, neginf=0.0)
            rms = float(wide.square().mean().sqrt())
            found = max(found, float(wide.abs().max()) / rms) if rms > 0 else found
    return found
