"""*Emulated*: what csrc/cuda decides and addresses, compiled for the host, against decodes written for these tests."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from support import cuda_host
from support.cuda_host import e2m1_values, e4m3_values, packed

BF16, F32, MXFP8, MXFP4 = 0, 1, 2, 3
LINEAR_SHAPES = [(1280, 5120), (32768, 1280), (512, 5120), (5120, 8192), (2304, 5120), (5120, 2304), (129280, 5120)]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return cuda_host.build(tmp_path_factory.mktemp("cuda_host"))


def test_formats(host: tuple[Any, Any]) -> None:
    ffi, lib = host
    arrays = [np.empty(size, dtype=np.float32) for size in (256, 256, 16, 65536)]
    lib.host_decode(*(ffi.from_buffer("float *", array) for array in arrays))
    ue8m0, e4m3, e2m1, bf16 = arrays
    np.testing.assert_array_equal(ue8m0, [*(2.0 ** (c - 127) for c in range(255)), math.nan])
    np.testing.assert_array_equal(e4m3, e4m3_values())
    np.testing.assert_array_equal(e2m1, e2m1_values())
    np.testing.assert_array_equal(bf16, (np.arange(65536, dtype=np.uint32) << 16).view(np.float32))


def test_rounding_to_bf16(host: tuple[Any, Any]) -> None:
    """Nearest of the two neighbours, the even one between them; NaN stays NaN."""
    ffi, lib = host
    bits = np.random.default_rng(3).integers(0, 2**32, 20000, dtype=np.uint32)
    bits = np.concatenate((bits, bits & 0xFFFF0000 | 0x8000, [0x7F800000, 0xFF800000, 0x7F800001, 0x7F7FFFFF]))
    values = bits.astype(np.uint32).view(np.float32)
    codes = np.empty(len(values), dtype=np.uint16)
    lib.host_to_bf16(ffi.from_buffer("float *", values), len(values), ffi.from_buffer("uint16_t *", codes))
    back = (codes.astype(np.uint32) << 16).view(np.float32)
    nan = np.isnan(values)
    assert np.isnan(back[nan]).all() and not np.isnan(back[~nan]).any()
    finite = np.isfinite(back) & ~nan
    below = values.view(np.uint32)[finite] & 0xFFFF0000
    low, high = below.view(np.float32).astype(np.float64), (below + 0x10000).view(np.float32).astype(np.float64)
    exact, got = values[finite].astype(np.float64), back[finite].astype(np.float64)
    down, up = np.abs(exact - low), np.abs(high - exact)
    even = (below >> 16 & 1) == 0
    np.testing.assert_array_equal(got, np.where((down < up) | ((down == up) & even), low, high))


@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (3, 4), (128, 4), (129, 5), (260, 40), (37, 160)])
def test_scale_addresses(host: tuple[Any, Any], rows: int, groups: int) -> None:
    _, lib = host
    scale = np.random.default_rng(rows).integers(0, 255, (rows, groups), dtype=np.uint8)
    memory = packed(scale)
    tiles = -(-groups // 4)
    assert lib.host_scale_bytes(rows, groups * 32) == len(memory)
    found = [[memory[lib.host_scale_byte(r, g, tiles)] for g in range(groups)] for r in range(rows)]
    np.testing.assert_array_equal(found, scale)


def some_ends(seed: int) -> tuple[np.ndarray, int]:
    """Inclusive prefix sums with empty groups, and a number of rows beyond the last."""
    rng = np.random.default_rng(seed)
    counts = rng.choice([0, 0, 1, 2, 127, 128, 129, 300], size=int(rng.integers(1, 12)))
    return np.cumsum(counts).astype(np.int32), int(counts.sum() + rng.integers(0, 5))


@pytest.mark.parametrize("seed", range(12))
def test_problem_table(host: tuple[Any, Any], seed: int) -> None:
    """Rows of each group, and bands for its scales that no other group touches."""
    ffi, lib = host
    ends, rows = some_ends(seed)
    table = np.empty((len(ends), 3), dtype=np.int32)
    pointer = ffi.from_buffer("int32_t *", ends)
    lib.host_group_rows(pointer, len(ends), ffi.from_buffer("int32_t *", table))
    first, count, band = table.T
    np.testing.assert_array_equal(first, np.concatenate(([0], ends[:-1])))
    np.testing.assert_array_equal(first + count, ends)
    last = band + -(-count // 128)
    assert (last[:-1] <= band[1:]).all() and (last <= lib.host_group_bands(rows, len(ends))).all()
    owners = [lib.host_group_of_row(pointer, len(ends), row) for row in range(rows)]
    np.testing.assert_array_equal(owners, np.searchsorted(ends, np.arange(rows), side="right"))


@pytest.mark.parametrize("seed", range(6))
def test_scales_of_groups(host: tuple[Any, Any], seed: int) -> None:
    """After placing, each group's scales lie as if it were a matrix of its own."""
    ffi, lib = host
    ends, rows = some_ends(seed)
    depth = (128, 160, 512)[seed % 3]
    scale = np.random.default_rng(seed).integers(0, 255, (rows, depth // 32), dtype=np.uint8)
    source = packed(scale) if rows else np.empty(0, dtype=np.uint8)
    tiles = -(-depth // 128)
    target = np.full(lib.host_group_bands(rows, len(ends)) * tiles * 512, 127, dtype=np.uint8)
    lib.host_place_scales(
        ffi.from_buffer("int32_t *", ends), len(ends), rows, depth,
        ffi.from_buffer("uint32_t *", source) if rows else ffi.NULL, ffi.from_buffer("uint32_t *", target),
    )  # fmt: skip
    for e, end in enumerate(ends):
        start = int(ends[e - 1]) if e else 0
        band = start // 128 + e
        if end > start:
            alone = packed(scale[start:end])
            np.testing.assert_array_equal(target[band * tiles * 512 :][: len(alone)], alone)


def linear(host: tuple[Any, Any], x: int, w: int, out: int, *sizes: int) -> tuple[str, int, int]:
    ffi, lib = host
    extra = ffi.new("int64_t[2]")
    name = ffi.string(lib.host_linear(x, w, out, *sizes, extra)).decode()
    return name, extra[0], extra[1]


def test_tile_table(host: tuple[Any, Any]) -> None:
    """Entries stand at their own index, fit the device and the instruction, and say why."""
    ffi, lib = host
    names = set()
    for index in range(lib.host_tiles()):
        sizes = ffi.new("int32_t[5]")
        name = ffi.string(lib.host_tile(index, sizes)).decode()
        outputs, tokens, depth, together, kernel = sizes
        assert kernel == index and len(ffi.string(lib.host_tile_use(index))) > 40
        names.add(name)
        if name != "generic":
            assert outputs == 128 * together and tokens in (64, 128, 256)  # tokens that CUTLASS has block scales for
            assert depth * (2 if name.startswith("bf16") else 1) == 128  # one swizzled row of shared memory
    assert len(names) == lib.host_tiles()


@pytest.mark.parametrize("out", [BF16, F32])
@pytest.mark.parametrize(("x", "w"), [(MXFP8, MXFP8), (BF16, BF16), (BF16, MXFP8), (MXFP8, MXFP4)])
def test_sums_do_not_depend_on_the_batch(host: tuple[Any, Any], x: int, w: int, out: int) -> None:
    """Kind of kernel and parts of the sum are those of the weight, whatever the number of tokens."""
    for width, depth in [*LINEAR_SHAPES, (72, 96), (37, 100), (32, 5120), (384, 5120)]:
        found = {linear(host, x, w, out, tokens, width, depth)[:2] for tokens in (1, 2, 64, 65, 128, 129, 1024, 8192)}
        kinds = {(name.replace("small", "").replace("large", ""), splits) for name, splits in found}
        assert len(kinds) == 1, (width, depth, found)


def test_parts_cover_the_sum(host: tuple[Any, Any]) -> None:
    for width, depth in LINEAR_SHAPES:
        for tokens, out in itertools.product((1, 129, 4096), (BF16, F32)):
            name, splits, size = linear(host, MXFP8, MXFP8, out, tokens, width, depth)
            assert depth % (splits * 128) == 0 or splits == 1
            assert size == (splits * tokens * width * 4 if splits > 1 else 0)
            assert name.endswith("f32") == (splits > 1 or out == F32)


def test_official_shapes_run_on_tensor_cores(host: tuple[Any, Any]) -> None:
    ffi, lib = host
    names = {linear(host, MXFP8, MXFP8, BF16, t, *shape)[0] for shape in LINEAR_SHAPES for t in (1, 128, 8192)}
    assert names == {"mx_small_bf16", "mx_small_f32", "mx_large_bf16", "mx_large_f32"}
    for width, depth in ((129280, 5120), (384, 5120), (512, 5120), (128, 512), (32, 5120), (129280, 256)):
        for out in (BF16, F32):
            assert linear(host, BF16, BF16, out, 16, width, depth)[0] == "bf16_small"
    assert linear(host, BF16, BF16, F32, 1024, 129280, 5120)[0] == "bf16_large"
    group = [ffi.string(lib.host_group(tokens, 8, 1024, 4096)) for tokens in (1, 128, 1024)]
    assert group == [b"mx_small_bf16", b"mx_small_bf16", b"mx_large_bf16"]
    for shape in ((2304, 5120), (5120, 2304)):
        grouped = [ffi.string(lib.host_grouped(MXFP4, tokens * 6, 384, *shape)) for tokens in (1, 1024, 8192)]
        assert grouped == [b"grouped_small", b"grouped_small", b"grouped_large"]


def test_awkward_shapes_run_generically(host: tuple[Any, Any]) -> None:
    ffi, lib = host
    assert linear(host, BF16, BF16, F32, 5, 37, 100)[0] == "generic"
    assert linear(host, MXFP8, MXFP8, BF16, 5, 73, 96)[0] == "generic"
    assert linear(host, BF16, MXFP8, BF16, 5, 5120, 5120)[0] == "generic"
    assert ffi.string(lib.host_group(5, 2, 32, 96)) == b"generic"  # a group's scales begin inside a tile
    assert ffi.string(lib.host_grouped(MXFP4, 5, 5, 40, 64)) == b"generic"
    assert ffi.string(lib.host_grouped(MXFP8, 5, 5, 128, 128)) == b"generic"


class Matrix:
    """Random codes of a format, their values in float64, and where the generic kernel finds them."""

    def __init__(self, rng: np.random.Generator, fmt: int, rows: int, depth: int) -> None:
        self.fmt, self.scale = fmt, np.empty(0, dtype=np.uint8)
        if fmt in (BF16, F32):
            plain = rng.standard_normal((rows, depth)).astype(np.float32)
            self.data = (plain.view(np.uint32) >> 16).astype(np.uint16) if fmt == BF16 else plain
            kept = plain if fmt == F32 else (self.data.astype(np.uint32) << 16).view(np.float32)
            self.values = kept.astype(np.float64)
            return
        scale = rng.integers(120, 134, (rows, depth // 32), dtype=np.uint8)
        self.scale = packed(scale)
        factor = 2.0 ** (np.repeat(scale, 32, axis=1).astype(np.float64) - 127)
        codes = rng.integers(0, 16 if fmt == MXFP4 else 256, (rows, depth), dtype=np.uint8)
        if fmt == MXFP8:
            codes[codes & 0x7F == 0x7F] = 0
        self.values = (e2m1_values() if fmt == MXFP4 else e4m3_values())[codes] * factor
        self.data = codes if fmt == MXFP8 else codes[:, 0::2] | codes[:, 1::2] << 4


def generic(host: tuple[Any, Any], x: Matrix, ws: list[Matrix], ends: np.ndarray | None, depth: int) -> np.ndarray:
    """The generic kernel on the host, f32 out."""
    ffi, lib = host
    rows, width = len(x.data), len(ws[0].data)
    codes = np.concatenate([w.data.reshape(-1).view(np.uint8) for w in ws])
    scales = np.concatenate([w.scale for w in ws])
    out = np.full((rows, width * (1 if ends is not None else len(ws))), np.nan, dtype=np.float32)

    def at(array: np.ndarray, kind: str) -> Any:
        return ffi.from_buffer(kind, array) if array.size else ffi.NULL

    lib.host_generic(
        at(x.data, "void *"), at(x.scale, "uint8_t *"), x.fmt, x.values.shape[1], at(codes, "void *"),
        at(scales, "uint8_t *"), ws[0].fmt, rows, len(ws), width, depth,
        ffi.NULL if ends is None else at(ends, "int32_t *"), len(codes) // len(ws), len(scales) // len(ws),
        at(out, "void *"), F32,
    )  # fmt: skip
    return out


def assert_near(found: np.ndarray, exact: np.ndarray, size: np.ndarray, terms: int) -> None:
    """Within what a sum of so many f32 terms may lose."""
    assert (np.abs(found - exact) <= size * terms * 2.0**-23 + 1e-30).all()


@pytest.mark.parametrize("x_format", [BF16, MXFP8])
@pytest.mark.parametrize("w_format", [BF16, F32, MXFP8, MXFP4])
def test_generic_product(host: tuple[Any, Any], x_format: int, w_format: int) -> None:
    rng = np.random.default_rng(11)
    x, w = Matrix(rng, x_format, 5, 160), Matrix(rng, w_format, 131, 160)
    exact, size = x.values @ w.values.T, np.abs(x.values) @ np.abs(w.values).T
    assert_near(generic(host, x, [w], None, 160), exact, size, 160)


def test_generic_product_of_channel_groups(host: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(12)
    x, ws = Matrix(rng, MXFP8, 3, 192), [Matrix(rng, MXFP8, 33, 96) for _ in range(2)]
    parts = [x.values[:, :96], x.values[:, 96:]]
    exact = np.concatenate([p @ w.values.T for p, w in zip(parts, ws, strict=True)], axis=1)
    size = np.concatenate([np.abs(p) @ np.abs(w.values).T for p, w in zip(parts, ws, strict=True)], axis=1)
    assert_near(generic(host, x, ws, None, 96), exact, size, 96)


@pytest.mark.parametrize("w_format", [MXFP8, MXFP4])
def test_generic_product_of_row_groups(host: tuple[Any, Any], w_format: int) -> None:
    """Empty groups first, between and last; rows past the end are zero."""
    rng = np.random.default_rng(13)
    ends = np.array([0, 3, 3, 7, 7], dtype=np.int32)
    x, ws = Matrix(rng, MXFP8, 9, 64), [Matrix(rng, w_format, 10, 64) for _ in range(5)]
    owner = [1, 1, 1, 3, 3, 3, 3]
    found = generic(host, x, ws, ends, 64)
    for row, e in enumerate(owner):
        exact, size = ws[e].values @ x.values[row], np.abs(ws[e].values) @ np.abs(x.values[row])
        assert_near(found[row], exact, size, 64)
    assert (found[7:] == 0).all()
