"""`moe_dispatch`: see csrc/cpu/ops/moe_dispatch.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native, temporary
from tandem.backends.cpu.kernels._shapes import require
from tandem.contract.types import MoEBatch, QFormat, QTensor

Tensor = torch.Tensor


def moe_dispatch(xq: QTensor, experts: Tensor, weights: Tensor, row_slot: Tensor, local: tuple[int, int]) -> MoEBatch:
    """See core/ops/moe_dispatch.py.  Rows past the last end hold anything."""
    xq.require("moe_dispatch", QFormat.MXFP8)
    (rows, k), width, count = experts.shape, xq.shape[1], local[1] - local[0]
    require("moe_dispatch", (xq.data, (rows, width)), (weights, (rows, k)), (row_slot, (rows,)))
    to = activations.empty("moe_dispatch", (rows * k, width), QFormat.MXFP8)
    sorted_weights = temporary.empty((rows * k,), dtype=torch.float32)
    ends, source = temporary.empty((count,), dtype=torch.int32), temporary.empty((rows, k), dtype=torch.int32)
    inputs = (xq.data, xq.scale, experts, weights, row_slot)
    outputs = (to.data, to.scale, sorted_weights, ends, source)
    native.run("moe_dispatch", *inputs, *outputs, rows, width, k, local[0], count)
    return MoEBatch(to, sorted_weights, ends, source)


OPS: dict[str, Any] = {"moe_dispatch": moe_dispatch}
