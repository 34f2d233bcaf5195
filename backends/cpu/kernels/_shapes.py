"""Shapes that launchers ask for: kernels trust the sizes they are given."""

from __future__ import annotations

import torch

from tandem.errors import LayoutError

Tensor = torch.Tensor


def require(op: str, **wanted: tuple[Tensor, tuple[int, ...]]) -> None:
    """Compare arrays, by name, with the shapes that the op's other arguments give them.

    Raises:
        LayoutError: one has another shape.
    """
    for name, (array, shape) in wanted.items():
        if tuple(array.shape) != shape:
            raise LayoutError(
                f"'{op}' got an array of another shape than it reads",
                where=f"op '{op}', argument {name}",
                why=f"it is {list(array.shape)}, the op's other arguments make that {list(shape)}",
                fix="pass arrays as the op's contract has them",
            )
