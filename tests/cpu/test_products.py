"""Matrix products on stored weights: their values, the stated order of their sums, and what they may touch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.cpu_sets import SETS, threads, using

from tandem.backends.cpu import native
from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.kernels import grouped_linear
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, QTensor, WeightKind
from tandem.errors import CheckpointError, LayoutError

Array = np.typing.NDArray[np.float64]
BF16, F32, FP8, FP4 = QFormat.BF16, QFormat.F32, QFormat.FP8_BLOCK32, QFormat.MXFP4
ROWS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 129)
SHAPES = [(1, 32), (3, 64), (33, 96), (40, 160), (70, 2048), (36, 2080), (32, 4128)]

# Values of the codes by their definitions in csrc/include/tandem.h.
E4M3 = np.array(
    [
        (-1.0 if c & 128 else 1.0) * ((c & 7) * 2.0**-9 if not c & 120 else (8 + (c & 7)) * 2.0 ** ((c >> 3 & 15) - 10))
        for c in range(256)
    ]
)
E4M3[[127, 255]] = np.nan
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    return CpuBackend(True)


def weight(fmt: QFormat, *shape: int, seed: int = 0) -> tuple[CanonicalWeight, Array]:
    """Stored bits and, by the definitions, their values."""
    rng = np.random.default_rng(seed)
    rows, depth = shape[-2:]
    if fmt in (BF16, F32):
        data = torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(
            torch.bfloat16 if fmt is BF16 else torch.float32
        )
        return CanonicalWeight(data, None, fmt), data.double().numpy()
    if fmt is FP8:
        codes = rng.integers(0, 256, shape, dtype=np.uint8)
        codes[(codes & 127) == 127] = 0
        blocks = rng.integers(115, 125, (*shape[:-2], -(-rows // 32), -(-depth // 32)), dtype=np.uint8)
        spread = np.repeat(np.repeat(blocks, 32, -2)[..., :rows, :], 32, -1)[..., :depth]
        values = E4M3[codes]
    else:
        codes = rng.integers(0, 256, (*shape[:-1], depth // 2), dtype=np.uint8)
        blocks = rng.integers(115, 125, (*shape[:-1], depth // 32), dtype=np.uint8)
        spread = np.repeat(blocks, 32, -1)
        values = np.stack((E2M1[codes & 15], E2M1[codes >> 4]), -1).reshape(shape)
    held = CanonicalWeight(torch.from_numpy(codes), torch.from_numpy(blocks), fmt)
    return held, values * 2.0 ** (spread.astype(np.float64) - 127)


def activations(backend: CpuBackend, rows: int, depth: int, seed: int = 1) -> tuple[QTensor, Array]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, depth), dtype=np.uint8)
    codes[(codes & 127) == 127] = 1
    scales = rng.integers(118, 124, (rows, depth // 32), dtype=np.uint8)
    values = E4M3[codes] * 2.0 ** (np.repeat(scales, 32, -1).astype(np.float64) - 127)
    return QTensor(torch.from_numpy(codes), torch.from_numpy(scales), QFormat.MXFP8, (rows, depth)), values


def stated(x: Array, w: Array, chunks: bool) -> np.typing.NDArray[np.float32]:
    """Sums in the order that csrc/cpu/products.h and operands.h state, one f32 addition at a time."""
    depth = x.shape[1]
    padded = -(-depth // 128) * 128
    x, w = (np.pad(a, ((0, 0), (0, padded - depth))) for a in (x, w))
    lane = np.arange(16)
    total = np.zeros((x.shape[0], w.shape[0]), dtype=np.float32)
    for block in range(0, padded, 2048):
        sums = np.zeros((16, *total.shape), dtype=np.float32)
        for start in range(block, min(block + 2048, padded), 128):
            for s in range(4):
                even = start + (8 * lane + s if chunks else 32 * s + 2 * lane)
                for place in (even + (4 if chunks else 1), even):
                    sums += (x[:, None, place] * w[None, :, place]).astype(np.float32).transpose(2, 0, 1)
        for half in (8, 4, 2, 1):
            sums = sums[:half] + sums[half : 2 * half]
        total = total + sums[0]
    return total


def check(y: torch.Tensor, x: Array, w: Array, fmt: QFormat) -> None:
    """Class A of docs/CONTRACT.md against float64, and the stated bits."""
    floor = 2.0**-22 * (np.abs(x) @ np.abs(w).T) + 1e-30
    assert (np.abs(y.double().numpy() - x @ w.T) <= floor).all()
    if fmt is not F32:
        np.testing.assert_array_equal(y.numpy(), stated(x, w, fmt is FP4))


@pytest.mark.parametrize(("outputs", "depth"), SHAPES)
@pytest.mark.parametrize("fmt", [BF16, FP8, FP4, F32])
def test_quantised_rows(backend: CpuBackend, fmt: QFormat, outputs: int, depth: int) -> None:
    held, w = weight(fmt, outputs, depth)
    packed = backend.pack_weight(WeightKind.LINEAR, held, (outputs, depth))
    x, values = activations(backend, 9, depth)
    check(backend.implementation("linear")(x, packed, torch.float32), values, w, fmt)


@pytest.mark.parametrize("depth", [1, 7, 31, 33, 100, 2049])
@pytest.mark.parametrize("fmt", [BF16, FP8, F32])
def test_plain_rows_of_any_width(backend: CpuBackend, fmt: QFormat, depth: int) -> None:
    held, w = weight(fmt, 37, depth)
    packed = backend.pack_weight(WeightKind.LINEAR, held, (37, depth))
    x = torch.from_numpy(np.random.default_rng(2).standard_normal((3, depth)).astype(np.float32)).to(torch.bfloat16)
    check(backend.implementation("linear")(x, packed, torch.float32), x.double().numpy(), w, fmt)


@pytest.fixture(params=SETS)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    with using(request.param):
        yield


@pytest.mark.parametrize("fmt", [BF16, FP8, FP4])
@pytest.mark.parametrize("count", [1, 2])
def test_a_row_has_the_same_bits_alone(backend: CpuBackend, fmt: QFormat, count: int, kernels: None) -> None:
    """On any instruction set, with any number of threads and of rows."""
    held, _ = weight(fmt, 200, 2208)
    packed = backend.pack_weight(WeightKind.LINEAR, held, (200, 2208))
    x, values = activations(backend, 129, 2208)
    expected = None
    for rows in ROWS:
        part = QTensor(x.data[:rows].contiguous(), x.scale[:rows].contiguous(), x.fmt, (rows, 2208))
        with threads(count):
            y = backend.implementation("linear")(part, packed, torch.float32)
        if expected is None:
            expected = stated(values, weight(fmt, 200, 2208)[1], fmt is FP4)
        np.testing.assert_array_equal(y.numpy(), expected[:rows])


@pytest.mark.parametrize("fmt", [FP8, FP4])
@pytest.mark.parametrize("ends", [[0, 3, 3, 9], [0, 0, 0, 0], [9, 9, 9, 9], [1, 2, 3, 4], [0, 0, 1, 1]])
def test_rows_of_experts(backend: CpuBackend, fmt: QFormat, ends: list[int]) -> None:
    held, w = weight(fmt, 4, 40, 160)
    packed = backend.pack_weight(WeightKind.EXPERTS, held, (4, 40, 160))
    x, values = activations(backend, 9, 160)
    y = backend.implementation("grouped_linear")(x, packed, torch.tensor(ends, dtype=torch.int32))
    expected = torch.zeros((9, 40), dtype=torch.bfloat16)
    for expert, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        found = stated(values[start:end], w[expert], fmt is FP4) if end > start else np.zeros((0, 40), np.float32)
        expected[start:end] = torch.from_numpy(found).to(torch.bfloat16)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("part", [1, 2, 3, 4, 8, 9, 10])
@pytest.mark.parametrize("ends", [[0, 3, 3, 9], [2, 4, 6, 8], [9, 9, 9, 9], [1, 2, 9, 9], [0, 0, 0, 0]])
def test_rows_worked_on_in_parts(
    backend: CpuBackend, ends: list[int], part: int, kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that end between experts, within one, and behind all rows give every row its bits."""
    held, w = weight(FP4, 4, 40, 160)
    packed = backend.pack_weight(WeightKind.EXPERTS, held, (4, 40, 160))
    x, values = activations(backend, 9, 160)
    monkeypatch.setattr(grouped_linear, "PART", part)
    y = backend.implementation("grouped_linear")(x, packed, torch.tensor(ends, dtype=torch.int32))
    owner = np.searchsorted(ends, np.arange(9), side="right")
    for row in range(9):
        found = stated(values[row : row + 1], w[owner[row]], True) if owner[row] < 4 else np.zeros((1, 40), np.float32)
        assert torch.equal(y[row : row + 1], torch.from_numpy(found).to(torch.bfloat16))


