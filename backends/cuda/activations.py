"""The private layout of mxfp8 activations: codes row-major, scales as SM100's matrix products read them."""

from __future__ import annotations

import torch

from tandem.backends.cuda import scales
from tandem.contract.types import CANONICAL, QFormat, QTensor
from tandem.errors import LayoutError

LAYOUT = "cuda.sf128x4"  # data: uint8 [T, N]; scale: uint8 [packed bytes], see scales.py


def empty(rows: int, width: int, device: torch.device) -> QTensor:
    """An mxfp8 activation [rows, width] whose bytes hold anything."""
    data = torch.empty((rows, width), dtype=torch.uint8, device=device)
    scale = torch.empty(scales.packed_size(rows, width // 32), dtype=torch.uint8, device=device)
    return QTensor(data, scale, QFormat.MXFP8, (rows, width), LAYOUT)


def to_canonical(q: QTensor) -> QTensor:
    """The same values with row-major scales."""
    if q.layout == CANONICAL:
        return q
    if q.layout != LAYOUT:
        raise LayoutError(
            "a quantised tensor belongs to another backend",
            where=f"shape {q.shape}, backend 'cuda'",
            why=f"its layout is '{q.layout}'",
            fix="convert with to_canonical() of the backend that made it",
        )
    return QTensor(q.data, scales.unpack(q.scale, q.shape[0], q.shape[1] // 32), q.fmt, q.shape)


def from_canonical(q: QTensor) -> QTensor:
    """mxfp8 gets packed scales; fp4 formats stay canonical."""
    if q.layout != CANONICAL or q.fmt is not QFormat.MXFP8:
        return q
    return QTensor(q.data, scales.pack(q.scale), q.fmt, q.shape, LAYOUT)
