"""Inputs of conformance cases, as data.

A case is made from a seed alone, on the host, so that every backend gets the same bits.  What only a backend
can make, packed weights and caches, and memory that may hold anything, is described by the types below;
`materialise` builds the call arguments on the backend under test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.contract.backend import Backend
from tandem.contract.types import (
    CacheKind,
    CanonicalWeight,
    KVCache,
    KVLayout,
    PackedWeight,
    QFormat,
    QTensor,
    Rows,
    WeightKind,
)

Tensor = torch.Tensor

# Row counts around the tiles that kernels like, and odd ones.
ROWS = (1, 2, 15, 16, 17, 33)
FEW_ROWS = (1, 2, 17)


@dataclass(frozen=True, slots=True)
class WeightInput:
    """A weight in canonical form; becomes a `PackedWeight`."""

    kind: WeightKind
    weight: CanonicalWeight
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheInput:
    """A cache with bytes uint8 [len(held), entry_bytes] at slots ``held``; other entries hold anything."""

    layout: KVLayout
    num_blocks: int
    held: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def image(self, poison: int) -> npt.NDArray[np.uint8]:
        """Bytes uint8 [num_blocks * block_entries, entry_bytes] with ``poison`` where anything may stand."""
        slots = self.num_blocks * self.layout.block_entries
        image = np.full((slots, self.layout.entry_bytes), poison, np.uint8)
        image[list(self.held)] = self.data
        return image


@dataclass(frozen=True, slots=True)
class PartlyUsed:
    """A tensor of which only the elements where ``used`` may matter; others hold anything."""

    value: Tensor
    used: Tensor

    def filled(self, poison: int) -> Tensor:
        """The tensor with every byte of its unused elements set to ``poison``."""
        junk = torch.full((self.value.numel() * self.value.element_size(),), poison, dtype=torch.uint8)
        return torch.where(self.used, self.value, junk.view(self.value.dtype).view(self.value.shape))


class Draw:
    """Seeded arrays.  Methods that stand in for backend objects return Any."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def f32(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal variables, f32."""
        return torch.from_numpy((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def bf16(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal variables, bf16."""
        return self.f32(*shape, scale=scale).to(torch.bfloat16)

    def i32(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers of [low, high), int32."""
        return torch.from_numpy(self.rng.integers(low, high, shape, dtype=np.int32))

    def cos_sin(self, rows: int, dim: int) -> Tensor:
        """Cosines, then sines, of dim/2 random angles, f32 [rows, dim]."""
        angles = self.rng.uniform(-np.pi, np.pi, (rows, dim // 2))
        return torch.from_numpy(np.concatenate((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32))

    def block_table(self, slots: int, columns: int) -> Tensor:
        """int32 [slots + 1, columns]: blocks 0 .. slots * columns - 1 in random order, none for scratch."""
        order = self.rng.permutation(slots * columns).astype(np.int32).reshape(slots, columns)
        return torch.from_numpy(np.concatenate((order, np.full((1, columns), -1, dtype=np.int32))))

    def codes(self, fmt: QFormat, *shape: int) -> Tensor:
        """Random code bytes of a format, e4m3's NaNs left out; shape counts elements."""
        if fmt.bits == 4:
            return torch.from_numpy(self.rng.integers(0, 256, (*shape[:-1], shape[-1] // 2), dtype=np.uint8))
        code = self.rng.integers(0, 0x7F, shape, dtype=np.uint8)
        return torch.from_numpy(code | (self.rng.integers(0, 2, shape, dtype=np.uint8) << 7))

    def scales(self, fmt: QFormat, *shape: int) -> Tensor:
        """Random scale bytes: a few powers of two below one, or e4m3 values of that size."""
        low, high = (0x20, 0x38) if fmt is QFormat.NVFP4 else (112, 121)
        return torch.from_numpy(self.rng.integers(low, high, shape, dtype=np.uint8))

    def quantised(self, fmt: QFormat, rows: int, width: int) -> QTensor:
        """A quantised activation [rows, width]."""
        return QTensor(
            self.codes(fmt, rows, width), self.scales(fmt, rows, width // fmt.group), fmt, (rows, width)
        )

    def weight(self, kind: WeightKind, fmt: QFormat, *shape: int) -> Any:
        """A packed weight of logical ``shape``."""
        if fmt is QFormat.F32:
            weight = CanonicalWeight(self.f32(*shape, scale=shape[-1] ** -0.5), None, fmt)
        elif fmt is QFormat.BF16:
            weight = CanonicalWeight(self.bf16(*shape, scale=shape[-1] ** -0.5), None, fmt)
        else:
            rows = -(-shape[-2] // 32) if fmt is QFormat.FP8_BLOCK32 else shape[-2]
            scale = self.scales(fmt, *shape[:-2], rows, -(-shape[-1] // fmt.group))
            weight = CanonicalWeight(self.codes(fmt, *shape), scale, fmt)
        return WeightInput(kind, weight, shape)

    def cache(
        self, fmt: QFormat, dim: int, block_entries: int, num_blocks: int, held: Sequence[int] | None = None
    ) -> Any:
        """A cache with random entries at the slots ``held`` (default: all)."""
        kinds = {
            QFormat.NVFP4: CacheKind.MAIN,
            QFormat.MXFP4: CacheKind.INDEX,
            QFormat.MXFP8: CacheKind.WINDOW,
        }
        layout = KVLayout(kinds[fmt], fmt, dim, block_entries)
        slots = tuple(range(num_blocks * block_entries)) if held is None else tuple(held)
        codes, scales = self.codes(fmt, len(slots), dim), self.scales(fmt, len(slots), layout.scale_bytes)
        return CacheInput(layout, num_blocks, slots, torch.cat((codes, scales), dim=1).numpy())


def step_rows(
    chunks: Sequence[tuple[int, int, int]], ids: Tensor | None = None, roles: Tensor | None = None
) -> Rows:
    """The rows of a step made of chunks (slot, first position, rows); a chunk of slot -1 is padding."""
    columns: list[list[int]] = [[], [], [], []]
    for slot, first, count in chunks:
        start = len(columns[0])
        for i in range(count):
            row = (first + i, slot, start, start + count) if slot >= 0 else (0, -1, start + i, start + i + 1)
            for column, number in zip(columns, row, strict=True):
                column.append(number)
    positions, slots, starts, ends = (torch.tensor(column, dtype=torch.int32) for column in columns)
    zero = torch.zeros_like(positions)
    return Rows(
        zero if ids is None else ids, positions, slots, starts, ends, zero if roles is None else roles
    )


def materialise(value: Any, backend: Backend, poison: int) -> Any:
    """Call arguments on ``backend``; memory that may hold anything is filled with the byte ``poison``.

    What is on the backend already, packed weights and caches, stays what it is.
    """
    if isinstance(value, Tensor):
        return upload(value, backend)
    if isinstance(value, WeightInput):
        return backend.pack_weight(value.kind, value.weight, value.shape)
    if isinstance(value, PartlyUsed):
        return upload(value.filled(poison), backend)
    if isinstance(value, CacheInput):
        cache = backend.kv_alloc(value.layout, value.num_blocks)
        blocks = np.arange(value.num_blocks)
        backend.kv_import(cache, blocks, value.image(poison).reshape(value.num_blocks, -1))
        return cache
    if isinstance(value, QTensor):
        data, scale = upload(value.data, backend), upload(value.scale, backend)
        return backend.from_canonical(QTensor(data, scale, value.fmt, value.shape))
    if isinstance(value, dict):
        return {name: materialise(item, backend, poison) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(materialise(item, backend, poison) for item in value))
    if isinstance(value, (PackedWeight, KVCache)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {
            f.name: materialise(getattr(value, f.name), backend, poison) for f in dataclasses.fields(value)
        }
        return type(value)(**parts)
    return value


def upload(tensor: Tensor, backend: Backend, out: Tensor | None = None) -> Tensor:
    """A host tensor on the backend, bit by bit; with ``out``, in its leading part."""
    plain = tensor.contiguous()
    if plain.dtype is torch.bfloat16:
        place = None if out is None else out.view(torch.int16)
        return backend.from_host(plain.view(torch.int16).numpy(), place).view(torch.bfloat16)
    return backend.from_host(plain.numpy(), out)
