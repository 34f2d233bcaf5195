"""`pool_expand`: see csrc/cpu/ops/pool_expand.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary

Tensor = torch.Tensor


def pool_expand(blocks: Tensor, block: int, lens: Tensor) -> Tensor:
    """See core/ops/pool_expand.py."""
    rows, count = blocks.shape
    entries = temporary.empty((rows, count * block), dtype=torch.int32)
    native.run("pool_expand", blocks, lens, entries, rows, count, block)
    return entries


OPS: dict[str, Any] = {"pool_expand": pool_expand}
