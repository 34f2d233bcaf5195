"""Rows on vector cores (csrc/ascend/_rows.h, _codec.h): their outputs, what is moved, and what passes through UB."""

from __future__ import annotations

from tandem.backends.ascend import scales
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import QFormat

STEP = 64  # elements of a register of f32
FORMATS = {QFormat.MXFP8: 0, QFormat.MXFP4: 1, QFormat.NVFP4: 2}  # as in csrc/ascend/_codec.h


def scale_bytes(width: int, fmt: QFormat) -> int:
    """Scale bytes of a row as it is stored."""
    groups = width // fmt.group
    return scales.packed_shape(1, groups)[1] if fmt is QFormat.MXFP8 else groups


def quantised_bytes(rows: int, width: int, fmt: QFormat) -> int:
    """Bytes of codes and scales as they are stored."""
    return rows * (width * fmt.bits // 8 + scale_bytes(width, fmt))


def plan(device: Device, rows: int, read: int, written: int, ub: int) -> list[Plan]:
    """One launch over rows, whole rows to a block; none where there are no rows."""
    return [Plan("vector", rows, min(rows, device.vector_cores), read, written, ub)] if rows else []


def units(count: int) -> int:
    """Bytes of UB that a transfer of so many bytes fills: whole blocks of 32."""
    return -(-count // 32) * 32


def steps(count: int) -> int:
    """Registers that so many elements take."""
    return -(-count // STEP)


def encode_ub(width: int, fmt: QFormat, item: int) -> int:
    """Bytes that pass between UB and registers while a row of `item` bytes an element is encoded."""
    units = fmt.group // 8
    sizes = steps(width) * (STEP * item + STEP // fmt.group * 4)
    stored = scale_bytes(width, fmt)
    factors = steps(stored) * STEP * 4 * (1 + units) + stored
    codes = steps(width) * (STEP * item + 32) + width * fmt.bits // 8
    return sizes + factors + codes


def decode_ub(width: int, fmt: QFormat) -> int:
    """The same while a row is decoded."""
    share = 8 // fmt.bits  # elements of a byte
    units = fmt.group // 8 // share
    factors = steps(width // fmt.group) * STEP * (1 + 4 * units)
    return factors + steps(width // share) * (STEP + 32) + width * 2