@pytest.mark.parametrize("ends", [[3, 2, 9, 9], [0, 0, 0, 10], [-1, 0, 0, 1]])
def test_ends_that_are_none_are_refused(backend: CpuBackend, ends: list[int]) -> None:
    packed = backend.pack_weight(WeightKind.EXPERTS, weight(FP4, 4, 40, 64)[0], (4, 40, 64))
    x, _ = activations(backend, 9, 64)
    with pytest.raises(LayoutError, match="index in an array is out of range"):
        backend.implementation("grouped_linear")(x, packed, torch.tensor(ends, dtype=torch.int32))


@pytest.mark.parametrize("fmt", [BF16, FP8, FP4])
def test_groups(backend: CpuBackend, fmt: QFormat) -> None:
    held, w = weight(fmt, 3, 40, 96)
    packed = backend.pack_weight(WeightKind.GROUP, held, (3, 40, 96))
    x, values = activations(backend, 5, 288)
    y = backend.implementation("group_linear")(x, packed)
    parts = [stated(values[:, 96 * g : 96 * g + 96], w[g], fmt is FP4) for g in range(3)]
    assert torch.equal(y, torch.from_numpy(np.concatenate(parts, 1)).to(torch.bfloat16))


@pytest.mark.parametrize("fmt", [BF16, FP8, FP4])
def test_a_nan_stays_in_its_row(backend: CpuBackend, fmt: QFormat) -> None:
    packed = backend.pack_weight(WeightKind.LINEAR, weight(fmt, 40, 160)[0], (40, 160))
    x, _ = activations(backend, 8, 160)
    x.scale[3, 2], x.data[3, 64:96] = 255, 0x7F
    y = backend.implementation("linear")(x, packed, torch.float32)
    assert torch.isnan(y[3]).all() and not torch.isnan(y[[0, 1, 2, 4, 5, 6, 7]]).any()


