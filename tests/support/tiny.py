"""A tiny model on a chosen backend, driven step by step without an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tandem.checkpoint.reader import Checkpoint
from tandem.contract.backend import Backend
from tandem.contract.cases import step_rows
from tandem.contract.plan import Plan
from tandem.contract.types import Rows
from tandem.model.caches import CacheSpec, ModelCaches
from tandem.model.config import ModelConfig
from tandem.model.registry import build_model
from tandem.model.step import StepInput

Tensor = torch.Tensor
SLOTS, BLOCK, WINDOW_BLOCK, COLUMNS = 4, 16, 8, 8
Chunk = tuple[int, int, int]  # slot (-1: padding), first position, rows


class TinyModel:
    """A small checkpoint with four request slots of 128 tokens, drafting where draft_tokens is not 0."""

    def __init__(self, backend: Backend, checkpoint: Path, draft_tokens: int = 0) -> None:
        self.backend, self.plan = backend, Plan(backend)
        config = ModelConfig.from_file(checkpoint / "config.json")
        window_columns = COLUMNS * BLOCK // WINDOW_BLOCK
        sizes = SLOTS * COLUMNS, SLOTS * window_columns, SLOTS
        backtrack = 2 * (draft_tokens + 1) if draft_tokens else 0
        spec = CacheSpec(BLOCK, WINDOW_BLOCK, *sizes, backtrack, draft_tokens)
        with Checkpoint.open(checkpoint) as source:
            self.model = build_model(
                self.plan, source, config, checkpoint / "tokenizer.json", spec,
                max_rows=64, max_positions=256, progress=lambda name: None,
            )  # fmt: skip
        order = np.random.default_rng(5)
        self.block_table = self._table(order, COLUMNS)
        self.window_table = self._table(order, window_columns)
        self.window_first = backend.from_host(np.zeros(SLOTS + 1, dtype=np.int32))
        tokens = np.random.default_rng(6).integers(3, 400, (SLOTS, 128))
        self.tokens = torch.from_numpy(tokens.astype(np.int32))

    def _table(self, order: np.random.Generator, columns: int) -> Tensor:
        blocks = order.permutation(SLOTS * columns).astype(np.int32).reshape(SLOTS, columns)
        scratch = np.full((1, columns), -1, dtype=np.int32)
        return self.backend.from_host(np.concatenate((blocks, scratch)))

    def rows(self, chunks: Sequence[Chunk]) -> Rows:
        """Rows of these chunks with each request's own tokens."""
        ids = [self.tokens[s, p : p + n] if s >= 0 else torch.zeros(n, dtype=torch.int32) for s, p, n in chunks]
        rows = step_rows(chunks, torch.cat(ids))
        columns = {f.name: self.backend.from_host(getattr(rows, f.name).numpy()) for f in dataclasses.fields(Rows)}
        return Rows(**columns)

    def step(self, rows: Rows, hint: str) -> StepInput:
        """A step whose width covers every position."""
        width = {ratio: COLUMNS * BLOCK // ratio for ratio in self.model.ratios}
        return StepInput(rows, self.block_table, self.window_table, self.window_first, width, hint)

    def logits(self, chunks: Sequence[Chunk], hint: str = "prefill") -> Tensor:
        """Run chunks; logits of all their rows."""
        rows = self.rows(chunks)
        with torch.no_grad():
            hidden = self.model.forward(self.step(rows, hint))
            index = self.backend.from_host(np.arange(hidden.shape[0], dtype=np.int32))
            result: Tensor = self.model.logits(hidden, index)
        return result

    def poison(self, byte: int) -> None:
        """Fill all cache and state memory."""
        for tensor in memory(self.model.caches):
            tensor.view(torch.uint8).fill_(byte)


def memory(caches: ModelCaches) -> list[Tensor]:
    """All device memory that outlives a step."""
    groups = [*caches.main.values(), *caches.index.values(), *caches.window.values()]
    paged = [cache.data for cache in (*groups, *([] if caches.draft is None else [caches.draft]))]
    history = [] if caches.history is None else [caches.history]
    return [*paged, *caches.compressor.values(), *history]
