"""How products are cut into tiles, as csrc/ascend/_product_plan.h does it, and what their launches move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem.backends.ascend import weights
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import PackedWeight
from tandem.errors import LayoutError

LONGEST = 65535  # elements between rows that a copy to L1 can step over
FEW, SOME, MANY = (16, 128), (64, 128), (128, 256)  # rows and outputs of a tile
BLOCK, FRACTAL_ROWS, GROUP, PAIR = 32, 16, 32, 64
PANEL = 8  # tiles of outputs through which all rows go


def up(x: int, to: int) -> int:
    """The next multiple."""
    return -(-x // to) * to


def tile(device: Device, rows: int, outputs: int, matrices: int) -> tuple[int, int]:
    """Rows and outputs of a tile, as `choose_tile`."""

    def tiles(shape: tuple[int, int]) -> int:
        return matrices * -(-rows // shape[0]) * -(-outputs // shape[1])

    shape = FEW if rows <= FEW[0] else SOME
    if rows > SOME[0] and tiles(MANY) >= device.cube_cores:
        shape = MANY
    while shape[1] > 16 and tiles(shape) < 2 * device.cube_cores:
        shape = shape[0], shape[1] // 2
    return shape


@dataclass(frozen=True, slots=True)
class Product:
    """A launch: each of some matrices [outputs, depth] times rows of its own.

    Args:
        matrices: that are used.
        rows: of each.
        outputs, depth: of a matrix.
        item: bytes of an element in L1.
        result: bytes of an element of the result.
        scaled: both operands have a scale byte for 32 elements.
        fed: the vector cores bring the matrices, from half the bytes.
    """

    matrices: int
    rows: int
    outputs: int
    depth: int
    item: int
    result: int
    scaled: bool
    fed: bool = False

    def stored(self, lines: int) -> int:
        """Bytes of lines of x in global memory."""
        return lines * (self.depth * self.item + (up(self.depth, PAIR) // GROUP if self.scaled else 0))

    def through_l1(self, lines: int, tile_lines: int, fed: bool = False) -> int:
        """Bytes written to and read from L1 for tiles of an operand."""
        bytes_held = up(self.depth * self.item, BLOCK)
        filled = up(self.depth, PAIR) * self.item if self.scaled else bytes_held
        whole = up(lines % tile_lines, FRACTAL_ROWS) + lines // tile_lines * up(tile_lines, FRACTAL_ROWS)
        scales = 2 * whole * (up(self.depth, PAIR) // GROUP) if self.scaled else 0
        copied = lines * filled if fed else lines * bytes_held + whole * (filled - bytes_held)
        return copied + whole * filled + scales


def tasks(product: Product, shape: tuple[int, int]) -> int:
    """Tiles."""
    return product.matrices * -(-product.rows // shape[0]) * -(-product.outputs // shape[1])


def plan(
    product: Product, shape: tuple[int, int], kind: Literal["cube", "mixed"], number: int, blocks: int
) -> list[Plan]:
    """One launch of ``number`` tiles of this shape on ``blocks`` blocks."""
    if not product.rows:
        return []
    matrices, row_tiles, output_tiles = product.matrices, -(-product.rows // shape[0]), -(-product.outputs // shape[1])
    x, w = product.stored(product.rows), product.stored(product.outputs)
    if product.fed:
        w -= product.outputs * (product.depth - up(product.depth, PAIR) // 2)
    passes = -(-row_tiles * output_tiles // max(blocks, PANEL * row_tiles))  # of x
    l1 = output_tiles * product.through_l1(product.rows, shape[0])
    l1 += row_tiles * product.through_l1(product.outputs, shape[1], product.fed)
    # Codes come to UB, are read there, written at twice their size, and leave.
    ub = 3 * up(product.depth, PAIR) * product.outputs * row_tiles if product.fed else 0
    written = matrices * product.rows * product.outputs * product.result
    return [Plan(kind, number, blocks, matrices * (x * passes + w), written, ub=matrices * ub, l1=matrices * l1)]


def check_depth(op: str, stride: int) -> None:
    """Refuse rows that lie further apart than copies to L1 can step.

    Raises:
        LayoutError: they do.
    """
    if stride > LONGEST:
        raise LayoutError(
            f"'{op}' got rows that are too long",
            where=f"op '{op}', {stride} elements from row to row",
            why=f"copies to L1 step over at most {LONGEST} elements",
            fix="split the product along its sum",
        )


def scaled(op: str, weight: PackedWeight) -> weights.Scaled:
    """Codes and scales of a packed weight.

    Raises:
        LayoutError: it is packed in no layout that products read.
    """
    if weight.layout not in (weights.SCALED, weights.GROUPS):
        raise weights.unreadable(op, weight)
    token: weights.Scaled = weight.token
    return token
