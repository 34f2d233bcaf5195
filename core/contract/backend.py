"""The surface a device implements."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from tandem.contract.capabilities import Capabilities, MemoryInfo, Probe
from tandem.contract.opspec import OpFunction
from tandem.contract.surface import check_subclass
from tandem.contract.types import (
    CanonicalWeight,
    KVCache,
    KVLayout,
    PackedWeight,
    QTensor,
    WeightKind,
)

# Named in annotations only: a backend class is loaded and probed without torch.
if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]


class HostFuture(Protocol):
    """A device-to-host copy under way."""

    def ready(self) -> bool:
        """Whether ``result`` would return without waiting."""

    def result(self) -> Array:
        """Wait for the copy and return it."""


class Graph(Protocol):
    """A captured step."""

    def replay(self) -> None:
        """Run the captured calls again on the same buffers."""


class Backend(abc.ABC):
    """One open device.  Every op not returned by `implementation` runs as the composite of ``core/ops``.

    A subclass defines no public name but those below, with these parameters; anything else is a `SurfaceError`,
    a TypeError, when the class is made.  Names that begin with ``_`` are free.
    """

    name: str
    contract: tuple[int, int]
    device: torch.device

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        check_subclass(cls, Backend)

    @classmethod
    @abc.abstractmethod
    def probe(cls) -> Probe:
        """Say whether the device looks usable, without initialising it or importing a vendor library."""

    @classmethod
    @abc.abstractmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> Backend:
        """Open the device; a failure is an error, there is no fallback.

        Raises:
            BackendLoadError: with the cause and what was checked.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release the device; the object is not used afterwards."""

    @property
    @abc.abstractmethod
    def caps(self) -> Capabilities:
        """Capabilities of this open device."""

    @abc.abstractmethod
    def fingerprint(self) -> dict[str, str]:
        """Hardware, library and kernel versions that can change a bit of the result."""

    # -- memory ------------------------------------------------------------------------------
    @abc.abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Device memory holding anything; tests fill it with NaN."""

    @abc.abstractmethod
    def from_host(self, array: Array, out: torch.Tensor | None = None) -> torch.Tensor:
        """Copy a numpy array to the device, into ``out`` where given (the leading part of it)."""

    @abc.abstractmethod
    def to_host(self, tensor: torch.Tensor) -> HostFuture:
        """Start a copy to the host; bf16 arrives as f32."""

    @abc.abstractmethod
    def memory(self) -> MemoryInfo:
        """Total and free device memory."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait for all work queued on the device."""

    # -- weights and quantised tensors -------------------------------------------------------
    @abc.abstractmethod
    def pack_weight(self, kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...]) -> PackedWeight:
        """Take ownership of a weight in checkpoint form and lay it out for this device."""

    @abc.abstractmethod
    def unpack_weight(self, weight: PackedWeight) -> CanonicalWeight:
        """The exact bits that were packed."""

    @abc.abstractmethod
    def to_canonical(self, q: QTensor) -> QTensor:
        """The same values in canonical layout."""

    @abc.abstractmethod
    def from_canonical(self, q: QTensor) -> QTensor:
        """The same values in the layout this backend's ops read."""

    # -- caches ------------------------------------------------------------------------------
    @abc.abstractmethod
    def kv_alloc(self, layout: KVLayout, num_blocks: int) -> KVCache:
        """Allocate a paged cache; its memory holds anything."""

    @abc.abstractmethod
    def kv_export(self, cache: KVCache, blocks: Array) -> Array:
        """Canonical bytes uint8 [len(blocks), block_bytes] of the given blocks."""

    @abc.abstractmethod
    def kv_import(self, cache: KVCache, blocks: Array, data: Array) -> None:
        """Write canonical bytes into the given blocks."""

    @abc.abstractmethod
    def kv_copy(self, cache: KVCache, source: Array, target: Array) -> None:
        """Copy whole blocks inside one cache."""

    # -- ops ---------------------------------------------------------------------------------
    @abc.abstractmethod
    def implementation(self, op: str) -> OpFunction | None:
        """This backend's own implementation of ``op``, or None for the composite."""

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        """(optional) Wrap a bound op, for tracing or checking; default: unchanged."""
        return function

    def capture(self, function: Callable[[], Any]) -> Graph:
        """(optional, only where ``caps.graphs``) Record one call of ``function`` for replay."""
        raise NotImplementedError(f"backend '{self.name}' declares no graphs")
