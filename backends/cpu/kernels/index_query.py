"""`index_query`: see csrc/cpu/ops/index_query.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


def index_query(x: Tensor, heads: int, cos_sin: Tensor) -> QTensor:
    """See core/ops/index_query.py."""
    rows, width = x.shape
    q = activations.empty("index_query", (rows, width), QFormat.MXFP4)
    native.run("index_query", x.contiguous(), cos_sin, q.data, q.scale, rows, heads, width // heads, cos_sin.shape[1])
    return q


OPS: dict[str, Any] = {"index_query": index_query}
