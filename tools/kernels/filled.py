"""Workloads with memory: random numbers, and indices that point where they may.

An index argument is known by its name; one that is not listed is an error, so that no benchmark reads one cache line
again and again without a word.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from tandem.contract.backend import Backend
from tandem.contract.types import CanonicalWeight, KVCache, PackedWeight, QFormat, QTensor, WeightKind
from tools.kernels import workloads as w
from tools.kernels.workloads import Canonical, Maker, Phase, Workload

Tensor = torch.Tensor
# Indices that a call may name once only.
DISTINCT = {"slot", "slots", "host_slot", "index", "token"}
ENGRAM_ROWS = 1 << 22  # of the 384 million that the official table has: 1 GiB, far beyond any cache


class Held(Canonical):
    """Of the Engram table the rows that memory is spent on."""

    def weight(self, kind: WeightKind, fmt: QFormat, shape: tuple[int, ...]) -> PackedWeight:
        return super().weight(kind, fmt, (min(shape[0], ENGRAM_ROWS), shape[1]) if kind is WeightKind.ENGRAM else shape)


def limits(phase: Phase, arguments: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Half-open ranges of index arguments by name."""
    slots, context = phase.requests, phase.context
    blocks = slots * -(-context // w.BLOCK)
    entries = {"window": "window_slots", "main": "main_slots", "cache": "slots"}
    found = {
        "ids": (0, w.VOCAB), "host_ids": (0, w.VOCAB), "token": (0, w.VOCAB), "tokens": (0, w.VOCAB),
        "previous": (0, w.VOCAB), "anchor": (0, w.VOCAB), "drafts": (0, w.VOCAB), "forced": (-1, 0),
        "vocabulary": (0, 99092), "history": (0, 99092), "context": (0, 99092), "last_token": (0, w.VOCAB),
        "positions": (context - 1, context), "position": (context - 1, context), "host_positions": (0, 1),
        "slot": (0, slots), "row_slot": (0, slots), "slots": (0, slots), "host_slot": (0, slots),
        "lens": (context, context + 1), "length": (context // 2, context // 2 + 1), "limit": (context, context + 1),
        "table": (0, blocks), "first": (0, 1), "entries": (0, context), "blocks": (0, context // w.POOL_BLOCK),
        "experts": (0, w.EXPERTS), "roles": (0, 1), "from_device": (0, 1 + w.DRAFTS), "index": (0, phase.rows),
        "row": (0, slots), "accepted": (0, 2), "count": (1, 2), "base": (context // 2, context // 2 + 1),
        "most": (w.DRAFTS, w.DRAFTS + 1), "weight": (0, 1 << 30), "proposal": (0, 1 << 30), "draft_row": (-1, 0),
        "top_k": (0, 1), "seed": (0, 1 << 40), "rows": (0, ENGRAM_ROWS), "multipliers": (1, 1 << 40),
        "primes": (15_999_989, 16_000_057), "offsets": (0, 1), "chunk_start": (0, 1), "chunk_end": (1, 2),
        "ends": (0, 1), "source": (0, phase.rows), "a": (0, context), "bits": (-(1 << 31), 1 << 31),
    }  # fmt: skip
    for cache, name in entries.items():
        if isinstance(arguments.get(cache), KVCache):
            held = arguments[cache]
            found[name] = (0, held.num_blocks * held.layout.block_entries)
    return found


def fill(workload: Workload, phase: Phase, backend: Backend, seed: int = 0) -> dict[str, Any]:
    """The arguments of a workload on an open backend."""
    arguments = workload.build(Maker(Held()), phase)
    filler = _Filler(backend, limits(phase, arguments), seed)
    return {name: filler.value(name, value) for name, value in arguments.items()}


class _Filler:
    def __init__(self, backend: Backend, ranges: dict[str, tuple[int, int]], seed: int) -> None:
        self._backend, self._ranges, self._rng = backend, ranges, np.random.default_rng(seed)

    def value(self, name: str, value: Any) -> Any:
        """What stands for an argument or a field called ``name``."""
        if isinstance(value, Tensor):
            return self._tensor(name, value)
        if isinstance(value, QTensor):
            data = self._codes(tuple(value.data.shape))
            q = QTensor(data, self._scales((value.shape[0], value.shape[1] // value.fmt.group)), value.fmt, value.shape)
            return self._backend.from_canonical(q)
        if isinstance(value, PackedWeight):
            return self._weight(value)
        if isinstance(value, KVCache):
            return self._cache(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.value(f, getattr(value, f)) for f in value._fields))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return type(value)(**{f.name: self.value(f.name, getattr(value, f.name)) for f in fields})
        return value

    def _tensor(self, name: str, like: Tensor) -> Tensor:
        shape = tuple(like.shape)
        if like.dtype in (torch.int32, torch.int64):
            low, high = self._ranges[name]
            dtype = np.int32 if like.dtype is torch.int32 else np.int64
            if name in DISTINCT and like.numel() <= high - low:
                chosen = low + self._rng.choice(high - low, like.numel(), replace=False)
                return self._backend.from_host(chosen.astype(dtype).reshape(shape))
            return self._backend.from_host(self._rng.integers(low, high, shape, dtype=dtype))
        values = self._rng.random(shape, dtype=np.float32)
        device = self._backend.from_host(values)
        return device if like.dtype is torch.float32 else device.to(like.dtype)

    def _codes(self, shape: tuple[int, ...]) -> Tensor:
        return self._backend.from_host(self._rng.integers(0, 0x70, shape, dtype=np.uint8))

    def _scales(self, shape: tuple[int, ...]) -> Tensor:
        return self._backend.from_host(self._rng.integers(112, 121, shape, dtype=np.uint8))

    def _weight(self, like: PackedWeight) -> PackedWeight:
        shape, fmt = like.shape, like.fmt
        if not fmt.group:
            wide = torch.from_numpy(self._rng.random(shape, dtype=np.float32))
            data = wide.to(torch.bfloat16) if fmt is QFormat.BF16 else wide
            return self._backend.pack_weight(like.kind, CanonicalWeight(data, None, fmt), shape)
        codes = self._rng.integers(0, 0x70, (*shape[:-1], shape[-1] * fmt.bits // 8), dtype=np.uint8)
        rows = shape[-2] // 32 if fmt is QFormat.FP8_BLOCK32 else shape[-2]
        scale = self._rng.integers(112, 121, (*shape[:-2], rows, shape[-1] // fmt.group), dtype=np.uint8)
        weight = CanonicalWeight(torch.from_numpy(codes), torch.from_numpy(scale), fmt)
        return self._backend.pack_weight(like.kind, weight, shape)

    def _cache(self, like: KVCache) -> KVCache:
        """Entries whose codes and scales are all finite."""
        cache = self._backend.kv_alloc(like.layout, like.num_blocks)
        cache.data.fill_(0x38)
        return cache
