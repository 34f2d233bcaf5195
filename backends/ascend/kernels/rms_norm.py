"""`rms_norm`: see csrc/ascend/rms_norm.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native
from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, quant: bool) -> tuple[Tensor, QTensor | None]:
    """See core/ops/rms_norm.py."""
    rows, width = x.shape
    y = torch.empty_like(x)
    yq = activations.quantised(rows, width, QFormat.MXFP8, x.device) if quant else None
    codes, scales = (None, None) if yq is None else (yq.data, yq.scale)
    native.run("rms_norm", x, weight, y, codes, scales, rows, width, eps)
    return y, yq


def _plan(device: Device, x: Tensor, weight: Tensor | None, eps: float, quant: bool) -> list[Plan]:
    """A row is read once; every block reads the weights once."""
    rows, width = x.shape
    blocks, weights = min(rows, device.vector_cores), 0 if weight is None else width * 4
    read = rows * width * 2 + weights
    written = rows * width * 2 + (_rows.quantised_bytes(rows, width, QFormat.MXFP8) if quant else 0)
    loaded = _rows.steps(width) * _rows.STEP * (2 + 2 + (0 if weight is None else 4))
    ub = rows * (_rows.units(width * 2) + loaded + width * 2) + blocks * _rows.units(weights) + written
    return _rows.plan(
        device, rows, read, written, ub + (rows * _rows.encode_ub(width, QFormat.MXFP8, 2) if quant else 0)
    )


OPS: dict[str, Any] = {"rms_norm": rms_norm}
PLAN: dict[str, Any] = {"rms_norm": _plan}
