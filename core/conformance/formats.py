"""The number formats in numpy float64, from the meaning of their bits; nothing here uses Tandem's codecs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _e4m3(code: int) -> float:
    exponent, mantissa = (code >> 3) & 15, code & 7
    if code & 0x7F == 0x7F:
        return float("nan")
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if code & 0x80 else size


E4M3 = np.array([_e4m3(code) for code in range(256)])
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
UE8M0 = np.array([2.0 ** (byte - 127) for byte in range(255)] + [float("nan")])
GROUP = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 16}


def decode(codes: Array, scales: Array, fmt: str) -> Array:
    """Codes and scales uint8 [..., bytes] to values [..., N]."""
    if fmt == "mxfp8":
        values = E4M3[codes]
    else:
        values = E2M1[np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], 2 * codes.shape[-1])]
    scale = E4M3[scales] if fmt == "nvfp4" else UE8M0[scales]
    scaled: Array = values * np.repeat(scale, GROUP[fmt], axis=-1)
    return scaled


def decode_blocks(codes: Array, scales: Array) -> Array:
    """e4m3 codes [..., N, K] with one ue8m0 scale per block of 32 x 32."""
    rows, depth = codes.shape[-2:]
    spread = np.repeat(np.repeat(UE8M0[scales], 32, axis=-2)[..., :rows, :], 32, axis=-1)
    scaled: Array = E4M3[codes] * spread[..., :depth]
    return scaled


def nearest(size: Array, grid: Array) -> Array:
    """Index of the nearest number of an ascending grid; ties go to the even index, beyond the end saturates."""
    above = np.clip(np.searchsorted(grid, size), 1, len(grid) - 1)
    low, high = size - grid[above - 1], grid[above] - size
    return np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)


def least_power(size: Array, largest: float) -> Array:
    """Smallest k with size <= largest * 2^k, within what a ue8m0 byte from 1 to 254 holds."""
    near = np.where(size > 0, np.frexp(size / largest)[1] - 2, -126)  # never above the answer
    k = np.clip(near, -126, 127)
    while bool((low := (size > largest * 2.0**k) & (k < 127)).any()):
        k = np.where(low, k + 1, k)
    return k


def encode(x: Array, fmt: str) -> tuple[Array, Array]:
    """Values [..., N] (float64 holding f32 numbers) to (codes, scales) uint8; groups with a NaN get scale NaN."""
    grouped = x.reshape(*x.shape[:-1], x.shape[-1] // GROUP[fmt], GROUP[fmt])
    amax = np.abs(grouped).max(-1)
    bad = np.isnan(amax)
    amax = np.where(bad, 1.0, amax)
    if fmt == "nvfp4":
        ratio = np.float32(np.maximum(amax, 6 * 2.0**-9)) / np.float32(6)
        scales = nearest(np.minimum(ratio, 448.0).astype(np.float64), E4M3[:127])
        divisor = E4M3[scales]
        scales = np.where(bad, 0x7F, scales)
    else:
        floor, largest = (float(np.float32(1e-4)), 448.0) if fmt == "mxfp8" else (6 * 2.0**-126, 6.0)
        k = least_power(np.maximum(amax, floor), largest)
        divisor, scales = 2.0**k, np.where(bad, 255, k + 127)
    with np.errstate(over="ignore"):
        scaled = (np.nan_to_num(grouped) / divisor[..., None]).astype(np.float32).astype(np.float64)
    if fmt == "mxfp8":
        codes = nearest(np.abs(scaled), E4M3[:127]) | np.where(np.signbit(scaled), 0x80, 0)
        codes = np.where(bad[..., None], 0x7F, codes).reshape(x.shape)
    else:
        size = nearest(np.abs(scaled), E2M1[:8])
        wide: Array = (size | np.where((scaled < 0) & (size > 0), 8, 0)).reshape(x.shape)
        codes = wide[..., 0::2] | (wide[..., 1::2] << 4)
    return codes.astype(np.uint8), scales.astype(np.uint8)


def round_bf16(x: Array) -> Array:
    """Float64 to the nearest bf16, ties to even, as float64; rounded once, beyond the largest number to infinity."""
    x = np.asarray(x, dtype=np.float64)
    _, exponent = np.frexp(x)
    step = np.ldexp(1.0, np.maximum(exponent - 8, -133))
    with np.errstate(invalid="ignore"):
        rounded = np.where(np.isfinite(x), np.round(x / step) * step, x)
    return np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, rounded), rounded)


def ulp(x: Array, dtype: str) -> Array:
    """Distance between neighbours of x in bf16 or f32; of zero, the smallest number."""
    bits, least = {"bf16": (8, -133), "f32": (24, -149)}[dtype]
    x = np.asarray(x, dtype=np.float64)
    _, exponent = np.frexp(x)
    step: Array = np.ldexp(1.0, np.where(x == 0, least, np.maximum(exponent - bits, least)))
    return step
