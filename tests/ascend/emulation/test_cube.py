"""The cube's emulation: layouts and sums against numpy, and planted faults beside programs that are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cffi
import numpy as np
import numpy.typing as npt
import pytest

from tools.build_ascend import ROOT, build_emulated

Array = npt.NDArray[Any]
PROGRAMS = [Path(__file__).with_name(name) for name in ("cube_programs.cpp", "cube_mixed_programs.cpp")]
CDEF = """
const char *tandem_ascend_last_fault(void);
int32_t tandem_ascend_register(const void *pointer, int64_t bytes);
void tandem_ascend_forget_all(void);
int32_t cube_product(const void *a, const void *b, void *c, int32_t m, int32_t n, int32_t k, int32_t plant);
int32_t cube_product_narrow(const void *a, const void *b, void *c, int32_t m, int32_t n, int32_t k, int32_t keep);
int32_t cube_product_f32(const void *a, const void *b, void *c, int32_t m, int32_t n, int32_t k);
int32_t cube_product_mx8(const void *a, const void *as, const void *b, const void *bs, void *c, int32_t m, int32_t n,
                         int32_t k, int32_t plant);
int32_t cube_product_mx4(const void *a, const void *as, const void *b, const void *bs, void *c, int32_t m, int32_t n,
                         int32_t k, int32_t plant);
