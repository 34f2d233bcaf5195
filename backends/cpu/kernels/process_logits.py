"""`process_logits`: see csrc/cpu/ops/process_logits.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require, rows_of

Tensor = torch.Tensor


def process_logits(
    logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, filtered: bool, min_p: Tensor | None = None
) -> Tensor:
    """See core/ops/process_logits.py."""
    rows, vocab = logits.shape
    require("process_logits", *((array, (rows,)) for array in (temperature, top_p, top_k, min_p)))
    line, stride = rows_of(logits)
    out = temporary.empty((rows, vocab), dtype=torch.float32)
    arrays = (line, temperature, top_p, top_k, min_p, out)
    native.run("process_logits", *arrays, rows, vocab, stride, int(filtered))
    return out


OPS: dict[str, Any] = {"process_logits": process_logits}
