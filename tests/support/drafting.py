"""A small model that drafts, driven by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from support.tiny import Chunk, TinyModel

from tandem.contract.registry import open_backend
from tandem.contract.types import KVCache, Rows
from tandem.model.config import ModelConfig
from tandem.model.dspark import Drafter
from tandem.model.step import StepContext

Tensor = torch.Tensor


class DraftModel(TinyModel):
    """A checkpoint whose draft module is used, by default with whole blocks and native kernels."""

    def __init__(self, checkpoint: Path, drafts: int | None = None, native: bool = True) -> None:
        self.text = ModelConfig.from_file(checkpoint / "config.json").text
        backend = open_backend("cpu", {"native": native})
        super().__init__(backend, checkpoint, self.text.dspark_block_size if drafts is None else drafts)
        assert self.model.drafter is not None
        self.drafter: Drafter = self.model.drafter
        self.taps: dict[tuple[int, int], list[Tensor]] = {}  # by slot and position
        self._write = self.drafter.write_context
        self.drafter.write_context = self._watch  # type: ignore[method-assign]

    def _watch(self, taps: Sequence[Tensor], context: StepContext) -> None:
        rows: Rows = context.step.rows
        for t, place in enumerate(zip(rows.slot.tolist(), rows.positions.tolist(), strict=True)):
            self.taps[place] = [tap[t].clone() for tap in taps]
        self._write(taps, context)

    def read(self, length: int, step: int = 16) -> None:
        """Give the first ``length`` tokens of all four slots to the backbone, in chunks of at most ``step``."""
        for first in range(0, length, step):
            self.logits([(slot, first, min(step, length - first)) for slot in range(4)])

    def rows_at(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits of the rows of chunks, as a step of few rows."""
        return self.logits(chunks, "decode")

    @property
    def stages(self) -> list[KVCache]:
        """Window caches of the draft stages."""
        first = self.text.num_hidden_layers
        return [self.model.caches.window[first + i] for i in range(self.text.num_nextn_predict_layers)]

    def entries(self, slot: int, positions: range) -> list[int]:
        """Slots of window entries."""
        size = self.model.caches.spec.window_block
        table = self.window_table[slot].tolist()
        return [table[p // size] * size + p % size for p in positions]

    def keys(self, slot: int, positions: range) -> Tensor:
        """Context keys f32 [stages, n, D] of positions of a slot."""
        load = self.plan.bind("kv_load", "test")
        index = torch.tensor(self.entries(slot, positions), dtype=torch.int32)
        return torch.stack([load(cache, index).float() for cache in self.stages])

    @torch.no_grad()
    def block(
        self, anchors: Sequence[int], positions: Sequence[int], slots: Sequence[int], first: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Hidden and base logits of blocks."""
        given = (torch.tensor(values, dtype=torch.int32) for values in (anchors, positions, slots))
        hidden, base = self.model.draft_block(
            *given, self.window_table, self.window_first if first is None else first
        )
        return hidden.clone(), base.clone()

    @torch.no_grad()
    def chain(self, hidden: Tensor, base: Tensor, anchors: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Greedy drafts int32 [N, drafts] and their confidence."""
        previous, drafts, beliefs = torch.tensor(anchors, dtype=torch.int32), [], []
        for i in range(self.model.drafts):
            logits, belief = self.model.draft_head(base[:, i], hidden[:, i], previous, i)
            previous = logits.argmax(-1).to(torch.int32)
            drafts.append(previous)
            beliefs.append(belief)
        return torch.stack(drafts, 1), torch.stack(beliefs, 1)


def first_positions(value: int) -> Tensor:
    """A window_first array that holds one value for every slot."""
    return torch.from_numpy(np.full(5, value, dtype=np.int32))



