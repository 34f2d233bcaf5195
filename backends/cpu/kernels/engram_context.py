"""`engram_context`: see csrc/cpu/ops/engram_context.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require
from tandem.contract.types import Rows

Tensor = torch.Tensor


def engram_context(rows: Rows, vocabulary: Tensor, history: Tensor, pad: int, n: int) -> Tensor:
    """See core/ops/engram_context.py."""
    count, (slots, ring) = rows.ids.shape[0], history.shape
    step = (rows.ids, rows.positions, rows.slot, rows.chunk_start, rows.chunk_end, rows.roles)
    for array in step:
        require("engram_context", rows=(array, (count,)))
    context = temporary.empty((count, n), dtype=torch.int32)
    sizes = (count, vocabulary.numel(), slots, ring)
    native.run("engram_context", *step, vocabulary, history, context, *sizes, pad, n)
    return context


OPS: dict[str, Any] = {"engram_context": engram_context}