int32_t cube_move(const void *x, int32_t rows, int32_t columns, int32_t transposed, int32_t right);
int32_t cube_move_scales(const void *x, int32_t rows, int32_t pairs, int32_t first);
int32_t cube_mixed(const void *a, const void *b, void *c, int32_t rounds, int32_t plant);
void cube_peek(int32_t space, int32_t offset, int32_t bytes, void *out);
"""
L1, L0A, L0B, L0A_MX = 2, 3, 4, 8  # of enum Space
FAULT = 4


class Cube:
    """The programs, with nothing but their arrays in reach."""

    def __init__(self, path: Path) -> None:
        self._ffi = cffi.FFI()
        self._ffi.cdef(CDEF)
        self._library = self._ffi.dlopen(str(path))

    def run(self, name: str, *arguments: Array | int) -> str:
        """Run a program; returns the fault that it ended with, "" for none."""
        passed = []
        for value in arguments:
            if isinstance(value, np.ndarray):
                pointer = self._ffi.cast("void *", value.ctypes.data)
                self._library.tandem_ascend_register(pointer, value.nbytes)
                passed.append(pointer)
            else:
                passed.append(value)
        status = getattr(self._library, f"cube_{name}")(*passed)
        self._library.tandem_ascend_forget_all()
        assert status in (0, FAULT)
        return self._ffi.string(self._library.tandem_ascend_last_fault()).decode() if status else ""

    def peek(self, space: int, offset: int, count: int, dtype: Any) -> Array:
        """What a memory of the cube core holds after the last program."""
        out = np.empty(count, dtype)
        self._library.cube_peek(space, offset, out.nbytes, self._ffi.cast("void *", out.ctypes.data))
        return out


@pytest.fixture(scope="module")
def cube() -> Cube:
    """The programs, compiled and loaded."""
    return Cube(build_emulated(PROGRAMS, ROOT / "build" / "ascend_cube" / "libcube_programs.so", kernels=False))


def bf16_codes(x: Array) -> Array:
    """f32 -> bf16 codes, rounded to nearest even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(codes: Array) -> Array:
    """bf16 codes -> f64."""
    return (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def fractals(x: Array, rows: int, columns: int) -> Array:
    """Nz by its documented formula: pad, split into fractals, column of fractals after column."""
    m, n = x.shape
    padded = np.pad(x, ((0, -m % rows), (0, -n % columns)))
    return padded.reshape(-(-m // rows), rows, -(-n // columns), columns).transpose(2, 0, 1, 3)


def close(got: Array, wanted: Array, depth: int, magnitude: Array) -> bool:
    """Within what f32 sums of `depth` terms may lose."""
    return bool((np.abs(got - wanted) <= depth * 2.0**-24 * magnitude + 1e-30).all())


SHAPES = [(1, 1, 1), (2, 37, 100), (16, 16, 32), (33, 17, 31), (40, 50, 70), (70, 160, 256), (129, 48, 520)]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_products_of_bf16(cube: Cube, m: int, n: int, k: int) -> None:
    """All edges: rows, columns and depth that fill no fractal."""
    rng = np.random.default_rng(m * n + k)
    a, b = (bf16_codes(rng.standard_normal((rows, k))) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32)
    assert cube.run("product", a, b, c, m, n, k, 0) == ""
    x, y = bf16_values(a), bf16_values(b)
    assert close(c, x @ y.T, k, np.abs(x) @ np.abs(y.T))


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_products_of_f32(cube: Cube, m: int, n: int, k: int) -> None:
    """As f32, not as HF32."""
    rng = np.random.default_rng(m * n + k)
    a, b = (rng.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32)
    assert cube.run("product_f32", a, b, c, m, n, k) == ""
    x, y = a.astype(np.float64), b.astype(np.float64)
    assert close(c, x @ y.T, k, np.abs(x) @ np.abs(y.T))


def test_a_rows_bits_are_its_own(cube: Cube) -> None:
    """Whatever stands in other rows, and in whatever tile."""
    rng = np.random.default_rng(5)
    a, b = (bf16_codes(rng.standard_normal((rows, 200))) for rows in (60, 48))
    whole, one = np.empty((60, 48), np.float32), np.empty((1, 48), np.float32)
    assert cube.run("product", a, b, whole, 60, 48, 200, 0) == ""
    for row in (0, 15, 16, 47, 59):
        assert cube.run("product", a[row : row + 1].copy(), b, one, 1, 48, 200, 0) == ""
        assert (one == whole[row]).all()


def test_bf16_results_saturate_unless_told_otherwise(cube: Cube) -> None:
    """NaN becomes zero and infinity the largest number where CTRL[48] is off."""
    a = bf16_codes(np.array([[1.0], [np.inf], [3.0]]))
    a[2] = 0x7FC0
    b, c = bf16_codes(np.array([[1.0], [-2.0]])), np.empty((3, 2), np.uint16)
    assert cube.run("product_narrow", a, b, c, 3, 2, 1, 1) == ""
    assert c[0].tolist() == [0x3F80, 0xC000]
    assert c[1].tolist() == [0x7F80, 0xFF80]
    assert np.isnan(bf16_values(c[2])).all()
    assert cube.run("product_narrow", a, b, c, 3, 2, 1, 0) == ""
    assert c[1].tolist() == [0x7F7F, 0xFF7F]
    assert c[2].tolist() == [0, 0]


def e4m3_values(codes: Array) -> Array:
    """e4m3 codes -> f64, from the definition of the format."""
    exponent, fraction = (codes >> 3) & 15, codes & 7
    value = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent.astype(int) - 10))
    return np.where(codes & 0x80, -value, value)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e2m1_values(codes: Array) -> Array:
    """Packed e2m1 -> f64, the low half first."""
    return np.stack((E2M1[codes & 15], E2M1[codes >> 4]), -1).reshape(codes.shape[0], -1)


def scaled_operand(rng: np.random.Generator, fmt: str, rows: int, k: int) -> tuple[Array, Array, Array]:
    """Codes, scales filled up to pairs with one (127), and values."""
    if fmt == "mx8":
        codes = rng.integers(0, 0x7F, (rows, k), np.uint8) | (rng.integers(0, 2, (rows, k), np.uint8) << 7)
    else:
        codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
    scales = np.full((rows, -(-k // 64) * 2), 127, np.uint8)
    scales[:, : k // 32] = rng.integers(110, 140, (rows, k // 32))
    plain = e4m3_values(codes) if fmt == "mx8" else e2m1_values(codes)
    return codes, scales, plain * np.repeat(2.0 ** (scales.astype(int) - 127), 32, 1)[:, :k]


@pytest.mark.parametrize("fmt", ["mx8", "mx4"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 16, 64), (40, 50, 64), (17, 33, 192), (5, 40, 96), (64, 80, 256)])
def test_scaled_products(cube: Cube, fmt: str, m: int, n: int, k: int) -> None:
    """fp8 by fp8 and fp4 by fp4, with K that fills a step of 64 and K that does not."""
    rng = np.random.default_rng(m + n + k)
    (a, a_scale, x), (b, b_scale, y) = (scaled_operand(rng, fmt, rows, k) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32)
    assert cube.run(f"product_{fmt}", a, a_scale, b, b_scale, c, m, n, k, 0) == ""
    assert close(c, x @ y.T, k, np.abs(x) @ np.abs(y.T))


def test_nan_scales_spoil_their_row_only(cube: Cube) -> None:
    """255 is NaN; rows beside it keep their bits."""
    rng = np.random.default_rng(3)
    (a, a_scale, _), (b, b_scale, _) = (scaled_operand(rng, "mx8", rows, 128) for rows in (20, 16))
    c, d = np.empty((20, 16), np.float32), np.empty((20, 16), np.float32)
    assert cube.run("product_mx8", a, a_scale, b, b_scale, c, 20, 16, 128, 0) == ""
    a_scale[7, 2] = 255
    assert cube.run("product_mx8", a, a_scale, b, b_scale, d, 20, 16, 128, 0) == ""
    assert np.isnan(d[7]).all()
    assert (np.delete(c, 7, 0) == np.delete(d, 7, 0)).all()


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (40, 56), (33, 100)])
def test_nd2nz_and_load_to_both_sides(cube: Cube, rows: int, columns: int) -> None:
    """L1, L0A and, of the transposed matrix, L0B hold the fractals of the documented formula."""
    x = np.arange(1, rows * columns + 1, dtype=np.uint16).reshape(rows, columns)
    wanted = fractals(x, 16, 16)
    used = fractals(np.ones_like(x), 16, 16).any(-1, keepdims=True)  # rows that exist; others hold anything
    for right, space in ((0, L0A), (1, L0B)):
        assert cube.run("move", x, rows, columns, 0, right) == ""
        for memory in (L1, space):
            got = cube.peek(memory, 0, wanted.size, np.uint16).reshape(wanted.shape)
            assert (np.where(used, got, 0) == np.where(used, wanted, 0)).all()
    # Zn of the [K, N] matrix: rows of fractals one after the other, each by columns.
    k1, n1 = wanted.shape[:2]
    zn = np.pad(x.T, ((0, -columns % 16), (0, -rows % 16))).reshape(k1, 16, n1, 16).transpose(0, 2, 3, 1)
    assert (zn == wanted).all()


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (48, 32), (32, 80)])
def test_loads_that_transpose(cube: Cube, rows: int, columns: int) -> None:
    """A [K, N] matrix to L0B, and a [K, M] matrix to L0A."""
    x = np.arange(rows * columns, dtype=np.uint16).reshape(rows, columns)
    for right, space in ((0, L0A), (1, L0B)):
        assert cube.run("move", x, rows, columns, 1, right) == ""
        got = cube.peek(space, 0, x.size, np.uint16)
        assert (got == fractals(x.T.copy(), 16, 16).ravel()).all()


