"""Muon: momentum whose matrices are orthogonalised (Jordan et al. 2024), sized like AdamW steps (Liu et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

Tensor = torch.Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic whose iteration drives singular values towards 1
_ITERATIONS = 5
_SIZE = 0.2  # root mean square of an AdamW step


class Muon(torch.optim.Optimizer):
    """For matrices [N, K] and stacks of them [E, N, K].

    Args:
        params: parameter groups with ``lr`` and ``weight_decay``.
        momentum: decay of the running gradient; Nesterov's form.
    """

    def __init__(self, params: Iterable[Any], momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": 0.0, "weight_decay": 0.0, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for value in group["params"]:
                if value.grad is None:
                    continue
                state = self.state[value]
                if not state:
                    state["momentum"] = torch.zeros_like(value)
                state["momentum"].lerp_(value.grad, 1.0 - group["momentum"])
                update = orthogonalise(value.grad.lerp(state["momentum"], group["momentum"]))
                value.mul_(1.0 - group["lr"] * group["weight_decay"])
                value.add_(update, alpha=-group["lr"] * _SIZE * max(value.shape[-2:]) ** 0.5)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Nearly the nearest semi-orthogonal matrices to [..., N, K]: singular values between about 0.7 and 1.2."""
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(torch.bfloat16)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.mT if tall else x).to(torch.float32)
