"""`embed`: see csrc/cpu/ops/embed.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native, temporary, weights
from tandem.backends.cpu.kernels._shapes import require
from tandem.contract.types import PackedWeight, QFormat

Tensor = torch.Tensor


def embed(
    ids: Tensor, table: PackedWeight, override: Tensor | None = None, override_index: Tensor | None = None
) -> Tensor:
    """See core/ops/embed.py."""
    data, scale, fmt = weights.stored("embed", table, weights.MAPPED)
    rows, (words, width) = ids.shape[0], table.shape
    if override is None or override_index is None:
        override = override_index = None
    else:
        require("embed", override=(override, (override.shape[0], width)), override_index=(override_index, (rows,)))
    stored = (
        data if fmt is QFormat.BF16 else None,
        data if fmt is QFormat.F32 else None,
        None if scale is None else data,
        scale,
    )
    narrow = override is not None and override.dtype is torch.bfloat16
    given = (override if narrow else None, None if narrow else override, override_index)
    y = temporary.empty((rows, width), dtype=torch.bfloat16)
    sizes = (rows, words, width, 0 if override is None else override.shape[0])
    native.run("embed", ids, *stored, *given, y, *sizes, activations.FORMATS[fmt])
    return y


OPS: dict[str, Any] = {"embed": embed}
