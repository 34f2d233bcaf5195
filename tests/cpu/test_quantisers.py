"""The native quantisers against derivations in float64 written here from the format definitions.

Nothing below uses Tandem's own references: grids are built from the meaning of the bits, rounding is
a nearest-neighbour search on them, and scales come from exact comparisons.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cpu.residual_cases import ROWS, op, spread
from torch import Tensor

from tandem.contract.types import QFormat

E4M3_GRID = np.array(
    [
        (c & 7) * 2.0**-9 if c >> 3 == 0 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7)
        for c in range(127)  # 127 is NaN
    ]
)
E2M1_GRID = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
MXFP8, MXFP4, NVFP4 = QFormat.MXFP8, QFormat.MXFP4, QFormat.NVFP4


def quantise(x: Tensor, fmt: QFormat) -> tuple[Tensor, Tensor]:
    """Codes and scales."""
    q = op("quantize")(x, fmt)
    return q.data, q.scale


def nearest_code(magnitude: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Index of the nearest grid value; a tie goes to the even index, beyond the end saturates."""
    above = np.clip(np.searchsorted(grid, magnitude), 1, len(grid) - 1)
    low, high = magnitude - grid[above - 1], grid[above] - magnitude
    take_low = (low < high) | ((low == high) & (above % 2 == 1))
    return np.where(take_low, above - 1, above)


def least_power(amax: np.ndarray, full: float) -> np.ndarray:
    """Exponent of the least power of two s with amax <= full * s, by exact comparisons."""
    k = np.floor(np.log2(amax / full)).astype(int) - 1
    for _ in range(3):
        k = np.where(amax > full * 2.0**k, k + 1, k)
    return k


def groups(x: Tensor, size: int) -> np.ndarray:
    return x.to(torch.float64).numpy().reshape(-1, size)


