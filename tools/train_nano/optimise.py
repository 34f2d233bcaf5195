"""Optimiser by parameter kind, learning-rate schedule, expert balancing, the pull onto the stored grid."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from tools.train_nano.graph import Observations
from tools.train_nano.muon import Muon
from tools.train_nano.parameters import stored_value

Tensor = torch.Tensor

_TABLE_RATE = 3.0  # a table row is met rarely, so it learns faster
_BETAS = (0.9, 0.95)


class Optimiser:
    """Muon for the matrices inside the layers, AdamW for everything else.

    Args:
        parameters: those to train, by name.
        rate: peak learning rate of AdamW.
        matrix_rate: peak learning rate of Muon.
        decay: weight decay of matrices; vectors, tables and hyper-connections have none.
    """

    def __init__(self, parameters: Mapping[str, Tensor], rate: float, matrix_rate: float, decay: float) -> None:
        self.parameters = dict(parameters)
        matrices = {name: value for name, value in self.parameters.items() if _is_matrix(name, value)}
        rest = {name: value for name, value in self.parameters.items() if name not in matrices}
        self._parts: list[torch.optim.Optimizer] = [
            Muon([{"params": list(matrices.values()), "lr": matrix_rate, "weight_decay": decay}]),
            torch.optim.AdamW(
                [{"params": [v], "lr": rate * _relative_rate(n), "weight_decay": 0.0} for n, v in rest.items()],
                betas=_BETAS,
                eps=1e-10,
                fused=True,
            ),
        ]
        self._peaks = [[float(group["lr"]) for group in part.param_groups] for part in self._parts]

    def step(self, share_of_peak: float) -> float:
        """One step at a share of the peak rate from the gradients present; returns their norm before clipping to 1."""
        norm = torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), 1.0)
        for part, peaks in zip(self._parts, self._peaks, strict=True):
            for group, peak in zip(part.param_groups, peaks, strict=True):
                group["lr"] = peak * share_of_peak
            part.step()
            part.zero_grad(set_to_none=True)
        return float(norm)

    def state(self) -> dict[str, Tensor]:
        """Moments and counts as ``moment/name``, for `load`."""
        return {
            f"{moment}/{name}": tensor
            for part in self._parts
            for name, value in self.parameters.items()
            for moment, tensor in part.state.get(value, {}).items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        for key, tensor in state.items():
            moment, _, name = key.partition("/")
            value = self.parameters[name]
            part = self._parts[0] if _is_matrix(name, value) else self._parts[1]
            part.state[value][moment] = tensor.clone()


def _is_matrix(name: str, value: Tensor) -> bool:
    """Matrices that act on hidden vectors; tables, the head and hyper-connections are not among them."""
    outside = name in ("embed", "head") or name.endswith((".embed", "_weight", "markov_head.head", "ffn.gate"))
    return value.ndim > 1 and not outside and ".hc_" not in name


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