def test_nothing_else_is_read_or_written(backend: CpuBackend) -> None:
    """Weights end where they end (NaN behind them), y has guards, room is all poison."""
    for fmt, element in ((BF16, 2), (FP8, 1), (FP4, 0.5)):
        held, w = weight(fmt, 37, 96)
        size = int(37 * 96 * element)
        poisoned = torch.full((size + 512,), 0xFF, dtype=torch.uint8)
        poisoned[:size] = held.data.view(torch.uint8).flatten()
        codes = poisoned[:size].view(torch.bfloat16) if fmt is BF16 else poisoned[:size]
        x, values = activations(backend, 5, 96)
        guarded = torch.full((7 * 37,), 12345.0)
        room = torch.full((5 * (128 + 32) * 4,), 0xFF, dtype=torch.uint8)
        number = {BF16: 0, FP8: 5, FP4: 3}[fmt]
        y = guarded[37:-37].view(5, 37)
        native.run("linear", x.data, x.scale, codes, held.scale, y, room, 5, 96, 37, 2, number, 1)
        np.testing.assert_array_equal(y.numpy(), stated(values, w, fmt is FP4))
        assert (guarded[:37] == 12345.0).all() and (guarded[-37:] == 12345.0).all()


def test_special_weights(backend: CpuBackend) -> None:
    """A NaN code makes its output NaN; a zero block may have the smallest scale."""
    held, _ = weight(FP8, 40, 160)
    held.data[7, 33] = 0x7F
    held.scale[1, 0], held.data[32:, :32] = 0, 0
    packed = backend.pack_weight(WeightKind.LINEAR, held, (40, 160))
    for rows in (1, 6):
        x, _ = activations(backend, rows, 160)
        y = backend.implementation("linear")(x, packed, torch.float32)
        assert torch.isnan(y[:, 7]).all() and int(torch.isnan(y).sum()) == rows


@pytest.mark.parametrize("rows", [1, 2, 6, 7])
def test_an_element_that_a_scale_makes_too_small_touches_no_other(
    backend: CpuBackend, rows: int, kernels: None
) -> None:
    """Times 2^-60 every second element is below 2^-126, with bits that bf16 has no room for."""
    ones, scales = torch.full((40, 160), 0x38, dtype=torch.uint8), torch.full((2, 5), 67, dtype=torch.uint8)
    held = CanonicalWeight(ones, scales, FP8)
    packed = backend.pack_weight(WeightKind.LINEAR, held, (40, 160))
    x = torch.ones((rows, 160), dtype=torch.bfloat16)
    x[:, 1::2] = 1.9921875 * 2.0**-68
    y = backend.implementation("linear")(x, packed, torch.float32)
    assert (y == 80 * 2.0**-60).all()


@pytest.mark.parametrize("code", [228, 255])
def test_large_scales_are_refused(backend: CpuBackend, code: int) -> None:
    held, _ = weight(FP4, 40, 160)
    held.scale[3, 1] = code
    with pytest.raises(CheckpointError, match=f"its byte is {code}"):
        backend.pack_weight(WeightKind.LINEAR, held, (40, 160))


def test_weights_are_held_as_stored(backend: CpuBackend) -> None:
    for fmt in (BF16, FP8, FP4):
        held, _ = weight(fmt, 40, 160)
        packed: PackedWeight = backend.pack_weight(WeightKind.LINEAR, held, (40, 160))
        scales = {BF16: 0, FP8: 2 * 5, FP4: 40 * 5}[fmt]
        assert packed.nbytes == 40 * 160 * fmt.bits // 8 + scales
        again = backend.unpack_weight(packed)
        assert torch.equal(again.data.view(torch.uint8), held.data.view(torch.uint8))
