"""`mask_logits`: see csrc/cpu/ops/mask_logits.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native
from tandem.backends.cpu.kernels._shapes import require, rows_of

Tensor = torch.Tensor


def mask_logits(logits: Tensor, bits: Tensor) -> None:
    """See core/ops/mask_logits.py."""
    rows, vocab = logits.shape
    require("mask_logits", (bits, (rows, -(-vocab // 32))))
    line, stride = rows_of(logits)
    native.run("mask_logits", line, bits, rows, vocab, stride)


OPS: dict[str, Any] = {"mask_logits": mask_logits}
