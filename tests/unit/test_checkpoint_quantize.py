"""Quantisers against codes worked out by hand and against exhaustive rounding."""

from __future__ import annotations

import pytest
import torch

from tandem.checkpoint.quantize import quantize_fp4_rows, quantize_fp8_blocks, quantize_fp8_rows

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def codes_of(packed: torch.Tensor) -> torch.Tensor:
    """Fp4 codes in element order, from bytes with the even element in the low nibble."""
    raw = packed.view(torch.uint8)
    return torch.stack((raw & 15, raw >> 4), dim=-1).flatten(-2)


def bytes_of(scale: torch.Tensor) -> list[list[int]]:
    assert scale.dtype is torch.float8_e8m0fnu
    return scale.view(torch.uint8).tolist()


def test_fp4_ties_go_to_the_even_code() -> None:
    row = torch.zeros(1, 32)
    values = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, -6.0]
    row[0, :16] = torch.tensor(values)
    packed, scale = quantize_fp4_rows(row)
    assert bytes_of(scale) == [[127]]
    #             0  1  1  2  2  4  4  6
    expected = [0, 2, 2, 4, 4, 6, 6, 7, 0, 10, 10, 12, 12, 14, 14, 15]
    assert codes_of(packed)[0, :16].tolist() == expected


def test_fp4_neighbours_of_ties_go_to_the_nearer_code() -> None:
    ties = (E2M1[1:] + E2M1[:-1]) / 2
    row = torch.zeros(1, 32)
    row[0, 0:7] = torch.nextafter(ties, torch.zeros(()))
    row[0, 7:14] = torch.nextafter(ties, torch.full((), 9.0))
    row[0, 14] = 6.0
    codes = codes_of(quantize_fp4_rows(row)[0])[0]
    assert codes[0:7].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert codes[7:14].tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_fp4_low_nibble_is_the_even_element() -> None:
    row = torch.zeros(1, 32)
    row[0, 0], row[0, 1] = 6.0, -1.0  # codes 7 and 10
    packed, _ = quantize_fp4_rows(row)
    assert packed.dtype is torch.int8 and packed.shape == (1, 16)
    assert packed.view(torch.uint8)[0, 0] == 0xA7


@pytest.mark.parametrize(
    ("amax", "byte"),
    [
        (6.0, 127),
        (6.0001, 128),  # anything more needs the next power of two
        (3.0, 126),
        (12.0, 128),
        (0.0, 112),  # the least amax is 1e-4, and 1e-4 / 6 lies between 2**-16 and 2**-15
    ],
)
def test_fp4_scale_is_rounded_up(amax: float, byte: int) -> None:
    row = torch.zeros(1, 32)
    row[0, 5] = -amax
    assert bytes_of(quantize_fp4_rows(row)[1]) == [[byte]]


def test_fp4_scales_are_per_row_and_per_32() -> None:
    rows = torch.zeros(2, 64)
    rows[0, 0], rows[0, 32], rows[1, 63] = 6.0, 24.0, 1.5
    _, scale = quantize_fp4_rows(rows)
    assert bytes_of(scale)[0] == [127, 129]
    assert bytes_of(scale)[1][1] == 125


def test_fp8_rows_scale_and_values() -> None:
    rows = torch.zeros(1, 64)
    rows[0, 0], rows[0, 1], rows[0, 40] = 448.0, 17.0, 0.875
    codes, scale = quantize_fp8_rows(rows)
    # 0.875 = 448 * 2**-9
    assert bytes_of(scale) == [[127, 118]]
    assert codes[0, 0].float() == 448
    assert codes[0, 1].float() == 16  # e4m3 has 16 and 18 there; the tie goes to the even mantissa
    assert codes[0, 40].float() == 448


def test_fp8_blocks_share_one_scale_over_32_by_32() -> None:
    weight = torch.zeros(40, 70)
    weight[31, 31] = 448.0
    weight[32, 0] = 449.0
    weight[39, 69] = 896.0
    codes, scale = quantize_fp8_blocks(weight)
    assert codes.shape == (40, 70) and codes.dtype is torch.float8_e4m3fn
    assert scale.shape == (2, 3)
    zero = bytes_of(scale)[0][1]  # 1e-4 / 448 = 2.2e-7, just below 2**-22
    assert zero == 127 - 22
    assert bytes_of(scale) == [[127, zero, zero], [128, zero, 128]]
    assert codes[32, 0].float() == 224  # 449 / 2 rounded to a multiple of 16


@pytest.mark.parametrize("quantize", [quantize_fp8_rows, quantize_fp8_blocks])
def test_fp8_error_is_at_most_half_a_step(quantize: object) -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)) * 3
    codes, scale = quantize(weight)  # type: ignore[operator]
    rows = 64 // scale.shape[0]
    factor = torch.exp2(scale.view(torch.uint8).float() - 127)
    factor = factor.repeat_interleave(rows, 0).repeat_interleave(32, 1)
    value = codes.float() * factor
    # three mantissa bits: half a step is 1/16 of the value's binade, or of the smallest normal, 2**-6
    step = torch.exp2(torch.floor(torch.log2((weight / factor).abs().clamp_min(2.0**-6)))) / 8
    assert ((value - weight).abs() <= step / 2 * factor).all()
    assert (codes.float().abs().amax() > 224).item()  # the range is used
