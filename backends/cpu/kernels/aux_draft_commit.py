"""`aux.draft_commit`: see csrc/cpu/ops/aux_draft_commit.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native
from tandem.backends.cpu.kernels._shapes import require

Tensor = torch.Tensor


def draft_commit(
    slots: Tensor,
    column: int,
    token: Tensor,
    weight: Tensor,
    confidence: Tensor,
    drafts: Tensor,
    proposal: Tensor,
    rates: Tensor,
) -> None:
    """See core/ops/aux_draft_commit.py."""
    (rows, vocab), (entries, block) = weight.shape, drafts.shape
    require("aux.draft_commit", *((array, (rows,)) for array in (slots, token, confidence)))
    require("aux.draft_commit", (proposal, (entries * block, vocab)), (rates, (entries, block)))
    arrays = (slots, token, weight, confidence, drafts, proposal, rates)
    native.run("aux_draft_commit", *arrays, rows, vocab, entries, block, column)


OPS: dict[str, Any] = {"aux.draft_commit": draft_commit}