@pytest.mark.parametrize(("rows", "pairs", "first"), [(16, 1, 0), (40, 5, 0), (40, 5, 2)])
def test_scales_lie_in_fractals_of_16_rows_by_2(cube: Cube, rows: int, pairs: int, first: int) -> None:
    """Zz by its documented formula, and the same at a sixteenth of the address beside L0A."""
    x = np.random.default_rng(1).integers(1, 255, (rows, 2 * pairs), np.uint8)
    bands = -(-rows // 16)
    padded = np.pad(x, ((0, -rows % 16), (0, 0)))
    wanted = padded.reshape(bands, 16, pairs, 2).transpose(0, 2, 1, 3)
    assert cube.run("move_scales", x, rows, pairs, first) == ""
    assert (cube.peek(L1, 0, padded.size, np.uint8) == wanted.ravel()).all()
    loaded = wanted[:, first:].ravel()
    assert (cube.peek(L0A_MX, 1024 // 16, loaded.size, np.uint8) == loaded).all()


PLANTS = [
    (1, "missing-synchronisation", "MTE1"),
    (2, "missing-synchronisation", "Mmad"),
    (3, "missing-synchronisation", "Fixpipe"),
    (4, "missing-synchronisation", "FIX"),
    (5, "missing-synchronisation", "LoadData"),
    (6, "missing-synchronisation", "ND2NZ"),
    (7, "missing-synchronisation", "PipeBarrier"),
    (8, "uninitialised-read", "Mmad"),
    (9, "uninitialised-read", "Mmad, result before"),
    (10, "out-of-range", "L0A"),
    (11, "out-of-range", "L1"),
    (12, "misaligned", "1024"),
    (18, "uninitialised-read", "Mmad"),
]


@pytest.mark.parametrize(("plant", "name", "told"), PLANTS)
def test_planted_faults(cube: Cube, plant: int, name: str, told: str) -> None:
    """Each is named, and the same program without it runs."""
    rng = np.random.default_rng(0)
    a, b = (bf16_codes(rng.standard_normal((rows, 96))) for rows in (50, 24))
    c = np.empty((50, 24), np.float32)
    assert cube.run("product", a, b, c, 50, 24, 96, 0) == ""
    fault = cube.run("product", a, b, c, 50, 24, 96, plant)
    assert fault.startswith(f"{name}: ")
    assert told in fault


def test_one_row_wants_gemv_switched_off(cube: Cube) -> None:
    """Otherwise the left matrix would be read row-major."""
    a, b, c = np.zeros((1, 16), np.uint16), np.zeros((16, 16), np.uint16), np.empty((1, 16), np.float32)
    assert cube.run("product", a, b, c, 1, 16, 16, 0) == ""
    assert cube.run("product", a, b, c, 1, 16, 16, 13).startswith("not-modelled: ")


SCALED_PLANTS = [
    (14, "uninitialised-read", "Mmad"),
    (15, "bad-parameter", "k = 96"),
    (16, "uninitialised-read", "scales"),
    (17, "uninitialised-read", "scales"),
]


@pytest.mark.parametrize(("plant", "name", "told"), SCALED_PLANTS)
def test_planted_faults_of_scales(cube: Cube, plant: int, name: str, told: str) -> None:
    """L1 that is not filled up, K that is no multiple of 64, scales that are missing or too few."""
    rng = np.random.default_rng(0)
    (a, a_scale, _), (b, b_scale, _) = (scaled_operand(rng, "mx8", rows, 96) for rows in (20, 24))
    c = np.empty((20, 24), np.float32)
    assert cube.run("product_mx8", a, a_scale, b, b_scale, c, 20, 24, 96, 0) == ""
    fault = cube.run("product_mx8", a, a_scale, b, b_scale, c, 20, 24, 96, plant)
    assert fault.startswith(f"{name}: ")
    assert told in fault


def mixed_arguments(rounds: int) -> tuple[Array, Array, Array]:
    """Matrices as fractals, whose products are exact, and room for the results."""
    rng = np.random.default_rng(2)
    whole = rng.integers(-8, 8, (2, rounds, 32, 32))
    x, y = (np.stack([fractals(bf16_codes(m), 16, 16) for m in side]) for side in whole)
    return x.copy(), y.copy(), np.stack([a @ b.T for a, b in zip(*whole, strict=True)]).astype(np.float32)


def test_vector_cores_feed_the_cube_and_take_its_results(cube: Cube) -> None:
    """UB to L1, and L0C to both UBs, three times through the same buffers."""
    a, b, wanted = mixed_arguments(3)
    c = np.full((3, 32, 32), np.nan, np.float32)
    assert cube.run("mixed", a, b, c, 3, 0) == ""
    assert (c == wanted).all()


MIXED_PLANTS = [
    (1, "uninitialised-read", "L0A"),
    (2, "missing-synchronisation", "FIX"),
    (3, "missing-synchronisation", "CrossCoreSetFlag"),
    (4, "missing-synchronisation", "LoadData"),
    (5, "deadlock", ""),
]


@pytest.mark.parametrize(("plant", "name", "told"), MIXED_PLANTS)
def test_planted_faults_between_cores(cube: Cube, plant: int, name: str, told: str) -> None:
    """Flags that are missing, on the wrong pipe, or set by one core of two."""
    a, b, wanted = mixed_arguments(3)
    c = np.empty_like(wanted)
    fault = cube.run("mixed", a, b, c, 3, plant)
    assert fault.startswith(f"{name}: ")
    assert told in fault
