"""The corrected interpreter against decodes and encodes written from the definitions of the formats."""

from __future__ import annotations

import struct
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
import triton
from emulated import kernels
from triton.runtime.errors import InterpreterError

from tandem.backends.cuda import interpreter
from tandem.errors import BackendLoadError

BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
# exponent bits, mantissa bits; e4m3 has one NaN code and no infinity
FORMS = {BF16: (8, 7), E4M3: (4, 3), E5M2: (5, 2)}


def value_of(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """A code read by hand."""
    width = exponent_bits + mantissa_bits
    sign = -1 if code >> width else 1
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = Fraction(code & ((1 << mantissa_bits) - 1), 1 << mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    if (exponent_bits, mantissa_bits) == (4, 3):
        if code & 0x7F == 0x7F:
            return float("nan")
    elif exponent == (1 << exponent_bits) - 1:
        return sign * float("inf") if fraction == 0 else float("nan")
    power = Fraction(2) ** ((exponent or 1) - bias)
    return sign * float((fraction + (exponent != 0)) * power) if exponent or fraction else sign * 0.0


@cache
def all_values(dtype: torch.dtype) -> np.ndarray:
    """float64 of every code."""
    form = FORMS[dtype]
    return np.array([value_of(code, *form) for code in range(1 << (1 + sum(form)))])


def nearest_codes(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Codes nearest to float64 values by search in the table, ties to the even one; fp8 saturates."""
    table = all_values(dtype)
    positive = table[: len(table) // 2]
    finite = positive[np.isfinite(positive)]
    steps = np.append(finite, 2.0**128) if dtype is BF16 else finite
    magnitude = np.minimum(np.abs(np.nan_to_num(x, nan=0.0, posinf=2.0**128, neginf=-(2.0**128))), steps[-1])
    above = np.searchsorted(steps, magnitude)
    below = np.maximum(above - 1, 0)
    middle = (steps[below] + steps[above]) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (above % 2 == 0))
    code = np.where(up, above, below)
    return code | (np.signbit(x).astype(np.int64) << sum(FORMS[dtype]))


def converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x by a kernel's cast."""
    block = 4096
    padded = torch.zeros(-(-x.numel() // block) * block, dtype=torch.uint8).repeat_interleave(x.element_size())
    padded = padded.view(x.dtype)
    padded[: x.numel()] = x
    out = torch.empty(padded.numel(), dtype=dtype)
    kernels.convert[(padded.numel() // block,)](padded, out, block)
    return out[: x.numel()]


def codes(x: torch.Tensor) -> np.ndarray:
    """Bits of a tensor as unsigned integers."""
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32}[x.element_size()]
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()]).numpy().view(unsigned)


def all_codes(dtype: torch.dtype) -> torch.Tensor:
    """Every code of a format."""
    if dtype is BF16:
        return torch.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.int16)).view(BF16)
    return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)


def hard_floats(dtype: torch.dtype) -> torch.Tensor:
    """Random bits, and every code of a format, every middle of two, and their neighbours in float32."""
    rng = np.random.default_rng(7)
    table = all_values(dtype)
    finite = np.sort(table[np.isfinite(table)])
    exact = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2]).astype(np.float32)
    around = np.concatenate([exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))])
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45, 448, 464, 480, 57344, 61440])
    bits = rng.integers(0, 1 << 32, 60000, dtype=np.uint32).view(np.float32)
    small = (rng.standard_normal(20000) * 2.0 ** rng.integers(-20, 18, 20000)).astype(np.float32)
    return torch.from_numpy(np.concatenate([around, special.astype(np.float32), bits, small]).astype(np.float32))


@pytest.mark.parametrize("dtype", FORMS, ids=str)
def test_every_code_decodes(dtype: torch.dtype) -> None:
    found = converted(all_codes(dtype), torch.float32).numpy()
    expected = all_values(dtype)
    assert np.array_equal(found, expected.astype(np.float32), equal_nan=True)
    zero = expected == 0
    assert np.array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("dtype", FORMS, ids=str)
