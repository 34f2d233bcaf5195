"""One GPU through torch.cuda.  Written without a device at hand: none of this file has been run on one."""

from __future__ import annotations

import gc
import mmap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tandem.backends.cuda.probing import Gpu, version
from tandem.backends.cuda.runtime import Runtime
from tandem.backends.cuda.staging import Mark, Staging
from tandem.contract.backend import Array, Graph, HostFuture
from tandem.contract.capabilities import RUN_ON_DEVICE, MemoryInfo
from tandem.errors import CapacityError

Tensor = torch.Tensor
RING = 32 << 20
REGISTERED = 1 | 2  # cudaHostRegisterPortable, cudaHostRegisterMapped: kernels of every context read it


def ask(index: int) -> Gpu:
    """What the CUDA libraries say of a device; of one that does not exist, how many there are."""
    count = torch.cuda.device_count()
    known = 0 <= index < count
    private: Any = torch._C  # has this function in builds with CUDA alone
    number = int(private._cuda_getDriverVersion())
    return Gpu(
        index=index,
        count=count,
        name=torch.cuda.get_device_name(index) if known else "",
        capability=torch.cuda.get_device_capability(index) if known else (0, 0),
        driver=(number // 1000, number % 1000 // 10),
        toolkit=torch.version.cuda or "0",
        architectures=tuple(torch.cuda.get_arch_list()),
    )


class _Queue:
    """The device's default stream, which every thread shares and which keeps the order of calls."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.default_stream(device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        event: Mark = self._stream.record_event()
        return event


class _Captured:
    """A captured call and the memory it writes."""

    def __init__(self, graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
        self._graph, self._device = graph, device

    def replay(self) -> None:
        """Queue it again."""
        with torch.cuda.device(self._device):
            self._graph.replay()


class DeviceRuntime(Runtime):
    """Memory, copies and graphs of a device.

    All work goes to the default stream.  A capture runs on a stream of its own, as CUDA demands, and its replay is
    queued on the default stream.  Graphs share one pool: they are replayed one after the other, and what one leaves is
    read before the next one is queued.

    Args:
        gpu: what `ask` found, checked.
    """

    emulated = False

    def __init__(self, gpu: Gpu) -> None:
        self.device = torch.device("cuda", gpu.index)
        self.capability = gpu.capability
        self._gpu = gpu
        torch.cuda.init()
        self._staging = Staging(_Queue(self.device), _pinned, RING)
        self._capturing = torch.cuda.Stream(self.device)  # torch's own is of the first device that captures
        self._pool: Any = None

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

    def resident(self, tensor: Tensor) -> Tensor:
        """A copy in host memory that the device reads in place.

        Registered, not allocated as pinned: torch rounds pinned allocations up to a power of two.
        """
        if not tensor.numel():
            return tensor
        memory, copy = _own_pages(tensor)
        driver: Any = torch.cuda.cudart()
        with torch.cuda.device(self.device):
            failed = int(driver.cudaHostRegister(copy.data_ptr(), copy.nbytes, REGISTERED))
        if failed:
            raise CapacityError(
                "host memory could not be pinned",
                where=f"{copy.nbytes} bytes for backend 'cuda'",
                why=f"cudaHostRegister returned {failed}",
                fix="raise the limit of locked memory (ulimit -l), or use a machine with more memory",
            )
        weakref.finalize(memory, driver.cudaHostUnregister, copy.data_ptr())
        return copy

    def memory(self) -> MemoryInfo:
        free, total = torch.cuda.mem_get_info(self.device)
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return MemoryInfo(total, free + unused)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def capture(self, function: Callable[[], Any]) -> Graph:
        """Record a call without running it.  Other threads may wait for copies meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            gc.collect()  # a device array that is freed while a capture runs would end it
            mode, stream = "thread_local", self._capturing
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode=mode):
                function()
        return _Captured(graph, self.device)

    def facts(self) -> dict[str, str]:
        import triton

        return {
            "device": self._gpu.name,
            "capability": version(self._gpu.capability),
            "driver": version(self._gpu.driver),
            "toolkit": self._gpu.toolkit,
            "triton": str(triton.__version__),
            "verification": RUN_ON_DEVICE,
        }


def _own_pages(tensor: Tensor) -> tuple[mmap.mmap, Tensor]:
    """Memory and a copy in it that lives as long; it shares no page with other arrays, for pages are what is pinned."""
    memory = mmap.mmap(-1, tensor.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    copy = torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)
    return memory, copy.copy_(tensor)


def _pinned(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, pin_memory=True)
