"""`dequantize`: see csrc/ascend/dequantize.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native
from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import CANONICAL, QFormat, QTensor

Tensor = torch.Tensor


def dequantize(q: QTensor) -> Tensor:
    """See core/ops/dequantize.py."""
    q.require("dequantize", q.fmt, activations.LAYOUT if q.fmt is QFormat.MXFP8 else CANONICAL)
    rows, width = q.shape
    x = torch.empty((rows, width), dtype=torch.bfloat16, device=q.data.device)
    native.run("dequantize", q.data, q.scale, x, rows, width, _rows.FORMATS[q.fmt])
    return x


def _plan(device: Device, q: QTensor) -> list[Plan]:
    """Scales of filler groups are not read."""
    rows, width = q.shape
    codes, groups, written = width * q.fmt.bits // 8, width // q.fmt.group, rows * width * 2
    ub = rows * (_rows.units(codes) + _rows.units(groups) + _rows.decode_ub(width, q.fmt)) + written
    return _rows.plan(device, rows, rows * (codes + groups), written, ub)


OPS: dict[str, Any] = {"dequantize": dequantize}
PLAN: dict[str, Any] = {"dequantize": _plan}
