"""`draft_sample`: see csrc/cpu/ops/draft_sample.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require, rows_of

Tensor = torch.Tensor


def draft_sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
    coupled: bool,
    filtered: bool,
) -> tuple[Tensor, Tensor]:
    """See core/ops/draft_sample.py."""
    rows, vocab = logits.shape
    numbers = (temperature, top_p, top_k, min_p, seed, position)
    require("draft_sample", *((array, (rows,)) for array in numbers))
    line, stride = rows_of(logits)
    token = temporary.empty((rows,), dtype=torch.int32)
    weight = temporary.empty((rows, vocab), dtype=torch.int32)
    native.run("draft_sample", line, *numbers, token, weight, rows, vocab, stride, int(coupled), int(filtered))
    return token, weight


OPS: dict[str, Any] = {"draft_sample": draft_sample}
