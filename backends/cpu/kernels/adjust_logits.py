"""`adjust_logits`: see csrc/cpu/ops/adjust_logits.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native
from tandem.backends.cpu.kernels._shapes import require, rows_of

Tensor = torch.Tensor


def adjust_logits(logits: Tensor, row: Tensor, token: Tensor, value: Tensor) -> None:
    """See core/ops/adjust_logits.py."""
    entries = row.shape[0]
    require("adjust_logits", (token, (entries,)), (value, (entries,)))
    line, stride = rows_of(logits)
    native.run("adjust_logits", line, row, token, value, entries, *logits.shape, stride)


OPS: dict[str, Any] = {"adjust_logits": adjust_logits}