def test_floats_encode_to_the_nearest_code(dtype: torch.dtype) -> None:
    x = hard_floats(dtype)
    found = codes(converted(x, dtype)).astype(np.int64)
    number = ~np.isnan(x.numpy())
    wide = np.where(number, x.numpy(), 0).astype(np.float64)
    assert np.array_equal(found[number], nearest_codes(wide[number], dtype))
    assert np.isnan(all_values(dtype)[found[~number]]).all()


@pytest.mark.parametrize("dtype", FORMS, ids=str)
def test_codes_survive_a_round_trip(dtype: torch.dtype) -> None:
    every = all_codes(dtype)
    number = np.isfinite(all_values(dtype))
    there = converted(converted(every, torch.float32), dtype)
    assert np.array_equal(codes(there)[number], codes(every)[number])


def test_integers_and_bf16() -> None:
    rng = np.random.default_rng(3)
    whole = np.concatenate([rng.integers(-(2**31), 2**31, 4000), [0, 1, 257, 258, 259, 2**24 + 1, 2**31 - 1]])
    found = converted(torch.from_numpy(whole.astype(np.int32)), BF16)
    assert np.array_equal(codes(found), nearest_codes(whole.astype(np.float64), BF16))
    back = converted(found, torch.int32).numpy()
    near = all_values(BF16)[codes(found)]
    assert np.array_equal(back, np.clip(near, -(2**31), 2**31 - 1).astype(np.int32))


@pytest.mark.parametrize("dtype, low, high", [(torch.int32, -(2**31), 2**31 - 1), (torch.int64, -(2**63), 2**63 - 1)])
def test_floats_to_integers_clamp(dtype: torch.dtype, low: int, high: int) -> None:
    x = torch.tensor([0.9, -0.9, 1.5, -2.5, 3e38, -3e38, np.inf, -np.inf, np.nan, 2.0**31, -(2.0**31)])
    found = converted(x, dtype).tolist()
    assert found[:9] == [0, 0, 1, -2, high, low, high, low, 0]
    assert found[9:] == [min(high, 2**31), -(2**31)]


def run(op: str, x: torch.Tensor, y: torch.Tensor, out: torch.dtype) -> np.ndarray:
    found = torch.empty(x.numel(), dtype=out)
    kernels.binary[(1,)](x, y, found, op, x.numel())
    return codes(found) if out is BF16 else found.numpy()


def bf16_pairs() -> tuple[torch.Tensor, torch.Tensor, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 1 << 16, (2, 8192), dtype=np.uint16)
    bits[1, ::7] = bits[0, ::7]
    x, y = (torch.from_numpy(b.view(np.int16)).view(BF16) for b in bits)
    return x, y, all_values(BF16)[bits[0]], all_values(BF16)[bits[1]]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "max", "min", "neg", "abs", "where", "clamp", "nanmax"])
def test_bf16_arithmetic(op: str) -> None:
    x, y, a, b = bf16_pairs()
    functions = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.fmax, "min": np.fmin,
        "neg": lambda p, q: -p, "abs": lambda p, q: abs(p), "where": lambda p, q: np.where(p > q, p, q),
        "clamp": lambda p, q: np.fmin(np.fmax(p, -1.0), 1.0), "nanmax": np.maximum,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        expected = functions[op](a, b)
    found = run(op, x, y, BF16)
    number = ~np.isnan(expected)
    assert np.isnan(all_values(BF16)[found[~number]]).all()
    # A sum of two bf16 numbers far apart does not fit float64, where it is still rounded once to bf16.
    assert np.array_equal(all_values(BF16)[found[number]], all_values(BF16)[nearest_codes(expected[number], BF16)])


@pytest.mark.parametrize("op", ["lt", "le", "eq", "ne"])
def test_bf16_comparisons(op: str) -> None:
    x, y, a, b = bf16_pairs()
    expected = {"lt": a < b, "le": a <= b, "eq": a == b, "ne": a != b}[op]
    assert np.array_equal(run(op, x, y, torch.int32), expected.astype(np.int32))


