"""How products are cut into tiles, as csrc/ascend/_product_plan.h does it, and what their launches move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem.backends.ascend import weights
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import PackedWeight
from tandem.errors import LayoutError

STEP = 128  # bytes of K of one multiplication
LONGEST = 65535  # elements between rows that a copy to L1 can step over
FEW, SOME, MANY = (16, 128), (64, 128), (128, 256)  # rows and outputs of a tile


@dataclass(frozen=True, slots=True)
class Product:
    """A launch.

    Args:
        rows: of x, each times one of the matrices.
        matrices: of the weight that are used.
        outputs, depth: of a matrix.
        x, w: bytes of an element and its scale.
        y: bytes of a result.
        kind: cube cores alone, or with their vector cores.
        fed: the vector cores bring the weights.
    """

    rows: int
    matrices: int
    outputs: int
    depth: int
    x: float
    w: float
    y: int
    kind: Literal["cube", "mixed"] = "cube"
    fed: bool = False


def tile(device: Device, rows: int, outputs: int, matrices: int) -> tuple[int, int]:
    """Rows and outputs of a tile, as `choose_tile`."""

    def tiles(shape: tuple[int, int]) -> int:
        return matrices * -(-rows // shape[0]) * -(-outputs // shape[1])

    shape = FEW if rows <= FEW[0] else SOME
    if rows > SOME[0] and tiles(MANY) >= device.cube_cores:
        shape = MANY
    while shape[1] > 32 and tiles(shape) < 2 * device.cube_cores:
        shape = shape[0], shape[1] // 2
    return shape


def plan(device: Device, product: Product, shape: tuple[int, int], every: bool) -> list[Plan]:
    """One launch.

    Args:
        device: whose cores run it.
        product: what is multiplied.
        shape: rows and outputs of a tile.
        every: all matrices times all rows; else each row times one of them.
    """
    rows, outputs, depth = product.rows, product.outputs, product.depth
    if not rows:
        return []
    held = rows if every else max(1, rows // product.matrices)  # rows of a matrix
    row_tiles, output_tiles = -(-held // shape[0]), -(-outputs // shape[1])
    tasks = product.matrices * row_tiles * output_tiles
    blocks = min(tasks, device.cube_cores)
    x = int(rows * depth * product.x) * (product.matrices if every else 1)
    w = int(product.matrices * outputs * depth * product.w)
    # Tiles of the same weights follow one another, so x goes by once for each round of all blocks.
    passes = min(output_tiles, -(-tasks // blocks))
    copied = x * output_tiles + w * row_tiles
    ub = 0
    if product.fed:  # codes come to UB, are read, written at twice their size, and leave
        codes = product.matrices * outputs * depth // 2 * row_tiles
        ub, copied = 6 * codes, copied + codes
    written = rows * outputs * (product.matrices if every else 1) * product.y
    return [Plan(product.kind, tasks, blocks, x * passes + w, written, ub=ub, l1=2 * copied)]


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
