"""One NPU through torch.npu.  Written without a device at hand: none of this file has been run on one.

torch-npu is imported when a device is opened and not before.  It keeps a queue of its own on the host: ops of torch
are put there, and a thread of its hands them to the stream.  A kernel that is launched on the raw stream goes past what
still waits in that queue.  So every launch asks for the stream anew with the call that drains the queue first, and no
handle is kept; the variant of the call that does not wait is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tandem.accelerator.torch_runtime import TorchRuntime
from tandem.backends.ascend import native
from tandem.backends.ascend.probing import Npu
from tandem.backends.ascend.runtime import NpuRuntime, cores
from tandem.contract.backend import Graph
from tandem.contract.capabilities import RUN_ON_DEVICE
from tandem.errors import BackendLoadError, CapacityError, ConfigError

Tensor = torch.Tensor
PIECE = 256 << 20  # bytes that are copied at once into host memory that the device sees
ASYNCHRONOUS = 2  # the task queue's mode in which torch-npu refuses to capture


def load() -> None:
    """Import torch-npu.

    Raises:
        BackendLoadError: it cannot be imported, with what it says.
    """
    try:
        import torch_npu  # noqa: F401
    except Exception as error:  # what a vendor package raises is its own
        raise BackendLoadError(
            "torch-npu is installed and cannot be imported",
            where="import torch_npu",
            why=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}",
            fix="source the toolkit's set_env.sh in this shell; torch-npu also refuses a torch that sees a GPU",
        ) from error


def _npu() -> Any:
    """torch's module of NPUs, which torch-npu brings."""
    module: Any = torch
    return module.npu


def ask(index: int) -> Npu:
    """What the vendor's libraries say of a device; of one that does not exist, how many there are.  Starts none."""
    npu = _npu()
    count = int(npu.device_count())
    soc = str(npu.get_device_name(index)) if 0 <= index < count else ""
    versions = {name: str(npu.utils.get_cann_version(name.upper())) or "unknown" for name in ("CANN", "driver")}
    return Npu(index, count, soc, versions["CANN"], versions["driver"])


@contextmanager
def queue(index: int) -> Iterator[int]:
    """Make a device the thread's current one and give its current stream, torch-npu's own queue drained."""
    from torch_npu import _C

    with _npu().device(index):
        yield int(_C._npu_getCurrentRawStream(index))


class DeviceRuntime(TorchRuntime, NpuRuntime):
    """An NPU.

    Args:
        npu: what `ask` found, checked.
    """

    transport = "hccl"

    def __init__(self, npu: Npu) -> None:
        super().__init__(torch.device("npu", npu.index), _npu(), _npu().NPUGraph)
        self._npu, self._library = npu, native.library()

    def resident(self, tensor: Tensor) -> Tensor:
        """A copy in host memory that the device reads in place, as an array of the device.

        torch-npu documents this memory for older devices; whether a 950 reads it is not known.
        """
        from torch_npu import empty_with_swapped_memory

        if not tensor.numel():
            return tensor.to(self.device)
        plain = tensor.contiguous().view(torch.uint8).view(-1)
        try:
            held: Tensor = empty_with_swapped_memory([plain.numel()], dtype=torch.uint8, device=self.device)
        except RuntimeError as error:
            raise CapacityError(
                "host memory could not be mapped for the device",
                where=f"{plain.numel()} bytes for backend 'ascend'",
                why=str(error).splitlines()[0],
                fix="raise the limit of locked memory (ulimit -l), or use a machine with more memory",
            ) from error
        for start in range(0, plain.numel(), PIECE):
            held[start : start + PIECE].copy_(plain[start : start + PIECE])
        return held.view(tensor.dtype).view(tensor.shape)

    def capture(self, function: Callable[[], Any]) -> Graph:
        """Record a call without running it.

        Raises:
            ConfigError: torch-npu's task queue is in the mode in which it captures nothing.
        """
        if int(self._module.get_task_queue_enable()) == ASYNCHRONOUS:
            raise ConfigError(
                "a step cannot be captured",
                where="environment TASK_QUEUE_ENABLE",
                why="it is 2, and torch-npu captures nothing in this mode",
                fix="set it to 1 before the process starts, or run without graphs",
            )
        return super().capture(function)

    def facts(self) -> dict[str, str]:
        import torch_npu

        return {
            "device": self._npu.soc,
            "CANN": self._npu.cann,
            "driver": self._npu.driver,
            "torch-npu": str(torch_npu.__version__),
            "verification": RUN_ON_DEVICE,
            **cores(self._library, self._npu.index),
        }
