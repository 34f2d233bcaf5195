"""Values of register-level functions against numpy, which knows nothing of the emulation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from support.ascend_scenarios import emulation

Array = np.ndarray[Any, np.dtype[Any]]
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 447.0, 448.0, 464.0, 465.0, -1e9, 1e9, 57344.0, 6e4, 2.0**-9]
EDGES += [2.0**-10, 3 * 2.0**-10, 1.00390625, 1.01171875, 3.3895314e38, 2.0**-133, 1e-40, 2147483648.0, -2147483648.0]
ODD = [float("inf"), -float("inf"), float("nan")]


def run(name: str, given: Array, out_bytes: int, own_mode: bool = False) -> Array:
    """What the function of a name writes, as bytes; own_mode: saturation is left to the instruction."""
    library = emulation()
    source = np.zeros(max(-(-given.nbytes // 256) * 256, 1024), np.uint8)
    source[: given.nbytes] = np.frombuffer(given.tobytes(), np.uint8)
    result = np.full(out_bytes, 0xEE, np.uint8)
    arrays = [library.ffi.cast("uint8_t *", array.ctypes.data) for array in (source, result)]
    for array in (source, result):
        library.lib.tandem_ascend_register(library.ffi.cast("void *", array.ctypes.data), array.nbytes)
    status = library.lib.register_case(name.encode(), arrays[0], source.nbytes, arrays[1], out_bytes, int(own_mode))
    library.lib.tandem_ascend_forget_all()
    assert status == 0, library.last_fault()
    return result


def floats(count: int = 64, odd: bool = True) -> Array:
    """Numbers of all sizes, halves between bf16 and fp8 numbers among them."""
    generator = np.random.default_rng(7)
    bits = generator.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    some = bits.view(np.float32).copy()
    some[~np.isfinite(some)] = 1.25
    tame = (generator.standard_normal(count) * 20).astype(np.float32)
    values = np.where(np.arange(count) % 2 == 0, some, tame)
    fixed = EDGES + (ODD if odd else [])
    values[: len(fixed)] = fixed
    return values.astype(np.float32)


def _bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _bf16_directed(x: Array, mode: str) -> Array:
    """Finite numbers to bf16 by cutting bits: the two neighbours, and one of them by the rule."""
    bits = x.view(np.uint32)
    low = (bits >> 16).astype(np.uint32)
    exact = (bits & 0xFFFF) == 0
    up = {
        "trunc": np.zeros_like(exact),
        "floor": np.signbit(x) & ~exact,
        "ceil": ~np.signbit(x) & ~exact,
        "round": (bits & 0x8000) != 0,
        "rint": ((bits & 0xFFFF) > 0x8000) | (((bits & 0xFFFF) == 0x8000) & ((low & 1) == 1)),
    }[mode]
    return (low + up.astype(np.uint32)).astype(np.uint16)


@pytest.mark.parametrize("mode", ["rint", "floor", "ceil", "round", "trunc"])
def test_float_to_bf16(mode: str) -> None:
    """All roundings, into the even lanes; with saturation left to the instruction, infinity and NaN stay."""
    x = floats(odd=False)
    got = run(f"f32-bf16-{mode}", x, 256, own_mode=True).view(np.uint16)
    assert (got[1::2] == 0).all()
    wanted = _bf16_directed(x, mode)
    finite = np.isfinite(_bf16(wanted))
    assert (got[::2][finite] == wanted[finite]).all()
    odd = np.tile(np.array(ODD + [1.0], np.float32), 16)
    kept = _bf16(run(f"f32-bf16-{mode}", odd, 256, own_mode=True).view(np.uint16)[::2])
    assert np.array_equal(kept, odd, equal_nan=True)
    # By default the control register makes all conversions saturate.
    plain = _bf16(run(f"f32-bf16-{mode}", odd, 256).view(np.uint16)[::2])
    largest = np.float32(3.3895314e38)
    assert np.array_equal(plain, np.tile(np.array([largest, -largest, 0, 1], np.float32), 16))


@pytest.mark.parametrize(("part", "first"), [("even", 0), ("odd", 1)])
def test_bf16_to_float(part: str, first: int) -> None:
    """Every second bf16 is taken."""
    bits = np.random.default_rng(3).integers(0, 1 << 16, 128).astype(np.uint16)
    got = run(f"bf16-f32-{part}", bits, 256).view(np.float32)
    assert np.array_equal(got, _bf16(bits[first::2]), equal_nan=True)


@pytest.mark.parametrize(("name", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_float_to_fp8(name: str, dtype: torch.dtype) -> None:
    """To the nearest, ties to even, by torch; what is too large saturates or becomes NaN or infinity."""
    x = floats()
    largest = torch.finfo(dtype).max
    got = run(f"f32-{name}", x, 256)
    assert (got.reshape(64, 4)[:, 1:] == 0).all()
    values = torch.from_numpy(got[::4].copy()).view(dtype).float()
    wanted = torch.from_numpy(x).nan_to_num(0.0).clamp(-largest, largest).to(dtype).float()
    assert torch.equal(values, wanted)
    own = torch.from_numpy(run(f"f32-{name}", x, 256, own_mode=True)[::4].copy()).view(dtype).float()
    inside = torch.from_numpy(np.abs(np.nan_to_num(x, nan=np.inf)) <= largest)
    assert torch.equal(own[inside], wanted[inside])
    assert torch.isnan(own[torch.from_numpy(np.isnan(x))]).all()
    too_large = own[torch.from_numpy(np.abs(x) >= 1e9)]
    assert (torch.isnan(too_large) if name == "e4m3" else torch.isinf(too_large)).all()


@pytest.mark.parametrize(("name", "part", "dtype"), [("e4m3-f32-0", 0, torch.float8_e4m3fn),
                                                     ("e4m3-f32-3", 3, torch.float8_e4m3fn),
                                                     ("e5m2-f32-1", 1, torch.float8_e5m2)])  # fmt: skip
def test_fp8_to_float(name: str, part: int, dtype: torch.dtype) -> None:
    """All 256 codes, a quarter at a time."""
    codes = np.arange(256, dtype=np.uint8)
    for turn in range(4):
        rolled = np.roll(codes, turn)
        got = run(name, rolled, 256).view(np.float32)
        wanted = torch.from_numpy(rolled[part::4].copy()).view(dtype).float().numpy()
        assert np.array_equal(got, wanted, equal_nan=True)


def test_e8m0_to_bf16() -> None:
    """Powers of two; 255 is NaN, 0 is the smallest, which is subnormal."""
    codes = np.arange(256, dtype=np.uint8)
    got = _bf16(run("e8m0-bf16-1", codes, 256).view(np.uint16))
    wanted = np.ldexp(np.float64(1), codes[1:-1:2].astype(int) - 127).astype(np.float32)
    wanted = np.append(wanted, np.float32(np.nan))
    assert np.array_equal(got, wanted, equal_nan=True)


def test_e2m1_to_bf16() -> None:
    """Byte 2 of each four, its low half first."""
    bytes_ = np.random.default_rng(5).integers(0, 256, 256).astype(np.uint8)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([table, -table])
    pairs = bytes_[2::4]
    wanted = np.stack([table[pairs & 15], table[pairs >> 4]], 1).reshape(-1)
    got = _bf16(run("e2m1-bf16-2", bytes_, 256).view(np.uint16))
    assert np.array_equal(got, wanted) and np.array_equal(np.signbit(got), np.signbit(wanted))


def test_integers() -> None:
    """Sign extension, negative numbers to an unsigned type, and floats to saturated integers."""
    bytes_ = np.random.default_rng(6).integers(0, 256, 256).astype(np.uint8)
    assert np.array_equal(run("i8-i32-2", bytes_, 256).view(np.int32), bytes_.view(np.int8)[2::4].astype(np.int32))
    words = bytes_.view(np.int16)
    assert np.array_equal(run("i16-u32-0", words, 256).view(np.uint32), np.maximum(words[::2], 0).astype(np.uint32))
    x = floats()
    for name, rule in (("f32-i32-rint", np.rint), ("f32-i32-trunc", np.trunc)):
        wide = np.nan_to_num(rule(x.astype(np.float64)), nan=0.0, posinf=2.0**40, neginf=-(2.0**40))
        wanted = np.clip(wide, -(2.0**31), 2.0**31 - 1).astype(np.int32)
        assert np.array_equal(run(name, x, 256).view(np.int32), wanted)


def test_widen_and_narrow() -> None:
    """64 bf16 times 3, rounded once to the nearest."""
    bits = np.random.default_rng(8).integers(0x3000, 0x4F00, 64).astype(np.uint16)
    got = run("widen-and-narrow", bits, 128).view(np.uint16)
    assert np.array_equal(got, _bf16_directed(_bf16(bits) * np.float32(3), "rint"))


def _tree(values: Array) -> np.float32:
    while len(values) > 1:
        values = values[0::2] + values[1::2]
    return values[0]


def test_reductions() -> None:
    """A tree of neighbours with zeros for lanes that are left out; first extreme and its lane."""
    x = (np.random.default_rng(9).standard_normal(64) * 100).astype(np.float32)
    x[20] = x[30] = 999.0
    inside = np.where(np.arange(64) < 37, x, np.float32(0))
    got = run("reduce-sum", x, 256).view(np.float32)
    assert got[0] == _tree(inside) and (got[1:] == 0).all()
    got = run("reduce-max", x, 256)
    assert got.view(np.float32)[0] == 999.0 and got.view(np.uint32)[1] == 20
    got = run("reduce-min", x, 256)
    assert got.view(np.float32)[0] == x[:37].min() and got.view(np.uint32)[1] == x[:37].argmin()
    got = run("reduce-blocks", x, 256).view(np.float32)
    assert np.array_equal(got[:8], [_tree(block) for block in x.reshape(8, 8)]) and (got[8:] == 0).all()


def test_fused_multiply_add_rounds_once() -> None:
    """Against exact fractions; a product and a sum of their own differ somewhere."""
    generator = np.random.default_rng(10)
    a, b = generator.standard_normal((2, 64)).astype(np.float32)
    c = (-a * b * (1 + generator.standard_normal(64) * 1e-7)).astype(np.float32)
    got = run("fused", np.concatenate([a, b, c]), 256).view(np.float32)
    exact = [Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r)) for p, q, r in zip(a, b, c, strict=True)]
    wanted = np.array([float(value) for value in exact]).astype(np.float32)
    assert np.array_equal(got, wanted)
    assert not np.array_equal(got, a * b + c)


def test_select() -> None:
    """Compare, shift and choose, of integers that wrap around."""
    x, y = np.random.default_rng(11).integers(-(2**31), 2**31, (2, 64)).astype(np.int32)
    got = run("select", np.concatenate([x, y]), 256).view(np.int32)
    assert np.array_equal(got, np.where(x > y, x - y, x >> 3))


def test_load_distributions() -> None:
    """What each byte of a register comes from."""
    data = np.random.default_rng(12).integers(0, 256, 1024).astype(np.uint8)
    half, word = data.view(np.uint16), data.view(np.uint32)
    zeros = np.zeros(256, np.uint8)
    unpacked, unpacked4 = zeros.copy(), zeros.copy()
    unpacked[::2], unpacked4[::4] = data[:128], data[:64]
    wanted: dict[str, Array] = {
        "load-brc-b32": np.repeat(word[:1], 64),
        "load-us-b16": np.repeat(half[:64], 2),
        "load-ds-b8": data[:512:2],
        "load-unpack-b8": unpacked,
        "load-unpack4-b8": unpacked4,
        "load-blk": np.tile(word[:8], 8),
        "load-e2b-b16": np.repeat(half[:8], 16),
        "load-e2b-b32": np.repeat(word[:8], 8),
    }
    for name, array in wanted.items():
        assert np.array_equal(run(name, data, 256), array.view(np.uint8)), name


def test_store_distributions() -> None:
    """What is written, and that nothing else is."""
    data = np.random.default_rng(13).integers(0, 256, 256).astype(np.uint8)
    wanted = {name: np.zeros(256, np.uint8) for name in ("store-pack-b16", "store-pack4-b32", "store-first-b32")}
    wanted["store-pack-b16"][:128] = data[::2]
    wanted["store-pack4-b32"][:64] = data[::4]
    wanted["store-first-b32"][:4] = data[:4]
    for name, array in wanted.items():
        assert np.array_equal(run(name, data, 256), array), name


def test_interleave() -> None:
    """Apart by a double load, exchanged, and together again."""
    data = np.random.default_rng(14).integers(0, 1 << 16, 256).astype(np.uint16)
    got = run("interleave", data, 512).view(np.uint16)
    assert np.array_equal(got.reshape(-1, 2), data.reshape(-1, 2)[:, ::-1])


def test_unaligned() -> None:
    """130 floats from one odd place to another; nothing around them changes."""
    data = np.arange(256, dtype=np.float32)
    wanted = np.zeros(192, np.float32)
    wanted[5:135] = data[3:133]
    assert np.array_equal(run("unaligned", data, 768).view(np.float32), wanted)
