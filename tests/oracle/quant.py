"""Number formats: E4M3, E2M1, UE8M0; fake quantisation of activations and keys; dequantisation of weights."""

from __future__ import annotations

import torch
from torch import Tensor

from .arith import Arith, power_of_two, round_to_grid

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def round_e4m3(x: Tensor) -> Tensor:
    return round_to_grid(x, 3, -6, 448.0)


def round_e2m1(x: Tensor) -> Tensor:
    return round_to_grid(x, 1, 0, 6.0)


def ceil_power_of_two(x: Tensor) -> Tensor:
    """The smallest power of two that is >= x > 0, with an exponent a UE8M0 byte can hold (-126..127)."""
    mantissa, exponent = torch.frexp(x)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return power_of_two(exponent.clamp(-126, 127)).to(x.dtype)


def _groups(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    if x.shape[-1] % size:
        raise ValueError(f"width {x.shape[-1]} is not a multiple of the group size {size}")
    grouped = x.unflatten(-1, (x.shape[-1] // size, size))
    return grouped, grouped.abs().amax(dim=-1, keepdim=True)


def fp8_values(x: Tensor) -> Tensor:
    """Values after MXFP8: E4M3 in groups of 32 along the last axis, scale rounded up to a power of two."""
    grouped, peak = _groups(x, 32)
    scale = ceil_power_of_two(peak.clamp(min=1e-4) / 448.0)
    return (round_e4m3(grouped / scale) * scale).flatten(-2)


def main_kv_values(x: Tensor) -> Tensor:
    """Values after the FP4 of the compressed keys: E2M1 in groups of 16 with an E4M3 scale."""
    grouped, peak = _groups(x, 16)
    scale = round_e4m3((peak.clamp(min=6.0 * 2.0**-9) / 6.0).clamp(max=448.0))
    return (round_e2m1(grouped / scale) * scale).flatten(-2)


def index_values(x: Tensor) -> Tensor:
    """Values after the FP4 of the indexer: E2M1 in groups of 32, scale rounded up to a power of two."""
    grouped, peak = _groups(x, 32)
    scale = ceil_power_of_two(peak.clamp(min=6.0 * 2.0**-126) / 6.0)
    return (round_e2m1(grouped / scale) * scale).flatten(-2)


def decode_e8m0(scale: Tensor) -> Tensor:
    """E8M0 bytes (float8_e8m0fnu or uint8) to float64 powers of two; the byte 255 becomes NaN."""
    byte = scale.view(torch.uint8).to(torch.int64)
    return torch.where(byte == 255, torch.nan, power_of_two(byte - 127))


def dequantize_blocks(weight: Tensor, scale: Tensor) -> Tensor:
    """E4M3 [N, K] with one scale per 32 x 32 block [ceil(N/32), ceil(K/32)] to float64."""
    rows, columns = weight.shape
    spread = decode_e8m0(scale).repeat_interleave(32, 0)[:rows].repeat_interleave(32, 1)[:, :columns]
    return weight.to(torch.float64) * spread


def dequantize_rows(weight: Tensor, scale: Tensor) -> Tensor:
    """E4M3 [R, K] with one scale per 32 channels of a row [R, K/32] to float64."""
    return weight.to(torch.float64) * decode_e8m0(scale).repeat_interleave(32, -1)


def dequantize_packed(weight: Tensor, scale: Tensor) -> Tensor:
    """Packed E2M1 int8 [N, K/2] (even channel in the low nibble), scales [N, K/32], to float64 [N, K]."""
    byte = weight.view(torch.uint8).to(torch.int64)
    code = torch.stack((byte & 15, byte >> 4), dim=-1).flatten(-2)
    table = torch.tensor(E2M1_VALUES + tuple(-v for v in E2M1_VALUES), dtype=torch.float64)
    return table[code] * decode_e8m0(scale).repeat_interleave(32, -1)


class Weights:
    """Checkpoint tensors by official name, dequantised to the accumulation type on first use."""

    def __init__(self, tensors: dict[str, Tensor], arith: Arith) -> None:
        self._tensors = tensors
        self._arith = arith
        self._ready: dict[str, Tensor] = {}

    def raw(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise ValueError(f"the checkpoint has no tensor {name!r}")
        return self._tensors[name]

    def get(self, name: str) -> Tensor:
        """The tensor's values. Every format is exact in float32 as well as in float64."""
        if name not in self._ready:
            raw = self.raw(name)
            if raw.dtype == torch.float8_e4m3fn:
                raw = dequantize_blocks(raw, self.raw(name.removesuffix("weight") + "scale"))
            elif raw.dtype == torch.int8:
                raw = dequantize_packed(raw, self.raw(name.removesuffix("weight") + "scale"))
            self._ready[name] = self._arith.wide(raw)
        return self._ready[name]

    def qlin(self, x: Tensor, name: str) -> Tensor:
        """fp8-quantise x (bf16 or unrounded), multiply by the named weight, round to bf16."""
        return self._arith.bf16(self._arith.linear(fp8_values(self._arith.wide(x)), self.get(name)))
