"""The number formats of the emulation against decodings made here from their definitions, and against others'."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.ascend_scenarios import emulation

# Bits of exponent and mantissa, largest finite number, whether there is an infinity.
FORMATS = {
    "half": (5, 10, 65504.0, True),
    "bfloat16": (8, 7, 3.3895313892515355e38, True),
    "e4m3": (4, 3, 448.0, False),
    "e5m2": (5, 2, 57344.0, True),
    "e2m1": (2, 1, 6.0, False),
    "e1m2": (1, 2, 3.5, False),
}
NAMES = list(FORMATS)
ROUNDINGS = ("nearest-even", "floor", "ceil", "nearest-away", "truncate")


def _values(name: str) -> np.ndarray:
    """The finite numbers of a format that are not negative, ascending, which is the order of their codes."""
    exponent_bits, mantissa_bits, largest, _ = FORMATS[name]
    bias = 2 ** (exponent_bits - 1) - 1
    codes = np.arange(2 ** (exponent_bits + mantissa_bits))
    exponent, mantissa = codes >> mantissa_bits, codes & (2**mantissa_bits - 1)
    normal = np.ldexp(1 + mantissa / 2**mantissa_bits, exponent - bias)
    subnormal = np.ldexp(mantissa / 2**mantissa_bits, 1 - bias)
    values = np.where(exponent == 0, subnormal, normal)
    return values[values <= largest]


@pytest.mark.parametrize("name", NAMES)
def test_every_code_decodes(name: str) -> None:
    """Finite codes of both signs, and what lies above them."""
    decode, index = emulation().lib.decode_number, NAMES.index(name)
    exponent_bits, mantissa_bits, _, infinite = FORMATS[name]
    values, sign = _values(name), 1 << (exponent_bits + mantissa_bits)
    assert [decode(index, code) for code in range(len(values))] == values.tolist()
    assert [decode(index, sign | code) for code in range(len(values))] == (-values).tolist()
    above = [decode(index, code) for code in range(len(values), sign)]
    assert (above[:1] == [math.inf]) == infinite
    assert all(math.isnan(value) for value in above[int(infinite) :])


def _expected(values: np.ndarray, value: float, rounding: str) -> int:
    """The code of a magnitude within range: found by search among all numbers of the format."""
    upper = int(np.searchsorted(values, value))
    if values[upper] == value:
        return upper
    lower = upper - 1
    down, up = value - values[lower], values[upper] - value
    if rounding in ("floor", "truncate"):
        return lower
    if rounding == "ceil":
        return upper
    if down != up:
        return lower if down < up else upper
    return upper if rounding == "nearest-away" or lower % 2 else lower


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_round(name: str, rounding: str) -> None:
    """Every number, every tie between two, and what lies just beside the ties."""
    encode, index, mode = emulation().lib.encode_number, NAMES.index(name), ROUNDINGS.index(rounding)
    values = _values(name)
    step = max(1, len(values) // 2000)
    some = values[::step] if step > 1 else values
    ties = (some[:-1] + values[1::step][: len(some) - 1]) / 2
    for value in np.concatenate((some, ties, np.nextafter(ties, np.inf), np.nextafter(ties, 0.0))).tolist():
        assert encode(index, value, mode, 0) == _expected(values, value, rounding), value
    opposite = {"floor": "ceil", "ceil": "floor"}.get(rounding, rounding)
    sign = 1 << sum(FORMATS[name][:2])
    for value in ties[:500].tolist():
        assert encode(index, -value, mode, 0) == sign | _expected(values, value, opposite), value


@pytest.mark.parametrize("name", NAMES)
def test_what_is_too_large(name: str) -> None:
    """Saturation gives the largest number; without it infinity, where there is none NaN, where that is missing too the
    largest number."""
    encode, decode, index = emulation().lib.encode_number, emulation().lib.decode_number, NAMES.index(name)
    largest, infinite = FORMATS[name][2:]
    for value in (largest * 2, 1e300, math.inf):
        assert decode(index, encode(index, value, 0, 1)) == largest
        loose = decode(index, encode(index, value, 0, 0))
        assert loose == math.inf if infinite else math.isnan(loose) or (name in ("e2m1", "e1m2") and loose == largest)
        assert decode(index, encode(index, -value, 0, 1)) == -largest


def test_against_numpy_and_torch() -> None:
    """Decodings that others wrote agree, for the formats that they have."""
    decode = emulation().lib.decode_number
    codes = np.arange(0x7C00, dtype=np.uint16)
    assert codes.view(np.float16).astype(np.float64).tolist() == [decode(0, int(code)) for code in codes]
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        finite = torch.arange(len(_values(name)), dtype=torch.uint8)
        theirs = finite.view(dtype).to(torch.float64).tolist()
        assert theirs == [decode(NAMES.index(name), code) for code in finite.tolist()]


def test_bfloat16_is_stored_as_torch_stores_it() -> None:
    """Random bit patterns of f32, special ones among them: rounded to the nearest, NaN stays NaN."""
    lib = emulation().lib
    bits = torch.randint(-(2**31), 2**31, (20000,), generator=torch.Generator().manual_seed(5)).to(torch.int32)
    values = torch.cat((bits.view(torch.float32), torch.tensor([0.0, -0.0, math.inf, -math.inf, 3.4e38, 1e-45])))
    for value, expected in zip(values.tolist(), values.to(torch.bfloat16).tolist(), strict=True):
        stored = lib.load_bfloat16(lib.store_bfloat16(value))
        assert math.isnan(stored) if math.isnan(expected) else stored == expected
