"""What the two peers on torch share: routing tables filled, sizes read off the parameters, greedy steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from dims import MID


def fill_routing(model: Any) -> None:
    """Give token-routed layers distinct random experts; as they are made, every token goes to one expert."""
    generator = torch.Generator().manual_seed(0)
    for name, array in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith("tid2eid"):
            order = torch.rand((array.shape[0], MID.experts), generator=generator).argsort(dim=1)
            with torch.no_grad():
                array.copy_(order[:, : array.shape[1]])


def tensors(model: Any) -> Iterator[tuple[str, int, int]]:
    """Name, elements and bytes of every parameter of the text model."""
    for name, array in model.named_parameters():
        if "mtp" not in name:
            yield name, array.numel(), array.numel() * array.element_size()


class TorchEngine:
    """Greedy decoding by calls ``model(ids, past_key_values=..., use_cache=True)``.

    Args:
        model: a causal language model that returns ``logits`` and ``past_key_values``.
        last_only: arguments of a call that asks for the logits of the last token alone, where it can be asked.
    """

    def __init__(self, model: Callable[..., Any], last_only: dict[str, Any]) -> None:
        self._model, self._last_only = model, last_only
        self._cache: Any = None
        self._ids = torch.zeros(0)

    def prefill(self, prompts: list[list[int]]) -> None:
        """All prompts, of one length, in one call."""
        self._cache = None
        self._run(torch.tensor(prompts))

    def step(self) -> None:
        """One token of each."""
        self._run(self._ids)

    def _run(self, ids: torch.Tensor) -> None:
        with torch.no_grad():
            found = self._model(ids, past_key_values=self._cache, use_cache=True, **self._last_only)
        self._cache = found.past_key_values
        self._ids = found.logits[:, -1].argmax(-1, keepdim=True)
