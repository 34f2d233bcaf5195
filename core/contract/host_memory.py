"""Copies and caches of a device whose arrays torch can index and whose copies have finished when they return.

What CPU-like backends and emulated devices have in common; a device with a queue of its own brings its own copies.

Backend classes derive from what is here and are probed without torch, so functions import it when they compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tandem.contract.backend import Array, Backend
from tandem.contract.types import KVCache, KVLayout
from tandem.errors import CapacityError

if TYPE_CHECKING:
    import torch


class HostArray:
    """A finished copy: the value is there at once."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def ready(self) -> bool:
        """Always true."""
        return True

    def result(self) -> Array:
        """The copied array."""
        return self._array


def copy_in(array: Array, out: torch.Tensor | None) -> torch.Tensor:
    """`Backend.from_host` of host memory; the source may be reused on return."""
    import torch

    if out is None:
        return torch.from_numpy(np.array(array, order="C"))  # a copy
    source = torch.from_numpy(np.ascontiguousarray(array))
    return (out[: source.shape[0]] if source.dim() else out).copy_(source)


def copy_out(tensor: torch.Tensor) -> HostArray:
    """`Backend.to_host` of host memory."""
    import torch

    plain = tensor.to(torch.float32) if tensor.dtype is torch.bfloat16 else tensor
    return HostArray(plain.numpy().copy())


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, backend: str) -> torch.Tensor:
    """`Backend.empty` by torch.

    Raises:
        CapacityError: there is not that much.
    """
    import torch

    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise CapacityError(
            "memory could not be allocated",
            where=f"{shape} of {dtype} on backend '{backend}'",
            why=str(error).splitlines()[0],
            fix="lower cache.num_blocks, scheduler.max_slots or scheduler.max_tokens_per_step",
        ) from error


class CanonicalCaches(Backend):
    """Paged caches in canonical memory, for backends whose arrays torch can index."""

    def kv_alloc(self, layout: KVLayout, num_blocks: int) -> KVCache:
        """Canonical memory with its scratch entry."""
        import torch

        entries = num_blocks * layout.block_entries + 1
        return KVCache(layout, num_blocks, self.empty((entries, layout.entry_bytes), torch.uint8))

    def kv_export(self, cache: KVCache, blocks: Array) -> Array:
        """uint8 [len(blocks), block_bytes]."""
        found = _blocks(cache)[self._index(blocks)].reshape(len(blocks), -1)
        return self.to_host(found).result()

    def kv_import(self, cache: KVCache, blocks: Array, data: Array) -> None:
        """Write whole blocks."""
        target = _blocks(cache)
        target[self._index(blocks)] = self.from_host(data).view(len(blocks), *target.shape[1:])

    def kv_copy(self, cache: KVCache, source: Array, target: Array) -> None:
        """Copy whole blocks on the device."""
        view = _blocks(cache)
        view[self._index(target)] = view[self._index(source)]

    def _index(self, blocks: Array) -> torch.Tensor:
        return self.from_host(blocks.astype(np.int64))


def _blocks(cache: KVCache) -> torch.Tensor:
    """uint8 [num_blocks, block_entries, entry_bytes], the scratch entry left out."""
    layout = cache.layout
    return cache.data[:-1].view(cache.num_blocks, layout.block_entries, layout.entry_bytes)
