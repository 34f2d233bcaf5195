"""Faults of selection: candidate pool, top-k, reuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.mutation import Fault, edit

from tandem.model.indexer import Indexer

Tensor = torch.Tensor
BLOCK_MAX = "ops.block_max"


def _inside_own_pool(patch: pytest.MonkeyPatch) -> None:
    """The source of the pool searches only there, like the layers after it."""
    made = Indexer.__init__

    def init(self: Indexer, *args: Any) -> None:
        made(self, *args)
        topk = self._topk

        def run(scores: Tensor, k: int) -> Tensor:
            if self.makes_pool and k == self.topk:
                lens = (scores > float("-inf")).sum(-1).to(torch.int32)
                blocks = topk(self._block_max(scores, lens, self.pool_block), self.pool_blocks)
                number = torch.arange(scores.shape[1]) // self.pool_block
                inside = (blocks.unsqueeze(-1) == number).any(1)
                scores = scores.masked_fill(~inside, float("-inf"))
            result: Tensor = topk(scores, k)
            return result

        self._topk = run

    patch.setattr(Indexer, "__init__", init)


def _everywhere(patch: pytest.MonkeyPatch) -> None:
    """Layers after the source of the pool search all visible entries."""
    forward = Indexer.forward

    def run(self: Indexer, x: Tensor, latent_q: Any, context: Any, selection: Any) -> None:
        if self.uses_pool:
            here = context.ratios[self.ratio]
            entries = torch.arange(here.width, dtype=torch.int32).expand(x.shape[0], -1)
            selection.pool = torch.where(entries < here.lens.unsqueeze(-1), entries, -1)
        forward(self, x, latent_q, context, selection)

    patch.setattr(Indexer, "forward", run)


def _not_again(patch: pytest.MonkeyPatch) -> None:
    """A second index source of a segment keeps the selection of the first."""
    forward = Indexer.forward

    def run(self: Indexer, x: Tensor, latent_q: Any, context: Any, selection: Any) -> None:
        before = selection.slots
        forward(self, x, latent_q, context, selection)
        if before is not None and before.shape == selection.slots.shape and not self.makes_pool:
            selection.slots = before

    patch.setattr(Indexer, "forward", run)


FAULTS = [
    Fault(15, "the source searches its own pool", prepare=_inside_own_pool),
    edit(15, "last block not forced", BLOCK_MAX, "block_max", "(lens > 0).unsqueeze(-1)", "(lens < 0).unsqueeze(-1)"),
    edit(15, "mean of a block", BLOCK_MAX, "block_max", ".amax(-1)", ".float().mean(-1).to(scores.dtype)"),
    Fault(15, "one pool for all rows of a step", wraps={
        "pool_expand": lambda op: lambda blocks, *rest: op(blocks[-1:].expand_as(blocks).contiguous(), *rest)}),
    Fault(15, "the pool is not used", prepare=_everywhere),
    Fault(16, "selection of the first source kept", prepare=_not_again),
    edit(15, "ties go to the higher index", "ops.topk_index", "topk_index",
         "values, index = torch.sort(clean, dim=-1, descending=True, stable=True)",
         "values, index = torch.sort(clean.flip(-1), dim=-1, descending=True, stable=True); "
         "index = clean.shape[1] - 1 - index"),
]  # fmt: skip
