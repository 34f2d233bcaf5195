"""The part of a backend that is the same for every device: what its runtime and its table of ops carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.contract.backend import Array, Graph, HostFuture
from tandem.contract.capabilities import Capabilities, MemoryInfo
from tandem.contract.host_memory import CanonicalCaches
from tandem.contract.opspec import OpFunction

# Named in annotations only: a backend class is loaded and probed without torch.
if TYPE_CHECKING:
    import torch

    from tandem.accelerator.runtime import Runtime


class AcceleratorBackend(CanonicalCaches):
    """A device with its runtime; a subclass brings how it is found and opened, and the layouts of its ops.

    Args:
        runtime: of the device.
        ops: own implementations by op name.
        caps: what the device can do with them.
    """

    def __init__(self, runtime: Runtime, ops: Mapping[str, OpFunction], caps: Capabilities) -> None:
        self._runtime, self._ops, self._caps = runtime, ops, caps
        self.device = runtime.device

    def close(self) -> None:
        """Nothing is held beyond the objects themselves."""

    @property
    def caps(self) -> Capabilities:
        """Capabilities of the device."""
        return self._caps

    def fingerprint(self) -> dict[str, str]:
        """Device, libraries, and how results come about."""
        import torch

        return {"backend": self.name, "torch": torch.__version__, **self._runtime.facts()}

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised device memory."""
        return self._runtime.empty(shape, dtype)

    def from_host(self, array: Array, out: torch.Tensor | None = None) -> torch.Tensor:
        """Copy; the source may be reused on return."""
        return self._runtime.from_host(array, out)

    def to_host(self, tensor: torch.Tensor) -> HostFuture:
        """Start a copy through pinned memory."""
        return self._runtime.to_host(tensor)

    def memory(self) -> MemoryInfo:
        """Total and free device memory; zeros where it is emulated."""
        return self._runtime.memory()

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._runtime.synchronize()

    def implementation(self, op: str) -> OpFunction | None:
        """Own kernels; None for the composite."""
        return self._ops.get(op)

    def capture(self, function: Any) -> Graph:
        """Record the work that a call queues."""
        return self._runtime.capture(function)
