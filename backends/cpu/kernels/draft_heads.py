"""`draft_heads`: see csrc/cpu/ops/draft_heads.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary, weights
from tandem.backends.cpu.kernels._shapes import require, rows_of
from tandem.contract.types import PackedWeight, QFormat
from tandem.errors import LayoutError

Tensor = torch.Tensor


def draft_heads(
    base: Tensor,
    hidden: Tensor,
    previous: Tensor,
    embedding: PackedWeight,
    head: PackedWeight,
    proj: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """See core/ops/draft_heads.py."""
    (rows, vocab), width, rank = base.shape, hidden.shape[1], head.shape[1]
    matrices = _matrix(embedding, weights.MAPPED), _matrix(head, weights.LAYOUT)
    require("draft_heads", *((matrix, (vocab, rank)) for matrix in matrices), (proj, (width + rank,)))
    require("draft_heads", (hidden, (rows, width)), (previous, (rows,)))
    (line, apart), (features, step) = rows_of(base), rows_of(hidden)
    logits = temporary.empty((rows, vocab), dtype=torch.float32)
    confidence = temporary.empty((rows,), dtype=torch.float32)
    embedded = temporary.empty((rows, rank), dtype=torch.bfloat16)
    arrays = (line, features, previous, *matrices, proj, logits, confidence, embedded)
    native.run("draft_heads", *arrays, rows, vocab, width, rank, apart, step, float(temperature))
    return logits, confidence


def _matrix(weight: PackedWeight, layout: str) -> Tensor:
    if weight.fmt is not QFormat.BF16:
        raise LayoutError(
            "'draft_heads' got a weight that it does not read",
            where=repr(weight),
            why=f"its format is {weight.fmt.value}, the op reads bf16",
            fix="store the weights of the Markov head in bf16",
        )
    return weights.stored("draft_heads", weight, layout).data


OPS: dict[str, Any] = {"draft_heads": draft_heads}
