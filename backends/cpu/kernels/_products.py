"""What launchers of matrix products share: operands, and memory for arranged activations."""

from __future__ import annotations

import torch

from tandem.backends.cpu import activations, temporary
from tandem.contract.types import QFormat, QTensor
from tandem.errors import LayoutError

Tensor = torch.Tensor
CHUNK, PAD, ITEM = 128, 32, 4  # elements, elements and bytes; see csrc/cpu/ops/linear.cpp


def room(rows: int, depth: int) -> Tensor:
    """Memory for a call's arranged rows."""
    return temporary.empty((rows * (-(-depth // CHUNK) * CHUNK + PAD) * ITEM,), dtype=torch.uint8)


def operand(op: str, x: Tensor | QTensor, width: int) -> tuple[Tensor, Tensor | None, int]:
    """Codes or values of activations [T, width], their scales, and the number of their format.

    Raises:
        LayoutError: another width, format or layout.
    """
    if x.shape[-1] != width:
        raise LayoutError(
            f"'{op}' got activations that do not fit the weight",
            where=f"op '{op}', x {tuple(x.shape)}",
            why=f"the weight takes rows of {width} elements",
            fix="check the model's dimensions",
        )
    if not isinstance(x, QTensor):
        return x.contiguous(), None, activations.FORMATS[QFormat.BF16]
    x.require(op, QFormat.MXFP8)
    return x.data, x.scale, activations.FORMATS[QFormat.MXFP8]
