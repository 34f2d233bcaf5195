"""Logits at every position of given texts from the engine itself: scheduler, chunks, paged caches, bound ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tandem.config import load_config
from tandem.engine.assembly import Assembly, assemble
from tandem.engine.engine import Engine
from tandem.engine.request_state import RequestState, Sampling
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
        more: other engine options.

    Raises:
        TandemError: the checkpoint cannot be loaded.
    """

    def __init__(self, directory: Path, backend: str = "cpu", more: Mapping[str, Any] | None = None) -> None:
        options = {"model.path": str(directory), "model.max_model_len": LONGEST, "scheduler.max_slots": 1}
        options |= {"backend.name": backend, "speculation.draft_tokens": 0, "cache.prefix": "off", **(more or {})}
        self._parts: Assembly = assemble(load_config(env={}, args=options), None, False)
        self._watch = _Watch(self._parts.runner.model)
        self._parts.runner.model = self._watch
        self._engine = Engine(self._parts)

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Token ids [T], T < 4096 -> logits f32 [T, V]; row t predicts the token after t."""
        params = SamplingParams(max_tokens=1, temperature=0.0)
        return self._run(tokens, lambda: self._engine.add_request(tokens, params))

    def continued(self, tokens: Sequence[int], prompt_len: int) -> Tensor:
        """As `logits`, where the tokens from ``prompt_len`` on are an output of the prompt before."""
        state = RequestState(
            tokens=np.array(tokens, dtype=np.int32),
            prompt_len=prompt_len,
            num_computed=0,
            rng_position=len(tokens),
            sampling=Sampling(max_tokens=len(tokens) - prompt_len + 1, temperature=0.0, ignore_eos=True),
        )
        return self._run(tokens, lambda: self._engine.import_request(state))

    def _run(self, tokens: Sequence[int], ask: Callable[[], int]) -> Tensor:
        self._watch.rows.clear()
        ask()
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
