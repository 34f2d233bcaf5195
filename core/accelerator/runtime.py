"""What a backend needs of a device besides kernels, and its emulation on host memory."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import torch

from tandem.contract.backend import Array, Graph, HostFuture
from tandem.contract.capabilities import MemoryInfo
from tandem.contract.host_memory import allocate, copy_in, copy_out

HOST_TRANSPORT = "gloo"


class Runtime(abc.ABC):
    """Memory, copies, waiting and capture of one device.

    Attributes:
        backend: name of the backend, for errors.
        device: where its arrays are.
        emulated: whether no device is there.
        transport: what torch.distributed calls the library that connects such devices.
    """

    backend: str
    device: torch.device
    emulated: bool
    transport: str

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory that holds anything.

        Raises:
            CapacityError: there is not that much.
        """
        return allocate(shape, dtype, self.device, self.backend)

    @abc.abstractmethod
    def from_host(self, array: Array, out: torch.Tensor | None) -> torch.Tensor:
        """Copy to the device; the source may be reused on return."""

    @abc.abstractmethod
    def to_host(self, tensor: torch.Tensor) -> HostFuture:
        """Start a copy to the host."""

    @abc.abstractmethod
    def resident(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same values where kernels read them in place, in host memory if the device can.

        Raises:
            CapacityError: there is not that much memory of this kind.
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


class HostRuntime(Runtime):
    """An emulated device: host memory; every call has finished when it returns."""

    emulated = True
    transport = HOST_TRANSPORT

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
