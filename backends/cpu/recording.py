"""A decode step as a flat list of native calls: what a capture writes down, and the memory that its arrays lie in."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.backends.cpu.native import NativeLibrary, Recorder
from tandem.errors import KernelError

Tensor = torch.Tensor
ALIGNMENT = 64  # bytes, a cache line
CHUNK = 1 << 20  # bytes, least that the memory grows by


class Memory:
    """Memory of the arrays that recorded steps make, shared by all recordings: only one is replayed at a time.

    A region is free again as soon as the last array in it is dropped, while a step is being written down; so a
    recorded step takes as much memory as a step run call by call.  What a region holds stays until the next replay.
    """

    def __init__(self) -> None:
        self._free: list[tuple[int, int, Any]] = []  # (bytes, place, chunk), by size
        self._raw: list[Any] = []  # chunks, which live as long as recordings that use them
        self._chunks: list[tuple[int, int]] = []  # their addresses

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(stop - start for start, stop in self._chunks)

    def holds(self, address: int) -> bool:
        """Whether an array at an address lies here."""
        return any(start <= address < stop for start, stop in self._chunks)

    def array(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised array."""
        count = int(np.prod(shape, dtype=np.int64))
        size = max(ALIGNMENT, -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT)
        place, chunk = self._take(size)
        region = chunk[place : place + size]
        weakref.finalize(region, self._give, size, place, chunk)
        flat = torch.from_numpy(region)[: count * dtype.itemsize]
        return flat.view(dtype).view(shape)

    def _take(self, size: int) -> tuple[int, Any]:
        for index, (held, place, chunk) in enumerate(self._free):
            if held >= size:
                del self._free[index]
                if held > size:
                    self._insert(held - size, place + size, chunk)
                return place, chunk
        grown = max(size, CHUNK)
        raw = np.empty(grown + ALIGNMENT, dtype=np.uint8)
        first = -raw.ctypes.data % ALIGNMENT
        self._chunks.append((raw.ctypes.data, raw.ctypes.data + raw.nbytes))
        self._raw.append(raw)
        if grown > size:
            self._insert(grown - size, first + size, raw)
        return first, raw

    def _give(self, size: int, place: int, chunk: Any) -> None:
        for index, (held, start, owner) in enumerate(self._free):
            if owner is chunk and start + held == place:
                del self._free[index]
                self._give(held + size, start, chunk)
                return
            if owner is chunk and place + size == start:
                del self._free[index]
                self._give(held + size, place, chunk)
                return
        self._insert(size, place, chunk)

    def _insert(self, size: int, place: int, chunk: Any) -> None:
        index = next((i for i, (held, _, _) in enumerate(self._free) if held >= size), len(self._free))
        self._free.insert(index, (size, place, chunk))


class _Guard(TorchDispatchMode):
    """Lets torch make arrays and views of them while a step is written down, and nothing else."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler to skip it, 130 MB and a second of the first step written down."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.empty.memory_format:
            return self._memory.array(tuple(args[0]), kwargs.get("dtype") or torch.get_default_dtype())
        if func is torch.ops.aten.new_empty.default:
            return self._memory.array(tuple(args[1]), kwargs.get("dtype") or args[0].dtype)
        if func is torch.ops.aten.empty_like.default:
            return self._memory.array(tuple(args[0].shape), kwargs.get("dtype") or args[0].dtype)
        if func.is_view:
            return func(*args, **kwargs)
        raise KernelError(
            "a step cannot be written down",
            where=f"capture of a decode step, backend 'cpu', torch operation {func}",
            why="torch would compute it now, and not when the step is replayed",
            fix="a launcher must leave all computing to native kernels",
        )


def record(library: NativeLibrary, memory: Memory, function: Callable[[], Any]) -> Recorder:
    """The native calls of one call of ``function``, none of which has run.

    Raises:
        KernelError: torch would compute something.
    """
    recorder = Recorder(library, lambda address: not memory.holds(address))
    library.record(recorder)
    try:
        with _Guard(memory):
            function()
    finally:
        library.record(None)
    return recorder