def test_division() -> None:
    """``div_rn`` is exact; ``/`` is within 2 ulp, and not exact, as on the device."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal(4096).astype(np.float32)
    y = (rng.standard_normal(4096) * 100).astype(np.float32)
    exact = x.astype(np.float64) / y
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    assert np.array_equal(run("div_rn", a, b, torch.float32), exact.astype(np.float32))
    rough = run("div", a, b, torch.float32)
    error = np.abs(rough - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert 0.5 < error.max() <= 2
    a = torch.tensor([1.0, -1.0, 0.0, 1.0, np.inf, 3e38, 1e-40, 0.0])
    b = torch.tensor([0.0, 0.0, 0.0, np.inf, 2.0, 1e-38, 1e-40, 5.0])
    expected = [np.inf, -np.inf, np.nan, 0, np.inf, np.inf, 1, 0]
    assert np.array_equal(run("div", a, b, torch.float32), expected, equal_nan=True)


def test_functions() -> None:
    x = torch.tensor([-80.0, -1.0, 0.0, 0.5, 10.0, float("inf"), float("-inf"), float("nan")])
    wide = x.numpy().astype(np.float64)
    for op, exact, ulp in (("exp", np.exp(wide), 90), ("exp2", np.exp2(wide), 1)):
        found = torch.empty_like(x)
        kernels.unary[(1,)](x, found, op, 8)
        error = np.abs(found.numpy()[:5] - exact[:5]) / np.spacing(exact[:5].astype(np.float32))
        assert error.max() <= ulp
        assert np.array_equal(found.numpy()[5:], [np.inf, 0, np.nan], equal_nan=True)
    found = torch.empty_like(x)
    kernels.unary[(1,)](torch.full((8,), -130.0), found, "exp2", 8)
    assert (found == 0).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_umulhi(dtype: torch.dtype) -> None:
    bits = torch.iinfo(dtype).bits
    rng = np.random.default_rng(1)
    x, y = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (2, 512), dtype=f"i{bits // 8}")
    x[:4], y[:4] = [-1, -1, 0, 1], [-1, 1, -1, -(2 ** (bits - 1))]
    found = run("umulhi", torch.from_numpy(x), torch.from_numpy(y), dtype)
    mask = (1 << bits) - 1
    expected = [((int(a) & mask) * (int(b) & mask)) >> bits for a, b in zip(x, y, strict=True)]
    assert [int(v) & mask for v in found] == expected


def test_integers_wrap_and_divide_towards_zero() -> None:
    big = torch.tensor([2**31 - 1, -(2**31), 7, -7, 7, -7, -5, 5], dtype=torch.int32)
    other = torch.tensor([1, -1, 2, 2, -2, -2, 1, 1], dtype=torch.int32)
    assert run("add", big, other, torch.int32)[:2].tolist() == [-(2**31), 2**31 - 1]
    assert run("idiv", big, other, torch.int32)[2:6].tolist() == [3, -3, -3, 3]
    assert run("rem", big, other, torch.int32)[2:6].tolist() == [1, -1, 1, -1]
    assert run("shr", big, other, torch.int32)[6:].tolist() == [-3, 2]
    assert run("mul", torch.full((1,), 2**40 + 1), torch.full((1,), 2**30), torch.int64).tolist() == [2**30]


def product(a: torch.Tensor, b: torch.Tensor, precision: str = "ieee") -> torch.Tensor:
    out = torch.empty((a.shape[0], b.shape[1]))
    kernels.dot[(1,)](a, b, out, *out.shape, a.shape[1], precision)
    return out


@pytest.mark.parametrize("dtype", [BF16, E4M3, E5M2, torch.float32], ids=str)
def test_dot(dtype: torch.dtype) -> None:
    """Against float64, and a row's bits wherever the row stands and whatever stands beside it."""
    torch.manual_seed(2)
    a, b = torch.randn(32, 64).to(dtype), torch.randn(64, 16).to(dtype)
    if dtype is torch.float32:
        wide = [x.double().numpy() for x in (a, b)]
    else:
        wide = [all_values(dtype)[codes(x).ravel()].reshape(x.shape) for x in (a, b)]
    found = product(a, b)
    assert np.array_equal(found.numpy(), (wide[0] @ wide[1]).astype(np.float32))
    moved = a.float().roll(5, 0)
    moved[0] = float("nan")
    moved[1] *= 1e-30 if dtype in (torch.float32, BF16) else 1
    rows = product(moved.to(dtype), b)
    assert torch.equal(rows[5:], found[:-5])
    assert rows[0].isnan().all()