def expect_fp8(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scale bytes of x [T, N]."""
    g = groups(x, 32)
    k = least_power(np.maximum(np.abs(g).max(1), float(np.float32(1e-4))), 448.0)
    code = nearest_code(np.abs(g) / 2.0 ** k[:, None], E4M3_GRID)
    code = code + np.where(np.signbit(g), 128, 0)
    rows = x.shape[0]
    return code.reshape(rows, -1), (k + 127).reshape(rows, -1)


def expect_fp4(x: Tensor, nvfp4: bool) -> tuple[np.ndarray, np.ndarray]:
    """Packed codes and scale bytes of x [T, N]."""
    g = groups(x, 16 if nvfp4 else 32)
    amax = np.abs(g).max(1)
    if nvfp4:
        scale = nearest_code(np.minimum(np.maximum(amax, 6 * 2.0**-9) / 6.0, 448.0), E4M3_GRID)
        divisor = E4M3_GRID[scale]
    else:
        k = least_power(np.maximum(amax, 6 * 2.0**-126), 6.0)
        scale, divisor = k + 127, 2.0**k
    code = nearest_code(np.abs(g) / divisor[:, None], E2M1_GRID)
    code = code + np.where((g < 0) & (code > 0), 8, 0)
    packed = code[:, 0::2] + 16 * code[:, 1::2]
    return packed.reshape(x.shape[0], -1), scale.reshape(x.shape[0], -1)


def every_magnitude(group: int) -> Tensor:
    """Each positive finite bf16 is the largest magnitude of one group; bf16 [32639, group]."""
    top = np.arange(1, 0x7F80, dtype=np.uint32)
    rng = np.random.default_rng(7)
    values = (top << 16).view(np.float32)[:, None] * rng.uniform(-1, 1, (len(top), group)).astype(np.float32)
    values[:, 3] = (top << 16).view(np.float32)
    return torch.from_numpy(values).to(torch.bfloat16)


def check_quantisers(x: Tensor) -> None:
    wanted = {MXFP8: expect_fp8(x), MXFP4: expect_fp4(x, False), NVFP4: expect_fp4(x, True)}
    for fmt, expected in wanted.items():
        for got, want in zip(quantise(x, fmt), expected, strict=True):
            np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("n", (32, 96, 512))
def test_quantisers_match_the_definition(rows: int, n: int) -> None:
    check_quantisers(spread(rows, n, seed=rows * 1000 + n))


def test_every_bf16_as_group_maximum() -> None:
    check_quantisers(every_magnitude(32))


@pytest.mark.parametrize("exponent", (-20, 0, 9))
def test_the_scale_steps_exactly_at_full(exponent: int) -> None:
    """448 * 2^k still gets the scale 2^k; the next bf16, 450 * 2^k, gets twice that."""
    x = torch.zeros((2, 32), dtype=torch.bfloat16)
    x[0, 5], x[1, 5] = 448 * 2.0**exponent, 450 * 2.0**exponent
    check_quantisers(x)
    assert quantise(x, MXFP8)[1].flatten().tolist() == [127 + exponent, 128 + exponent]


def test_all_e4m3_codes_are_reached() -> None:
    """Groups that hold 448 have scale 1, so every finite value must come back as its own code."""
    finite = [c for c in range(256) if c & 0x7F != 0x7F]
    value = np.where(np.array(finite) > 127, -1.0, 1.0) * E4M3_GRID[np.array(finite) & 0x7F]
    x = torch.full((len(finite), 32), 448.0, dtype=torch.bfloat16)
    x[:, 0] = torch.from_numpy(value).to(torch.bfloat16)
    assert quantise(x, MXFP8)[0][:, 0].tolist() == finite
    nan = quantise(torch.full((1, 32), float("nan"), dtype=torch.bfloat16), MXFP8)
    assert set(nan[0].flatten().tolist()) == {0x7F}


def test_e4m3_ties_go_to_the_even_code() -> None:
    middle = (E4M3_GRID[:-1] + E4M3_GRID[1:]) / 2
    x = torch.full((126, 32), 448.0)
    x[:, 0] = torch.from_numpy(middle)
    even = [c if c % 2 == 0 else c + 1 for c in range(126)]
    assert quantise(x.to(torch.bfloat16), MXFP8)[0][:, 0].tolist() == even


@pytest.mark.parametrize("fmt", (MXFP4, NVFP4))
def test_e2m1_ties_and_negative_zero(fmt: QFormat) -> None:
    """With a largest magnitude of 6 the scale is 1 in both formats."""
    by_hand = {0.25: 0, 0.75: 2, 1.25: 2, 1.75: 4, 2.5: 4, 3.5: 6, 5.0: 6, 6.0: 7, 0.5: 1, 1.5: 3, 3.0: 5}
    x = torch.zeros((1, 32), dtype=torch.bfloat16)
    values = [*by_hand, -0.0, -0.25, -0.75, 6.0, 6.0]
    wanted = [*by_hand.values(), 0, 0, 10, 7, 7]
    x[0, :16] = torch.tensor(values)
    x[0, 16:] = -x[0, :16]
    mirrored = [0 if w in (0, 8) else w ^ 8 for w in wanted]
    packed, scales = quantise(x, fmt)
    nibbles = [n for byte in packed[0].tolist() for n in (byte & 15, byte >> 4)]
    assert nibbles == wanted + mirrored
    assert set(scales.flatten().tolist()) == {127 if fmt is MXFP4 else 0x38}


def test_every_nvfp4_scale_is_reached() -> None:
    x = torch.zeros((126, 16), dtype=torch.bfloat16)
    x[:, 9] = torch.from_numpy(6 * E4M3_GRID[1:127]).to(torch.bfloat16)
    packed, scales = quantise(x, NVFP4)
    assert scales.flatten().tolist() == list(range(1, 127))
    assert set(packed[:, 4].tolist()) == {7 << 4}


def test_values_below_the_floors() -> None:
    """Zeros and the smallest numbers get the floor's scale; nothing divides by zero."""
    x = torch.tensor([[0.0] * 32, [-0.0] * 32, [2.0**-133] * 32], dtype=torch.bfloat16)
    check_quantisers(x)
    # 448 * 2^-22 >= 1e-4 > 448 * 2^-23
    assert set(quantise(x, MXFP8)[1].flatten().tolist()) == {127 - 22}
    assert set(quantise(x, MXFP4)[1].flatten().tolist()) == {1}
    assert set(quantise(x, NVFP4)[1].flatten().tolist()) == {1}


@pytest.mark.parametrize(
    ("fmt", "size", "group", "code", "scale"),
    ((MXFP8, 32, 1, 0x7F, 255), (MXFP4, 16, 1, 0, 255), (NVFP4, 8, 2, 0, 0x7F)),
)
def test_nan_stays_in_its_group(fmt: QFormat, size: int, group: int, code: int, scale: int) -> None:
    """`size`: bytes of a group; `group`: where column 40 is."""
    x = spread(3, 96, seed=5).clamp(-1e3, 1e3)
    clean = quantise(x, fmt)
    x[1, 40] = float("nan")
    bad = quantise(x, fmt)
    codes, scales = bad[0].unflatten(1, (-1, size)), bad[1].clone()
    assert codes[1, group].unique().tolist() == [code] and scales[1, group] == scale
    codes[1, group], scales[1, group] = clean[0].unflatten(1, (-1, size))[1, group], clean[1][1, group]
    assert torch.equal(codes.flatten(1), clean[0]) and torch.equal(scales, clean[1])


def test_infinity_saturates() -> None:
    x = spread(3, 96, seed=5).clamp(-1e3, 1e3)
    x[1, 40] = -float("inf")
    codes, scales = quantise(x, MXFP8)
    assert codes[1, 40] == 0xFE and scales[1, 1] == 254
    codes, scales = quantise(x, MXFP4)
    assert codes[1, 20] & 15 == 15 and scales[1, 1] == 254
    codes, scales = quantise(x, NVFP4)
    assert codes[1, 20] & 15 == 15 and scales[1, 2] == 0x7E
