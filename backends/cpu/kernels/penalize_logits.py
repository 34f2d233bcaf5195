"""`penalize_logits`: see csrc/cpu/ops/penalize_logits.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native
from tandem.backends.cpu.kernels._shapes import require, rows_of

Tensor = torch.Tensor


def penalize_logits(logits: Tensor, row: Tensor, token: Tensor, repetition: Tensor, minus: Tensor) -> None:
    """See core/ops/penalize_logits.py."""
    entries = row.shape[0]
    require("penalize_logits", *((array, (entries,)) for array in (token, repetition, minus)))
    line, stride = rows_of(logits)
    native.run("penalize_logits", line, row, token, repetition, minus, entries, *logits.shape, stride)


OPS: dict[str, Any] = {"penalize_logits": penalize_logits}
