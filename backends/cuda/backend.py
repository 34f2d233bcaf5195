"""NVIDIA SM100 (B200, GB200) behind the contract: Triton kernels, CUTLASS matrix products, or their emulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tandem.backends.cuda import activations, probing, weights
from tandem.backends.cuda.runtime import Runtime
from tandem.contract.backend import Array, Backend, Graph, HostFuture
from tandem.contract.capabilities import EMULATED, RUN_ON_DEVICE, Capabilities, MemoryInfo, Probe
from tandem.contract.host_memory import CanonicalCaches
from tandem.contract.opspec import CONTRACT_VERSION, OpFunction
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, QTensor, WeightKind
from tandem.errors import ConfigError


class CudaBackend(CanonicalCaches):
    """One GPU of compute capability 10.0 or 9.0, or an emulated one (``TANDEM_EMULATE=1``)."""

    name = "cuda"
    contract = CONTRACT_VERSION

    def __init__(self, runtime: Runtime) -> None:
        from tandem.backends.cuda import products, records, table

        self._runtime = runtime
        self.device = runtime.device
        self._ops = table.implementations(runtime)
        self._caps = Capabilities(
            contract=CONTRACT_VERSION,
            formats=frozenset(f.value for f in QFormat),
            ops=records.records(self._ops, products.notes(runtime)),
            # Elsewhere products are the library's of torch, which picks kernels by the number of rows.
            batch_invariant=runtime.capability == products.SM100,
            graphs=not runtime.emulated,
            notes=f"compute capability {probing.version(runtime.capability)}",
            verification=EMULATED if runtime.emulated else RUN_ON_DEVICE,
        )

    @classmethod
    def probe(cls) -> Probe:
        """Look for driver files and packages; load nothing."""
        return probing.probe()

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> Backend:
        """Open a device, or the emulated one.

        Raises:
            BackendLoadError: no driver, no device, an old one, or one beside which emulation was asked for.
        """
        if options:
            raise ConfigError(
                f"unknown backend option {', '.join(sorted(options))}",
                where="backend 'cuda'",
                why="it takes no options",
                fix="remove the option",
            )
        return cls(probing.open_runtime(device_id))

    def close(self) -> None:
        """Nothing is held beyond the objects themselves."""

    @property
    def caps(self) -> Capabilities:
        """Capabilities of the device."""
        return self._caps

    def fingerprint(self) -> dict[str, str]:
        """Device, libraries, and how results come about."""
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

    def pack_weight(self, kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...]) -> PackedWeight:
        """Codes as stored, scales as matrix products read them."""
        return weights.pack(kind, weight, shape, self._runtime)

    def unpack_weight(self, weight: PackedWeight) -> CanonicalWeight:
        """Exact stored bits."""
        return weights.unpack(weight)

    def to_canonical(self, q: QTensor) -> QTensor:
        """Codes and scales, row-major."""
        return activations.to_canonical(q)

    def from_canonical(self, q: QTensor) -> QTensor:
        """mxfp8 with packed scales."""
        return activations.from_canonical(q)

    def implementation(self, op: str) -> OpFunction | None:
        """Own kernels; None for the composite."""
        return self._ops.get(op)

    def capture(self, function: Any) -> Graph:
        """Record the work that a call queues."""
        return self._runtime.capture(function)


BACKEND = CudaBackend
