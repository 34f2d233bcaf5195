"""Ops that the CPU backend does its own way.

Reasons: activations stay as f32 values after quantisation instead of codes (the product wants values), weights
need no decoding, experts without rows are skipped and index keys are decoded once per request, which is possible
because on a CPU the host may look at device arrays.  Everything else is the composite.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tandem.backends.cpu import weights as packed
from tandem.backends.cpu.native import NativeLibrary
from tandem.contract.opspec import OpFunction
from tandem.contract.types import (
    CANONICAL,
    HcMix,
    HcWeights,
    KVCache,
    PackedWeight,
    QFormat,
    QTensor,
)
from tandem.errors import LayoutError
from tandem.ops.aux_map_entries import map_entries
from tandem.ops.embed import apply_override
from tandem.ops.index_scores import combine_heads
from tandem.ops.index_scores import index_scores as reference_scores
from tandem.ops.kv_store import require_canonical
from tandem.ops.numerics import (
    decode_rows,
    e2m1_decode,
    e4m3_decode,
    e4m3_encode,
    encode_rows,
    fixed_matmul,
    ue8m0_value,
    unpack_nibbles,
)
from tandem.ops.swiglu_quant import swiglu

Tensor = torch.Tensor
VALUES = "cpu.values.rows"  # data: f32 values [T, N]; scale: ue8m0 bytes [T, N/32]

_BYTES = torch.arange(256, dtype=torch.int32).to(torch.uint8)
E4M3 = e4m3_decode(_BYTES)  # f32 [256]
UE8M0 = ue8m0_value(_BYTES)  # f32 [256]
E2M1_PAIRS = e2m1_decode(unpack_nibbles(_BYTES.unsqueeze(-1)))  # f32 [256, 2]


def values_of(x: Tensor | QTensor, op: str) -> Tensor:
    """f32 values of an activation, [T, K] contiguous."""
    if not isinstance(x, QTensor):
        return x.to(torch.float32)
    if x.layout == VALUES:
        return x.data
    if x.layout == CANONICAL:
        return decode_rows(x.data, x.scale, x.fmt)
    raise _unread(x, op)


def _unread(x: QTensor, op: str) -> LayoutError:
    return LayoutError(
        f"'{op}' got a quantised tensor it does not read",
        where=f"op '{op}', shape {x.shape}, backend 'cpu'",
        why=f"its layout is '{x.layout}'",
        fix="convert with to_canonical() of the backend that made it",
    )


def to_canonical(q: QTensor) -> QTensor:
    """Values divided by their power-of-two scales are the codes again."""
    if q.layout == CANONICAL:
        return q
    values_of(q, "to_canonical")
    codes = e4m3_encode(q.data / ue8m0_value(q.scale).repeat_interleave(32, -1))
    nan = torch.isnan(q.data)
    return QTensor(torch.where(nan, torch.full_like(codes, 0x7F), codes), q.scale, q.fmt, q.shape)


def from_canonical(q: QTensor) -> QTensor:
    """mxfp8 becomes values; fp4 formats stay canonical."""
    if q.layout not in (CANONICAL, VALUES):
        raise _unread(q, "from_canonical")
    if q.layout != CANONICAL or q.fmt is not QFormat.MXFP8:
        return q
    return QTensor(decode_rows(q.data, q.scale, q.fmt), q.scale, q.fmt, q.shape, VALUES)


def matmul(values: Tensor, matrix: Tensor, tile: int) -> Tensor:
    """Row-invariant product; one row at a time where the library is not position-invariant."""
    if tile != 1:
        return fixed_matmul(values, matrix)
    transposed = matrix.t()
    return torch.cat([torch.mm(values[t : t + 1], transposed) for t in range(values.shape[0])])


def embed(
    ids: Tensor, table: PackedWeight, override: Tensor | None = None, override_index: Tensor | None = None
) -> Tensor:
    matrix = packed.matrix("embed", table)
    return apply_override(matrix.values.index_select(0, ids), override, override_index)


def linear(x: Tensor | QTensor, weight: PackedWeight, out_dtype: torch.dtype) -> Tensor:
    matrix = packed.matrix("linear", weight)
    y = matmul(values_of(x, "linear"), matrix.values.to(torch.float32), matrix.tile)
    return y if out_dtype is torch.float32 else y.to(out_dtype)


def group_linear(x: QTensor, weight: PackedWeight) -> Tensor:
    matrix = packed.matrix("group_linear", weight)
    values, wide = values_of(x, "group_linear"), matrix.values.to(torch.float32)
    groups, _, depth = wide.shape
    parts = [matmul(values[:, g * depth : (g + 1) * depth], wide[g], matrix.tile) for g in range(groups)]
    return torch.cat(parts, dim=-1).to(torch.bfloat16)


def grouped_linear(x: QTensor, weight: PackedWeight, ends: Tensor) -> Tensor:
    matrix = packed.matrix("grouped_linear", weight)
    values = values_of(x, "grouped_linear")
    result = torch.zeros((values.shape[0], weight.shape[1]), dtype=torch.bfloat16)
    start = 0
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            wide = matrix.values[expert].to(torch.float32)
            result[start:end] = matmul(values[start:end], wide, matrix.tile)
            start = end
    return result


def kv_load(cache: KVCache, slots: Tensor) -> Tensor:
    """As the reference, with tables of 256 entries in place of bit arithmetic."""
    require_canonical("kv_load", cache)
    layout = cache.layout
    flat = slots.reshape(-1)
    entries = cache.data.index_select(0, flat.clamp_min(0)).to(torch.int32)
    codes = entries[:, : layout.data_bytes].reshape(-1)
    scales = entries[:, layout.data_bytes :].reshape(-1)
    values = (E4M3 if layout.fmt is QFormat.MXFP8 else E2M1_PAIRS).index_select(0, codes)
    scale = (E4M3 if layout.fmt is QFormat.NVFP4 else UE8M0).index_select(0, scales)
    product = (values.view(-1, layout.fmt.group) * scale.unsqueeze(-1)).view(-1, layout.dim)
    # A product with zero would let the NaN of unwritten memory through.
    product = product.masked_fill((flat < 0).unsqueeze(-1), 0.0)
    return product.to(torch.bfloat16).view(*slots.shape, layout.dim)


class IndexOps:
    """Index scores with keys decoded once per request where several rows of it are in the step.

    Dots of fp4 values are exact in f64, so any grouping of the products gives the same bits.
    """

    def __init__(self) -> None:
        self._parts = SimpleNamespace(kv_load=kv_load, to_canonical=to_canonical, map_entries=map_entries)

    def index_scores(
        self, q: QTensor, w: Tensor, cache: KVCache, table: Tensor, row_slot: Tensor, lens: Tensor, width: int
    ) -> Tensor:
        require_canonical("index_scores", cache)
        owners = row_slot.tolist()
        if not owners:
            return w.new_empty((0, width))
        if all(owners[t] != owners[t - 1] for t in range(1, len(owners))):
            reach = max(1, int(lens.max()))  # columns beyond every row's visible entries need no keys
            scores = reference_scores(self._parts, q, w, cache, table, row_slot, lens, reach)
            return torch.nn.functional.pad(scores, (0, width - reach), value=float("-inf"))
        result = torch.full((len(owners), width), float("-inf"), dtype=torch.bfloat16)
        query = decode_rows(q.data, q.scale, q.fmt).to(torch.float64).view(len(owners), w.shape[1], -1)
        start = 0
        while start < len(owners):
            stop = start + 1
            while stop < len(owners) and owners[stop] == owners[start]:
                stop += 1
            rows, reach = slice(start, stop), int(lens[start:stop].max())
            if owners[start] >= 0 and reach:
                entries = torch.arange(reach, dtype=torch.int32).unsqueeze(0)
                slots = map_entries(entries, row_slot[start : start + 1], table, cache.layout.block_entries)
                keys = kv_load(cache, slots[0]).to(torch.float64)
                dots = torch.matmul(query[rows].flatten(0, 1), keys.t()).view(stop - start, -1, reach)
                scores = combine_heads(dots.transpose(0, 1), w[rows].t().unsqueeze(-1))
                result[rows, :reach] = scores.masked_fill(entries >= lens[rows].unsqueeze(-1), float("-inf"))
            start = stop
        return result


class QuantOps:
    """Quantising ops, native where the library is there."""

    def __init__(self, native: NativeLibrary | None) -> None:
        self._native = native

    def quantize(self, x: Tensor, fmt: QFormat) -> QTensor:
        shape = tuple(x.shape)
        if fmt is QFormat.MXFP8:
            return self._values(x, shape)
        codes, scales = self.encode(x, fmt)
        return QTensor(codes, scales, fmt, shape)

    def _values(self, x: Tensor, shape: tuple[int, ...]) -> QTensor:
        if self._native is not None:
            data, scale = self._native.fake_quant_fp8_g32(x.contiguous())
        else:
            codes, scale = encode_rows(x, QFormat.MXFP8)
            data = decode_rows(codes, scale, QFormat.MXFP8)
        return QTensor(data, scale, QFormat.MXFP8, shape, VALUES)

    def encode(self, x: Tensor, fmt: QFormat) -> tuple[Tensor, Tensor]:
        """Canonical codes and scales of bf16 rows."""
        if self._native is None:
            return encode_rows(x, fmt)
        x = x.contiguous()
        if fmt is QFormat.MXFP8:
            return self._native.quantize_fp8_g32(x)
        if fmt is QFormat.NVFP4:
            return self._native.quantize_nvfp4_g16(x)
        return self._native.quantize_fp4_g32(x)

    def kv_store(self, x: Tensor, cache: KVCache, slots: Tensor) -> None:
        require_canonical("kv_store", cache)
        cache.data[slots.to(torch.int64)] = torch.cat(self.encode(x, cache.layout.fmt), dim=-1)

    def swiglu_quant(self, gate: Tensor, up: Tensor, limit: float, weight: Tensor | None = None) -> QTensor:
        return self._values(swiglu(gate, up, limit, weight), tuple(gate.shape))

    def hc_mix(self, trunk: Tensor, weights: HcWeights) -> HcMix:
        """Bound only where the native library is there."""
        native: NativeLibrary = self._native  # type: ignore[assignment]
        matrix = packed.matrix("hc_mix", weights.fn)
        return HcMix(
            *native.hc_mix(
                trunk, matrix.values, weights.base, weights.scale, weights.norm_eps, weights.hc_eps, weights.iters
            )
        )


def implementations(native: NativeLibrary | None) -> dict[str, OpFunction]:
    """Own implementations by op name."""
    quant = QuantOps(native)
    table: dict[str, OpFunction] = {
        "embed": embed,
        "linear": linear,
        "group_linear": group_linear,
        "grouped_linear": grouped_linear,
        "index_scores": IndexOps().index_scores,
        "kv_load": kv_load,
        "quantize": quant.quantize,
        "kv_store": quant.kv_store,
        "swiglu_quant": quant.swiglu_quant,
    }
    if native is not None:
        table["hc_mix"] = quant.hc_mix
    return table
