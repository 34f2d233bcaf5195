"""A decode step as a flat list of native calls: what a capture writes down, and the memory that its arrays lie in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.backends.cpu.memory import HUGE
from tandem.backends.cpu.native import NativeLibrary, Recorder
from tandem.backends.cpu.temporary import Pool
from tandem.errors import KernelError

Tensor = torch.Tensor
CHUNK = HUGE  # bytes, least that the memory grows by


class Memory(Pool):
    """Memory of the arrays that recorded steps make, shared by all recordings: only one is replayed at a time.

    A place is free again as soon as the last array in it is dropped, while a step is being written down; so a
    recorded step takes as much memory as a step run call by call.  What a place holds stays until the next replay.
    """

    def __init__(self) -> None:
        super().__init__(CHUNK)

    def holds(self, address: int) -> bool:
        """Whether an array at an address lies here."""
        return any(0 <= address - region.ctypes.data < region.nbytes for region in self.regions)


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
            return self._memory.empty(tuple(args[0]), kwargs.get("dtype") or torch.get_default_dtype())
        if func is torch.ops.aten.new_empty.default:
            return self._memory.empty(tuple(args[1]), kwargs.get("dtype") or args[0].dtype)
        if func is torch.ops.aten.empty_like.default:
            return self._memory.empty(tuple(args[0].shape), kwargs.get("dtype") or args[0].dtype)
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