@pytest.mark.parametrize("left, right", [("e4m3", "e2m1"), ("e4m3", "e4m3"), ("e2m1", "e2m1"), ("e5m2", "e2m1")])
def test_dot_scaled(left: str, right: str) -> None:
    rng = np.random.default_rng(4)
    m, n, k = 16, 32, 128

    def operand(rows: int, form: str) -> tuple[torch.Tensor, np.ndarray]:
        if form == "e2m1":
            packed = rng.integers(0, 256, (rows, k // 2), dtype=np.uint8)
            levels = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
            pairs = [[level for byte in row for level in (byte & 15, byte >> 4)] for row in packed.tolist()]
            values = np.array([[levels[c & 7] * (-1 if c & 8 else 1) for c in row] for row in pairs], dtype=np.float64)
            return torch.from_numpy(packed), values
        dtype = E4M3 if form == "e4m3" else E5M2
        table = all_values(dtype)
        legal = np.flatnonzero(np.isfinite(table) & (np.abs(table) <= 16))
        chosen = rng.choice(legal, (rows, k)).astype(np.uint8)
        return torch.from_numpy(chosen), table[chosen]

    (a, av), (b, bv) = operand(m, left), operand(n, right)
    sa, sb = (rng.integers(100, 140, (rows, k // 32), dtype=np.uint8) for rows in (m, n))
    sa[0, 0], sb[1, 0] = 0, 254
    factors = [np.repeat(2.0 ** (s.astype(np.float64) - 127), 32, axis=1) for s in (sa, sb)]
    out = torch.empty((m, n))
    kernels.dot_scaled[(1,)](a, torch.from_numpy(sa), b, torch.from_numpy(sb), out, m, n, k, left, right)
    with np.errstate(over="ignore"):
        exact = ((av * factors[0]) @ (bv * factors[1]).T).astype(np.float32)
    assert np.allclose(out.numpy(), exact, rtol=2.0**-23, atol=2.0**-149)
    sa[3, 1] = 255
    kernels.dot_scaled[(1,)](a, torch.from_numpy(sa), b, torch.from_numpy(sb), out, m, n, k, left, right)
    assert out[3].isnan().all() and not out[:3].isnan().any() and not out[4:].isnan().any()


def reduced(op: str, x: torch.Tensor, axis: int, out: torch.Tensor) -> np.ndarray:
    kernels.reduce[(1,)](x, out, op, axis, *x.shape)
    return out.numpy()


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions(axis: int) -> None:
    torch.manual_seed(6)
    x = torch.randn(16, 64)
    small = torch.empty(64 if axis == 0 else 16)
    total = reduced("sum", x, axis, small.clone())
    assert np.allclose(total, x.double().sum(axis).numpy(), rtol=0, atol=64 * 2.0**-24 * 64)
    assert np.array_equal(reduced("custom", x, axis, small.clone()), x.numpy().min(axis))
    whole = (x * 1000).to(torch.int64) << 40
    assert np.array_equal(reduced("sum", whole, axis, small.to(torch.int64)), whole.numpy().sum(axis))
    for op, expected in (("cumsum", whole.numpy().cumsum(axis)), ("reverse", whole.flip(axis).cumsum(axis).flip(axis))):
        assert np.array_equal(reduced(op, whole, axis, torch.empty_like(whole)), np.asarray(expected))
    steps = (x * 3).to(torch.int64)
    chained = steps.numpy() + 1
    for place in range(1, x.shape[axis]):
        here, before = (np.s_[place], np.s_[place - 1]) if axis == 0 else (np.s_[:, place], np.s_[:, place - 1])
        chained[here] = chained[before] * steps.numpy()[here] + steps.numpy()[here] + 1
    assert np.array_equal(reduced("affine", steps, axis, torch.empty_like(steps)), chained)


def test_sums_do_not_depend_on_the_row() -> None:
    torch.manual_seed(8)
    row = torch.randn(256)
    same = reduced("sum", row.expand(16, 256).contiguous(), 1, torch.empty(16))
    assert (same == same[0]).all()
    assert same[0] == reduced("sum", row[:, None].expand(256, 16).contiguous(), 0, torch.empty(16))[3]


def test_maxima_pass_over_nan_and_ties_go_left() -> None:
    nan = float("nan")
    x = torch.tensor([[1.0, nan, 3.0, 3.0], [nan] * 4, [-1.0, -1.0, -2.0, -1.0], [float("-inf")] * 4])
    assert np.array_equal(reduced("max", x, 1, torch.empty(4)), [3.0, nan, -1.0, -np.inf], equal_nan=True)
    numbers = x[2:].repeat(2, 1)
    assert reduced("argmax", numbers, 1, torch.empty(4, dtype=torch.int32)).tolist() == [0, 0, 0, 0]
    assert reduced("argmin", numbers, 1, torch.empty(4, dtype=torch.int32)).tolist() == [2, 0, 2, 0]


def test_atomics_return_what_was_there_before() -> None:
    out, old = torch.zeros(4, dtype=torch.int32), torch.full((16,), -1, dtype=torch.int32)
    kernels.count[(2,)](out, old, 16)
    assert out.tolist() == [4, 4, 4, 4]
    assert old[::2].tolist() == [2, 3] * 4


def test_scalar_arguments_are_float32() -> None:
    out = torch.empty(1)
    kernels.scalar[(1,)](out, 0.1, 0.3)
    assert out.item() == np.float32(0.1) * np.float32(0.3)
    assert struct.pack("f", out.item()) != struct.pack("f", 0.1 * 0.3)


def test_what_has_no_model_is_refused() -> None:
    x, out = torch.ones(8), torch.empty(8)
    for op, words in (("asm", "inline_asm"), ("erf", "erf"), ("if", "block of elements is no condition")):
        with pytest.raises(InterpreterError, match=words):
            kernels.unary[(1,)](x, out, op, 8)
    with pytest.raises(InterpreterError, match="remainder of floats"):
        kernels.binary[(1,)](x, x, out, "rem", 8)
    with pytest.raises(InterpreterError, match="input_precision='ieee'"):
        product(torch.ones(16, 16), torch.ones(16, 16), "tf32")
    with pytest.raises(InterpreterError, match="no fixed order"):
        kernels.add_floats[(1,)](out, 8)
    with pytest.raises(InterpreterError, match="fp8e4nv"):
        eight = torch.zeros(8, dtype=torch.uint8).view(E4M3)
        kernels.binary[(1,)](eight, eight, torch.empty_like(eight), "mul", 8)


def test_another_version_of_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(interpreter._state, "installed", False)
    monkeypatch.setattr(triton, "__version__", "3.10.0")
    with pytest.raises(BackendLoadError) as caught:
        interpreter.install()
    assert "3.10.0" in caught.value.why and interpreter.TRITON in caught.value.why
    assert "triton==3.9.0" in caught.value.fix


def test_names_that_are_gone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    monkeypatch.setitem(interpreter._state, "installed", False)
    monkeypatch.delattr(InterpreterBuilder, "create_fadd")
    with pytest.raises(BackendLoadError, match="InterpreterBuilder.create_fadd"):
        interpreter.install()


def test_installing_twice_changes_nothing() -> None:
    from triton.runtime.interpreter import GridExecutor

    before = GridExecutor.__call__
    interpreter.install()
    assert GridExecutor.__call__ is before
