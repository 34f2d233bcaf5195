"""What launchers demand of arrays: shapes that belong together, and how rows lie in memory."""

from __future__ import annotations

import math

import torch

from tandem.accelerator.strided import with_stride
from tandem.errors import LayoutError

Tensor = torch.Tensor


def require(op: str, *pairs: tuple[Tensor | None, tuple[int, ...]], **named: tuple[Tensor, tuple[int, ...]]) -> None:
    """Compare arrays with the shapes that the op's other arguments give them; None passes.

    Raises:
        LayoutError: one has another shape.
    """
    for name, (array, shape) in (*enumerate(pairs), *named.items()):
        if array is not None and array.shape != shape:
            which = f"argument {name}" if isinstance(name, str) else f"array {name} of those checked"
            raise LayoutError(
                f"'{op}' got an array of another shape than it reads",
                where=f"op '{op}', {which}",
                why=f"it is {list(array.shape)}, the op's other arguments make that {list(shape)}",
                fix="pass arrays as the op's contract has them",
            )


def rows_of(x: Tensor) -> tuple[Tensor, int]:
    """An array [N, V] whose rows are dense, as kernels take it, and the distance of its rows.

    Raises:
        LayoutError: elements of a row do not follow one another.
    """
    return (x, x.shape[1]) if x.is_contiguous() else with_stride(x)


def row_bytes(x: Tensor) -> int:
    """Bytes of a row of an array [N, ...]."""
    return math.prod(x.shape[1:]) * x.element_size()
