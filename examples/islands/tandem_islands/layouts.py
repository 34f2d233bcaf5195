"""How the islands keep things: three layouts that no composite reads, and the ops that do.

    weights       column-major, high nibble first; tables whose rows are gathered stay in rows
    activations   each group's scale byte in front of its codes: uint8 [T, groups * (1 + group bytes)]
    caches        the bytes of a block transposed: uint8 [blocks + 1, entry_bytes, block_entries]; the last is scratch

Everything here runs inside the memory space.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import OpFunction
from tandem.contract.types import (
    CANONICAL,
    CanonicalWeight,
    KVCache,
    KVLayout,
    PackedWeight,
    QFormat,
    QTensor,
    WeightKind,
)  # fmt: skip
from tandem.errors import LayoutError
from tandem.ops.numerics import decode_rows, encode_rows
from tandem_islands.space import each

Tensor = torch.Tensor
COLUMNS, ROWS = "islands.columns", "islands.rows"  # of weights
BLOCKS = "islands.blocks.rows"  # of activations; ".rows" promises rows on axis 0
PAGES = "islands.pages"  # of caches


# -- weights -----------------------------------------------------------------------------------------------


def pack(kind: WeightKind, weight: CanonicalWeight) -> tuple[str, CanonicalWeight]:
    """(layout, payload) of a weight in canonical form; the payload owns its memory."""
    if kind in (WeightKind.EMBED, WeightKind.ENGRAM):
        return ROWS, each(weight, Tensor.clone)
    return COLUMNS, _turned(weight)


def unpack(weight: PackedWeight) -> CanonicalWeight:
    """The bits that were packed.

    Raises:
        LayoutError: the weight is another backend's.
    """
    if weight.layout not in (COLUMNS, ROWS):
        raise LayoutError(
            "a packed weight belongs to another backend",
            where=repr(weight),
            why=f"layout '{weight.layout}' is not one of backend 'islands'",
            fix="unpack it with its own backend and pack the canonical bits",
        )
    payload: CanonicalWeight = weight.token
    return payload if weight.layout == ROWS else _turned(payload)


def _turned(weight: CanonicalWeight) -> CanonicalWeight:
    """Rows to columns with nibbles exchanged, or back."""
    data, scale, fmt = weight
    if fmt.bits == 4:
        data = data.view(torch.uint8) << 4 | data.view(torch.uint8) >> 4
    turned: CanonicalWeight = each(
        CanonicalWeight(data, scale, fmt),
        lambda part: part.transpose(-1, -2).clone(memory_format=torch.contiguous_format),
    )
    return turned


# -- activations -------------------------------------------------------------------------------------------


def to_blocks(q: QTensor) -> QTensor:
    """Canonical to blocks."""
    rows, width = q.shape
    groups = width // q.fmt.group
    parts = (q.scale.reshape(rows, groups, 1), q.data.reshape(rows, groups, -1))
    data = torch.cat([part.view(torch.uint8) for part in parts], dim=-1).flatten(1)
    return QTensor(data, data[:, :0], q.fmt, q.shape, BLOCKS)


def to_canonical(q: QTensor) -> QTensor:
    """Blocks (or canonical) to canonical."""
    if q.layout == CANONICAL:
        return q
    q.require("to_canonical", q.fmt, BLOCKS)
    parts = q.data.view(q.shape[0], q.shape[1] // q.fmt.group, -1)
    return QTensor(parts[..., 1:].flatten(1), parts[..., 0].contiguous(), q.fmt, q.shape)


def quantize(x: Tensor, fmt: QFormat) -> QTensor:
    """Op `quantize`: x bf16 [T, N]."""
    return to_blocks(QTensor(*encode_rows(x, fmt), fmt, tuple(x.shape)))


# -- caches ------------------------------------------------------------------------------------------------


def page_shape(layout: KVLayout, num_blocks: int) -> tuple[int, int, int]:
    """Shape of a cache's memory."""
    return num_blocks + 1, layout.entry_bytes, layout.block_entries


def read_blocks(cache: KVCache, blocks: Tensor) -> Tensor:
    """Canonical bytes uint8 [len(blocks), block_bytes] of blocks int64."""
    return cache.data[blocks].transpose(1, 2).flatten(1)


def write_blocks(cache: KVCache, blocks: Tensor, data: Tensor) -> None:
    """Write what `read_blocks` gives."""
    layout = cache.layout
    cache.data[blocks] = data.view(-1, layout.block_entries, layout.entry_bytes).transpose(1, 2)


def kv_store(x: Tensor, cache: KVCache, slots: Tensor) -> None:
    """Op `kv_store`: x bf16 [T, D], slots int32 [T]; -1 falls into the scratch block, which is the last."""
    block, offset = _place(cache, slots)
    cache.data[block, :, offset] = torch.cat(encode_rows(x, cache.layout.fmt), dim=-1)


def kv_load(cache: KVCache, slots: Tensor) -> Tensor:
    """Op `kv_load`: slots int32 [...] -> bf16 [..., D], zeros for -1."""
    flat, codes = slots.reshape(-1), cache.layout.data_bytes
    block, offset = _place(cache, flat)
    entries = cache.data[block, :, offset]
    values = decode_rows(entries[:, :codes].contiguous(), entries[:, codes:].contiguous(), cache.layout.fmt)
    kept = torch.where((flat >= 0).unsqueeze(-1), values, 0.0).to(torch.bfloat16)
    return kept.view(*slots.shape, cache.layout.dim)


def _place(cache: KVCache, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Block and offset of slots; -1 is the last offset of the last block."""
    if cache.memory_layout != PAGES:
        raise LayoutError(
            "a cache belongs to another backend",
            where=f"{cache.layout.kind.value} cache",
            why=f"its memory layout is '{cache.memory_layout}', not '{PAGES}'",
            fix="move its blocks by kv_export and kv_import",
        )
    wide, size = slots.to(torch.int64), cache.layout.block_entries
    return torch.div(wide, size, rounding_mode="floor"), wide.remainder(size)


OPS: dict[str, OpFunction] = {"quantize": quantize, "kv_store": kv_store, "kv_load": kv_load}
