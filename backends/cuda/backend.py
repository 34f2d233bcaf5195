"""NVIDIA SM100 (B200, GB200) behind the contract: Triton kernels, CUTLASS matrix products, or their emulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tandem.backends.cuda import probing
from tandem.contract.backend import Array, Backend, Graph, HostFuture
from tandem.contract.capabilities import EMULATED, RUN_ON_DEVICE, Capabilities, MemoryInfo, Probe
from tandem.contract.opspec import CONTRACT_VERSION, OpFunction
from tandem.contract.types import CanonicalWeight, KVCache, KVLayout, PackedWeight, QFormat, QTensor, WeightKind
from tandem.errors import ConfigError

if TYPE_CHECKING:
    from tandem.backends.cuda.runtime import Runtime


class CudaBackend(Backend):
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
        from tandem.backends.cuda import weights

        return weights.pack(kind, weight, shape, self._runtime)

    def unpack_weight(self, weight: PackedWeight) -> CanonicalWeight:
        """Exact stored bits."""
        from tandem.backends.cuda import weights

        return weights.unpack(weight)

    def to_canonical(self, q: QTensor) -> QTensor:
        """Codes and scales, row-major."""
        from tandem.backends.cuda import activations

        return activations.to_canonical(q)

    def from_canonical(self, q: QTensor) -> QTensor:
        """mxfp8 with packed scales."""
        from tandem.backends.cuda import activations

        return activations.from_canonical(q)

    def kv_alloc(self, layout: KVLayout, num_blocks: int) -> KVCache:
        """Canonical memory with its scratch entry."""
        entries = num_blocks * layout.block_entries + 1
        return KVCache(layout, num_blocks, self.empty((entries, layout.entry_bytes), torch.uint8))

    def kv_export(self, cache: KVCache, blocks: Array) -> Array:
        """uint8 [len(blocks), block_bytes]."""
        found = self._blocks(cache)[self._index(blocks)].reshape(len(blocks), -1)
        return self.to_host(found).result()

    def kv_import(self, cache: KVCache, blocks: Array, data: Array) -> None:
        """Write whole blocks."""
        target = self._blocks(cache)
        target[self._index(blocks)] = self.from_host(data).view(len(blocks), *target.shape[1:])

    def kv_copy(self, cache: KVCache, source: Array, target: Array) -> None:
        """Copy whole blocks on the device."""
        view = self._blocks(cache)
        view[self._index(target)] = view[self._index(source)]

    def _index(self, blocks: Array) -> torch.Tensor:
        return self.from_host(blocks.astype(np.int64))

    def _blocks(self, cache: KVCache) -> torch.Tensor:
        layout = cache.layout
        return cache.data[:-1].view(cache.num_blocks, layout.block_entries, layout.entry_bytes)

    def implementation(self, op: str) -> OpFunction | None:
        """Own kernels; None for the composite."""
        return self._ops.get(op)

    def capture(self, function: Any) -> Graph:
        """Record the work that a call queues."""
        return self._runtime.capture(function)


BACKEND = CudaBackend
