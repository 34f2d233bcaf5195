"""What launchers demand of arrays: shapes that belong together, and how rows lie in memory."""

from __future__ import annotations

import math

import torch

from tandem.accelerator.strided import with_stride
from tandem.errors import LayoutError

Tensor = torch.Tensor


def fit(op: str, *pairs: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Compare arrays with the shapes they must have; None passes.

    Raises:
        LayoutError: one has another shape.
    """
    for place, (array, shape) in enumerate(pairs):
        if array is not None and array.shape != shape:
            raise LayoutError(
                f"'{op}' got arrays that do not belong together",
                where=f"op '{op}', array {place} of those checked",
                why=f"its shape is {tuple(array.shape)}, beside the others it must be {shape}",
                fix="pass arrays of one call, as the op's contract has them",
            )


def rows_of(x: Tensor) -> tuple[Tensor, int]:
    """An array [N, V] whose rows are dense, as kernels take it, and the distance of its rows.

    Raises:
        LayoutError: elements of a row do not follow one another.
    """
    return (x, x.shape[1]) if x.is_contiguous() else with_stride(x)


def as_bytes(op: str, x: Tensor) -> tuple[Tensor, int]:
    """The memory of dense rows of any type, and the bytes of a row.

    Raises:
        LayoutError: the array is not contiguous.
    """
    if not x.is_contiguous():
        raise LayoutError(
            f"'{op}' got an array that is not dense",
            where=f"op '{op}', shape {tuple(x.shape)}, strides {x.stride()}",
            why="rows are moved as bytes that follow one another",
            fix="pass a contiguous array",
        )
    size = math.prod(x.shape[1:]) * x.element_size()
    return x.view(-1).view(torch.uint8), size
