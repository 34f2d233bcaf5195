"""Logits at every position of given texts from the engine itself: scheduler, chunks, paged caches, bound ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tandem.config import load_config
from tandem.engine.assembly import Assembly, assemble
from tandem.engine.engine import Engine
from tandem.model.registry import Model
from tandem.model.step import StepInput
from tandem.sampling.params import SamplingParams

Tensor = torch.Tensor
LONGEST = 4096


class EngineScorer:
    """The engine over a checkpoint, asked for one text at a time.

    Args:
        directory: the checkpoint.
        backend: registered backend name.

    Raises:
        TandemError: the checkpoint cannot be loaded.
    """

    def __init__(self, directory: Path, backend: str = "cpu") -> None:
        options = {"model.path": str(directory), "model.max_model_len": LONGEST, "scheduler.max_slots": 1}
        self._parts: Assembly = assemble(load_config(env={}, args=options | {"backend.name": backend}), None, False)
        self._watch = _Watch(self._parts.runner.model)
        self._parts.runner.model = self._watch
        self._engine = Engine(self._parts)

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Token ids [T], T < 4096 -> logits f32 [T, V]; row t predicts the token after t."""
        self._watch.rows.clear()
        self._engine.add_request(tokens, SamplingParams(max_tokens=1, temperature=0.0))
        while not self._engine.idle:
            self._engine.step()
        result = torch.cat(self._watch.rows)
        if len(result) != len(tokens):
            raise AssertionError(f"{len(result)} rows came of {len(tokens)} tokens")
        return result

    def close(self) -> None:
        """Release the backend."""
        self._parts.close()


class _Watch:
    """Stands in for the model and keeps the logits of every row, of which the engine asks for the last only."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.rows: list[Tensor] = []
        self.caches, self.packed_bytes = model.caches, model.packed_bytes

    def forward(self, step: StepInput) -> Tensor:
        hidden = self._model.forward(step)
        self.rows.append(self._model.logits(hidden, torch.arange(hidden.shape[0], dtype=torch.int32)).clone())
        return hidden

    def logits(self, hidden: Tensor, index: Tensor) -> Tensor:
        return self._model.logits(hidden, index)


def options_for(directory: Path, slots: int) -> Mapping[str, Any]:
    """Engine options to generate with several requests at a time."""
    return {"model.path": str(directory), "model.max_model_len": LONGEST, "scheduler.max_slots": slots}
