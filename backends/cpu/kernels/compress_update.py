"""`compress_update`: see csrc/cpu/ops/compress_update.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.contract.types import Rows

Tensor = torch.Tensor


def compress_update(value: Tensor, gate: Tensor, state: Tensor, rows: Rows, ratio: int) -> Tensor:
    """See core/ops/compress_update.py."""
    count, width = value.shape
    latent = temporary.empty((count, width), dtype=torch.bfloat16)
    numbers = (rows.positions, rows.slot, rows.chunk_start, rows.chunk_end)
    native.run("compress_update", value, gate, state, *numbers, latent, count, width, *state.shape[:2], ratio)
    return latent


OPS: dict[str, Any] = {"compress_update": compress_update}
