"""`index_query`: see csrc/ascend/index_query.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native
from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


def index_query(x: Tensor, heads: int, cos_sin: Tensor) -> QTensor:
    """See core/ops/index_query.py."""
    rows, width = x.shape
    q = activations.quantised(rows, width, QFormat.MXFP4, x.device)
    native.run("index_query", x, cos_sin, q.data, q.scale, rows, heads, width // heads, cos_sin.shape[1])
    return q


def _plan(device: Device, x: Tensor, heads: int, cos_sin: Tensor) -> list[Plan]:
    (rows, width), turned = x.shape, cos_sin.shape[1]
    read, written = rows * (width * 2 + turned * 4), _rows.quantised_bytes(rows, width, QFormat.MXFP4)
    rotated = heads * (3 * _rows.steps(turned // 2) * _rows.STEP * 4 + turned * 2)
    ub = rows * (rotated + _rows.encode_ub(width, QFormat.MXFP4, 2)) + read + written
    return _rows.plan(device, rows, read, written, ub)


OPS: dict[str, Any] = {"index_query": index_query}
PLAN: dict[str, Any] = {"index_query": _plan}
