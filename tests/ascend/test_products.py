"""Products on the emulated device at every class of tile: values, the bits of a row, and how work is dealt out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tandem.backends.ascend import layouts, native
from tandem.backends.ascend.kernels import _products, grouped_linear, linear
from tandem.backends.ascend.plan import EMULATED, Device
from tandem.contract.backend import Backend
from tandem.contract.cases import Draw
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, QTensor, WeightKind
from tandem.errors import LayoutError
from tandem.ops.numerics import decode_rows, decode_weight

Tensor = torch.Tensor
# Rows of one fractal, of a narrow tile, of several, and of wide ones.
ROWS = (1, 16, 17, 64, 65, 130, 300)


def weight(ascend: Backend, draw: Draw, kind: WeightKind, fmt: QFormat, *shape: int) -> PackedWeight:
    drawn: Any = draw.weight(kind, fmt, *shape)
    packed: PackedWeight = ascend.pack_weight(kind, drawn.weight, shape)
    return packed


def activation(ascend: Backend, draw: Draw, rows: int, width: int) -> QTensor:
    packed: QTensor = ascend.from_canonical(draw.quantised(QFormat.MXFP8, rows, width))
    return packed


def values(ascend: Backend, x: Tensor | QTensor) -> Tensor:
    if isinstance(x, Tensor):
        return x.to(torch.float64)
    plain = ascend.to_canonical(x)
    return decode_rows(plain.data, plain.scale, plain.fmt).to(torch.float64)


def first_rows(ascend: Backend, x: Tensor | QTensor, rows: int) -> Tensor | QTensor:
    if isinstance(x, Tensor):
        return x[:rows].contiguous()
    plain = ascend.to_canonical(x)
    cut = QTensor(plain.data[:rows], plain.scale[:rows], plain.fmt, (rows, plain.shape[1]))
    packed: QTensor = ascend.from_canonical(cut)
    return packed


def held(got: Tensor, x: Tensor, matrix: Tensor) -> bool:
    """Within what a sum in f32 may lose."""
    bound = x.shape[1] * 2.0**-24 * (x.abs() @ matrix.abs().t())
    return bool(((got.to(torch.float64) - x @ matrix.t()).abs() <= bound + 1e-30).all())


FORMATS = [("bf16", QFormat.BF16), ("bf16", QFormat.F32), ("mxfp8", QFormat.FP8_BLOCK32), ("mxfp8", QFormat.MXFP4)]


@pytest.mark.parametrize(("rows_fmt", "fmt"), FORMATS)
@pytest.mark.parametrize(("outputs", "depth"), [(272, 704), (33, 1376)])
def test_every_tile_gives_a_row_the_same_bits(
    ascend: Backend, rows_fmt: str, fmt: QFormat, outputs: int, depth: int
) -> None:
    draw = Draw(outputs + depth)
    matrix = weight(ascend, draw, WeightKind.LINEAR, fmt, outputs, depth)
    x = draw.bf16(max(ROWS), depth) if rows_fmt == "bf16" else activation(ascend, draw, max(ROWS), depth)
    plain = decode_weight(ascend.unpack_weight(matrix)).to(torch.float64)
    whole = linear.linear(x, matrix, torch.float32)
    assert held(whole, values(ascend, x), plain)
    tiles = {_products.tile(EMULATED, rows, outputs, 1)[0] for rows in ROWS}
    assert len(tiles) > 1
    for rows in ROWS:
        part = linear.linear(first_rows(ascend, x, rows), matrix, torch.float32)
        assert (part.view(torch.int32) == whole[:rows].view(torch.int32)).all()


@pytest.mark.parametrize("fmt", [QFormat.FP8_BLOCK32, QFormat.MXFP4])
@pytest.mark.parametrize("ends", [[0, 150, 150, 151, 260], [3, 3, 3, 3, 3], [0, 0, 0, 0, 0]])
def test_experts_with_many_few_and_no_rows(ascend: Backend, fmt: QFormat, ends: list[int]) -> None:
    draw = Draw(7)
    matrix = weight(ascend, draw, WeightKind.EXPERTS, fmt, 5, 72, 352)
    x = activation(ascend, draw, 270, 352)
    y = grouped_linear.grouped_linear(x, matrix, torch.tensor(ends, dtype=torch.int32))
    plain, rows = decode_weight(ascend.unpack_weight(matrix)).to(torch.float64), values(ascend, x)
    start = 0
    for expert, end in enumerate(ends):
        exact = rows[start:end] @ plain[expert].t()
        scale = rows[start:end].abs() @ plain[expert].abs().t()
        assert ((y[start:end].to(torch.float64) - exact).abs() <= 2.0**-8 * exact.abs() + 352 * 2.0**-24 * scale).all()
        start = max(start, end)
    assert not y[start:].any()


def test_few_rows_have_the_bits_that_they_have_among_many(ascend: Backend) -> None:
    """An expert's rows in a wide tile and in a narrow one."""
    draw = Draw(9)
    matrix = weight(ascend, draw, WeightKind.EXPERTS, QFormat.MXFP4, 3, 80, 416)
    x = activation(ascend, draw, 200, 416)
    many = grouped_linear.grouped_linear(x, matrix, torch.tensor([0, 200, 200], dtype=torch.int32))
    few = grouped_linear.grouped_linear(first_rows(ascend, x, 2), matrix, torch.tensor([0, 2, 2], dtype=torch.int32))
    assert (few.view(torch.int16) == many[:2].view(torch.int16)).all()


def test_kernels_and_their_plan_cut_the_same_tiles() -> None:
    """Few outputs are cut so far that all cubes have work; wide tiles come with many rows only."""
    chip = Device(32, 64)
    assert _products.tile(chip, 1, 5120, 1) == (16, 64)
    assert _products.tile(chip, 1, 24576, 1) == (16, 128)
    assert _products.tile(chip, 1, 384, 1) == (16, 16)
    assert _products.tile(chip, 128, 2304, 1) == (64, 64)
    assert _products.tile(chip, 8192, 5120, 1) == (128, 256)


def test_fp4_scales_too_large_to_store_are_refused() -> None:
    codes, scale = torch.zeros((1, 16), dtype=torch.uint8), torch.full((1, 1), 249, dtype=torch.uint8)
    with pytest.raises(LayoutError, match="largest byte is 249"):
        layouts.pack(codes, scale)
    kept = layouts.unpack(*layouts.pack(codes, scale - 1), 32)
    assert (kept[0] == codes).all() and (kept[1] == scale - 1).all()


@pytest.mark.parametrize("depth", [32, 64, 96, 1056])
def test_fp4_weights_come_back_bit_by_bit(ascend: Backend, depth: int) -> None:
    draw = Draw(depth)
    drawn: Any = draw.weight(WeightKind.EXPERTS, QFormat.MXFP4, 3, 40, depth)
    drawn.weight.scale[0, 0, 0] = 255
    packed = ascend.pack_weight(WeightKind.EXPERTS, drawn.weight, (3, 40, depth))
    back: CanonicalWeight = ascend.unpack_weight(packed)
    assert back.scale is not None
    assert (back.data == drawn.weight.data).all() and (back.scale == drawn.weight.scale).all()


def test_rows_too_long_for_the_copies_are_refused(ascend: Backend) -> None:
    with pytest.raises(LayoutError, match="too long"):
        _products.check_depth("linear", 65536)
    x = torch.zeros((1, 65536), dtype=torch.bfloat16)
    with pytest.raises(LayoutError, match="refused its arguments"):
        native.run("linear_bf16", x, x, torch.empty((1, 1)), 1, 1, 65536, 1)
