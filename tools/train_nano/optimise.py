"""AdamW by parameter kind, learning-rate schedule, expert balancing, the pull onto the stored grid."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from tools.train_nano.graph import Observations
from tools.train_nano.parameters import stored_value

Tensor = torch.Tensor

_TABLE_RATE = 3.0  # a table row is met rarely, so it learns faster
_BETAS = (0.9, 0.95)


class Optimiser:
    """AdamW over named parameters.

    Args:
        parameters: those to train.
        rate: peak learning rate.
        decay: weight decay of matrices; vectors, tables and hyper-connections have none.
    """

    def __init__(self, parameters: Mapping[str, Tensor], rate: float, decay: float) -> None:
        self.parameters = dict(parameters)
        groups = [
            {"params": [value], "lr": rate * _relative_rate(name), "weight_decay": decay * _decays(name, value)}
            for name, value in self.parameters.items()
        ]
        self._peaks = [rate * _relative_rate(name) for name in self.parameters]
        self._adam = torch.optim.AdamW(groups, betas=_BETAS, eps=1e-10, fused=True)

    def step(self, share_of_peak: float) -> float:
        """One step at a share of the peak rate from the gradients present; returns their norm before clipping to 1."""
        norm = torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), 1.0)
        for group, peak in zip(self._adam.param_groups, self._peaks, strict=True):
            group["lr"] = peak * share_of_peak
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return float(norm)

    def state(self) -> dict[str, Tensor]:
        """Moments and counts as ``moment/name``, for `load`."""
        return {
            f"{moment}/{name}": tensor
            for name, value in self.parameters.items()
            for moment, tensor in self._adam.state.get(value, {}).items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        for key, tensor in state.items():
            moment, _, name = key.partition("/")
            self._adam.state[self.parameters[name]][moment] = tensor.clone()


def _decays(name: str, value: Tensor) -> bool:
    return value.ndim > 1 and not name.endswith(("embed", "q_weight", "k_weight")) and ".hc_" not in name


def _relative_rate(name: str) -> float:
    return _TABLE_RATE if name.endswith("engram.embed") else 1.0


def schedule(step: int, steps: int, warmup: int = 50) -> float:
    """Share of the peak rate: a linear rise, then half a cosine down to zero at the end."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))


def balance(parameters: Mapping[str, Tensor], seen: Observations, rate: float) -> None:
    """Move each router bias towards even load: up for experts below the mean, down for those above."""
    for layer, load in seen.loads.items():
        bias = parameters[f"layers.{layer}.ffn.gate.bias"]
        bias += rate * torch.sign(load.float().mean() - load.float())


@torch.no_grad()
def pull_to_grid(parameters: Mapping[str, Tensor], dtypes: Mapping[str, str], strength: float) -> None:
    """Move every parameter a part of the way to its stored value; strength 1 puts it there.

    Late in training it stops weights from swinging between two codes, and in the end what was trained is what is
    stored.
    """
    for name, value in parameters.items():
        value.lerp_(stored_value(name, value, dtypes[name]), strength)
