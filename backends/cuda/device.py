"""One GPU through torch.cuda.  Written without a device at hand: none of this file has been run on one."""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import torch

from tandem.accelerator.torch_runtime import TorchRuntime
from tandem.backends.cuda.probing import Gpu, version
from tandem.backends.cuda.runtime import GpuRuntime
from tandem.contract.capabilities import RUN_ON_DEVICE
from tandem.errors import CapacityError

Tensor = torch.Tensor
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


class DeviceRuntime(TorchRuntime, GpuRuntime):
    """A GPU.

    Args:
        gpu: what `ask` found, checked.
    """

    transport = "nccl"

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(torch.device("cuda", gpu.index), torch.cuda, torch.cuda.CUDAGraph)
        self.capability = gpu.capability
        self._gpu = gpu

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
