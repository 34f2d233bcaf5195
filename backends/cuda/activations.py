"""The private layout of mxfp8 activations: codes row-major, scales as SM100's matrix products read them."""

from __future__ import annotations

import torch

from tandem.backends.cuda import scales
from tandem.contract.types import CANONICAL, QFormat, QTensor
from tandem.errors import LayoutError

LAYOUT = "cuda.sf128x4"  # data: uint8 [T, N]; scale: uint8 [packed bytes], see scales.py


def empty(rows: int, width: int, device: torch.device) -> QTensor:
    """An mxfp8 activation [rows, width] whose bytes hold anything.

    Raises:
        LayoutError: the width is no whole number of groups.
    """
    check_groups(width, QFormat.MXFP8)
    data = torch.empty((rows, width), dtype=torch.uint8, device=device)
    scale = torch.empty(scales.packed_size(rows, width // 32), dtype=torch.uint8, device=device)
    return QTensor(data, scale, QFormat.MXFP8, (rows, width), LAYOUT)


def check_groups(width: int, fmt: QFormat) -> None:
    """Refuse rows whose last group would have no scale.

    Raises:
        LayoutError: the width is no whole number of groups.
    """
    if width % fmt.group:
        raise LayoutError(
            "rows cannot be quantised",
            where=f"width {width}, format {fmt.value}, backend 'cuda'",
            why=f"a scale belongs to {fmt.group} elements, and the last {width % fmt.group} would have none",
            fix=f"use rows whose width is a multiple of {fmt.group}",
        )


def check_operand(op: str, x: torch.Tensor | QTensor, depth: int) -> None:
    """Refuse rows that a matrix product would read past their end, or as numbers of another type.

    Raises:
        LayoutError: another format, layout, type or width.
    """
    if isinstance(x, QTensor):
        x.require(op, QFormat.MXFP8, LAYOUT)
    elif x.dtype is not torch.bfloat16:
        raise LayoutError(
            f"'{op}' got rows of a type that it does not read",
            where=f"op '{op}', shape {tuple(x.shape)}",
            why=f"they are {x.dtype}, the op reads bf16 or {QFormat.MXFP8.value}",
            fix="convert the rows to bf16",
        )
    if x.shape[1] != depth:
        raise LayoutError(
            f"'{op}' got rows that do not go with its weight",
            where=f"op '{op}', shape {tuple(x.shape)}",
            why=f"they have {x.shape[1]} elements, the weight sums over {depth}",
            fix="pass rows as wide as the weight's last axis, times its groups where it has groups",
        )


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
    if q.layout not in (CANONICAL, LAYOUT):
        raise LayoutError(
            "a quantised tensor is not canonical",
            where=f"shape {q.shape}, backend 'cuda'",
            why=f"its layout is '{q.layout}'",
            fix="convert with to_canonical() of the backend that made it",
        )
    if q.layout != CANONICAL or q.fmt is not QFormat.MXFP8:
        return q
    return QTensor(q.data, scales.pack(q.scale), q.fmt, q.shape, LAYOUT)
