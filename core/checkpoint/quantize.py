"""Quantisers from float32 to the stored formats of the checkpoint.

All scales are powers of two, rounded up so that no element overflows, and stored as biased exponents
(``float8_e8m0fnu``, value ``2**(byte - 127)``).  Elements round to nearest, ties to the even code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.checkpoint.inventory import GROUP

_E4M3_MAX = 448.0
_E2M1_MAX = 6.0
_SMALLEST_AMAX = 1e-4  # an all-zero group still needs a finite, invertible scale


def _e2m1_boundaries() -> Tensor:
    """Upper ends of the intervals that round to codes 0..6; values above round to code 7.

    A midpoint belongs to the even code.  Where that is the upper one, the interval ends just below it.
    """
    values = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    ends = torch.tensor([(a + b) / 2 for a, b in zip(values, values[1:], strict=False)])
    below = torch.nextafter(ends, torch.zeros(()))
    lower_is_odd = torch.arange(len(ends)) % 2 == 1
    return torch.where(lower_is_odd, below, ends)


_E2M1_BOUNDARIES = _e2m1_boundaries()


def quantize_fp8_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Dense matrix to fp8 with one scale for each block of 32x32.

    Args:
        weight: float32 [N, K]; blocks at the edges may be smaller.

    Returns:
        codes float8_e4m3fn [N, K] and scales float8_e8m0fnu [ceil(N/32), ceil(K/32)].
    """
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % GROUP, 0, -rows % GROUP))
    blocks = padded.view(padded.shape[0] // GROUP, GROUP, padded.shape[1] // GROUP, GROUP)
    exponent = _scale_exponent(blocks.abs().amax(dim=(1, 3)), _E4M3_MAX)
    codes = _to_e4m3(blocks * _inverse(exponent)[:, None, :, None]).view(padded.shape)
    return codes[:rows, :columns].contiguous(), _to_e8m0(exponent)


def quantize_fp8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to fp8 with one scale for each 32 elements, as Engram tables are stored.

    Args:
        weight: float32 [N, K], K a multiple of 32.

    Returns:
        codes float8_e4m3fn [N, K] and scales float8_e8m0fnu [N, K/32].
    """
    groups = weight.view(weight.shape[0], -1, GROUP)
    exponent = _scale_exponent(groups.abs().amax(dim=2), _E4M3_MAX)
    return _to_e4m3(groups * _inverse(exponent)[:, :, None]).flatten(1), _to_e8m0(exponent)


def quantize_fp4_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to packed fp4 with one scale for each 32 elements, as experts are stored.

    Args:
        weight: float32 [N, K], K a multiple of 32.

    Returns:
        bytes int8 [N, K/2], element 2i in the low nibble of byte i, and scales float8_e8m0fnu [N, K/32].
    """
    groups = weight.view(weight.shape[0], -1, GROUP)
    exponent = _scale_exponent(groups.abs().amax(dim=2), _E2M1_MAX)
    scaled = (groups * _inverse(exponent)[:, :, None]).flatten(1)
    magnitude = torch.bucketize(scaled.abs(), _E2M1_BOUNDARIES)
    sign = ((scaled < 0) & (magnitude > 0)).long() * 8  # zero has one code
    code = (magnitude + sign).to(torch.uint8)
    return (code[:, 0::2] | code[:, 1::2] << 4).view(torch.int8), _to_e8m0(exponent)


def _scale_exponent(amax: Tensor, largest: float) -> Tensor:
    """Smallest k with ``amax <= largest * 2**k``, int32."""
    mantissa, exponent = torch.frexp(amax.clamp_min(_SMALLEST_AMAX) / largest)
    return torch.where(mantissa == 0.5, exponent - 1, exponent)


def _inverse(exponent: Tensor) -> Tensor:
    """``2**-exponent`` as float32, made from its bits because a library power may be off by a rounding."""
    return ((127 - exponent) << 23).to(torch.int32).view(torch.float32)


def _to_e4m3(scaled: Tensor) -> Tensor:
    return scaled.clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)


def _to_e8m0(exponent: Tensor) -> Tensor:
    return (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
