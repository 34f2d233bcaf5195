"""Quantised activations of the CPU backend: canonical codes and scales, as the kernels write and read them."""

from __future__ import annotations

import torch

from tandem.backends.cpu import temporary
from tandem.contract.types import QFormat, QTensor
from tandem.errors import LayoutError

# Numbers of tandem.h.
FORMATS = {
    QFormat.BF16: 0,
    QFormat.F32: 1,
    QFormat.MXFP8: 2,
    QFormat.MXFP4: 3,
    QFormat.NVFP4: 4,
    QFormat.FP8_BLOCK32: 5,
}


def empty(op: str, shape: tuple[int, int], fmt: QFormat) -> QTensor:
    """Rows to be written, [T, N].

    Raises:
        LayoutError: the width is not whole groups.
    """
    rows, width = shape
    if width % fmt.group:
        raise LayoutError(
            f"'{op}' cannot quantise rows of this width",
            where=f"op '{op}', shape {shape}",
            why=f"{fmt.value} has a scale for every {fmt.group} elements",
            fix=f"use a width that is a multiple of {fmt.group}",
        )
    data = temporary.empty((rows, width * fmt.bits // 8), dtype=torch.uint8)
    return QTensor(data, temporary.empty((rows, width // fmt.group), dtype=torch.uint8), fmt, shape)


def canonical(op: str, q: QTensor) -> QTensor:
    """The tensor, where it is one of this backend.

    Raises:
        LayoutError: it is in another backend's layout.
    """
    q.require(op, q.fmt)
    return q
