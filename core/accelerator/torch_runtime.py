"""One device through torch's module of its type.  Written without a device at hand: none of this has been run on one.

The modules that vendors bring for torch have the same functions under the same names: streams, events, graphs, memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tandem.accelerator.runtime import Runtime
from tandem.accelerator.staging import Mark, Staging
from tandem.contract.backend import Array, Graph, HostFuture
from tandem.contract.capabilities import MemoryInfo

Tensor = torch.Tensor
RING = 32 << 20


class _Queue:
    """The device's default stream, which every thread shares and which keeps the order of calls."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module, self._stream = module, module.default_stream(device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        with self._module.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        event: Mark = self._stream.record_event()
        return event


class _Captured:
    """A captured call and the memory it writes."""

    def __init__(self, graph: Any, module: Any, device: torch.device) -> None:
        self._graph, self._module, self._device = graph, module, device

    def replay(self) -> None:
        """Queue it again."""
        with self._module.device(self._device):
            self._graph.replay()


class TorchRuntime(Runtime):
    """Memory, copies and graphs of a device.

    All work goes to the default stream.  A capture runs on a stream of its own, as devices demand, and its replay is
    queued on the default stream.  Graphs share one pool: they are replayed one after the other, and what one leaves is
    read before the next one is queued.

    Args:
        device: the device.
        module: torch's module of its type.
        graph: the class of a captured graph in that module.
    """

    emulated = False

    def __init__(self, device: torch.device, module: Any, graph: Callable[[], Any]) -> None:
        self.device = device
        self._module, self._new_graph = module, graph
        self._pool: Any = None
        module.init()
        with module.device(device):  # a module may know the streams of the current device alone
            self._staging = Staging(_Queue(module, device), _pinned, RING)
            self._capturing = module.Stream(device)  # torch's own is of the first device that captures

    def from_host(self, array: Array, out: Tensor | None) -> Tensor:
        kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
        part = None if out is None else out[: array.shape[0]] if array.ndim else out
        if part is not None and part.dtype == kind and part.is_contiguous():
            self._staging.upload(array, part)
            return part
        fresh = self.empty(array.shape, kind)
        self._staging.upload(array, fresh)
        return fresh if part is None else part.copy_(fresh)

    def to_host(self, tensor: Tensor) -> HostFuture:
        plain = tensor.to(torch.float32) if tensor.dtype is torch.bfloat16 else tensor
        return self._staging.download(plain.contiguous())

    def memory(self) -> MemoryInfo:
        free, total = self._module.mem_get_info(self.device)
        unused = self._module.memory_reserved(self.device) - self._module.memory_allocated(self.device)
        return MemoryInfo(total, free + unused)

    def synchronize(self) -> None:
        self._module.synchronize(self.device)

    def capture(self, function: Callable[[], Any]) -> Graph:
        """Record a call without running it.  Other threads may wait for copies meanwhile."""
        graph = self._new_graph()
        with self._module.device(self.device):
            if self._pool is None:
                self._pool = self._module.graph_pool_handle()
            gc.collect()  # a device array that is freed while a capture runs would end it
            mode, stream = "thread_local", self._capturing
            with self._module.graph(graph, pool=self._pool, stream=stream, capture_error_mode=mode):
                function()
        return _Captured(graph, self._module, self.device)


def _pinned(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, pin_memory=True)
