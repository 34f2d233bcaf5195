"""What the backend needs of a device besides kernels, and its emulation on host memory."""

from __future__ import annotations

import abc
import importlib
import platform
from collections.abc import Callable
from typing import Any

import torch

from tandem.backends.cuda.emulation import LABEL
from tandem.contract.backend import Array, Graph, HostFuture
from tandem.contract.capabilities import MemoryInfo
from tandem.contract.host_memory import allocate, copy_in, copy_out


class Runtime(abc.ABC):
    """Memory, copies, waiting and capture of one device.

    Attributes:
        device: where its arrays are.
        capability: compute capability, (10, 0) for SM100.
        emulated: whether no device is there.
    """

    device: torch.device
    capability: tuple[int, int]
    emulated: bool

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory that holds anything.

        Raises:
            CapacityError: there is not that much.
        """
        return allocate(shape, dtype, self.device, "cuda")

    @abc.abstractmethod
    def from_host(self, array: Array, out: torch.Tensor | None) -> torch.Tensor:
        """Copy to the device; the source may be reused on return."""

    @abc.abstractmethod
    def to_host(self, tensor: torch.Tensor) -> HostFuture:
        """Start a copy to the host."""

    @abc.abstractmethod
    def resident(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same values in host memory that kernels read in place.

        Raises:
            CapacityError: that much memory cannot be pinned.
        """

    @abc.abstractmethod
    def memory(self) -> MemoryInfo:
        """Total and free bytes."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait for all queued work."""

    @abc.abstractmethod
    def capture(self, function: Callable[[], Any]) -> Graph:
        """Record one call for replay."""

    @abc.abstractmethod
    def facts(self) -> dict[str, str]:
        """What can change a bit: device, driver, libraries."""


class EmulatedRuntime(Runtime):
    """Host memory; every call has finished when it returns."""

    capability = (10, 0)
    emulated = True

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def from_host(self, array: Array, out: torch.Tensor | None) -> torch.Tensor:
        return copy_in(array, out)

    def to_host(self, tensor: torch.Tensor) -> HostFuture:
        return copy_out(tensor)

    def resident(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def memory(self) -> MemoryInfo:
        return MemoryInfo(0, 0)

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def capture(self, function: Callable[[], Any]) -> Graph:
        raise NotImplementedError("an emulated device declares no graphs")

    def facts(self) -> dict[str, str]:
        libraries = {name: str(importlib.import_module(name).__version__) for name in ("triton", "numpy")}
        return {"device": "none", "verification": LABEL, "machine": platform.machine(), **libraries}
