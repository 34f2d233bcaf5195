"""The CPU backend: plain torch with native kernels where they are built."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

from tandem.backends.cpu import ops, weights
from tandem.backends.cpu.native import native_library, native_status
from tandem.contract.backend import Array
from tandem.contract.capabilities import Capabilities, MemoryInfo, OpCap, Probe
from tandem.contract.devices import check_index
from tandem.contract.host_memory import CanonicalCaches, HostArray, allocate, copy_in, copy_out
from tandem.contract.opspec import CONTRACT_VERSION, OpFunction
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, QTensor, WeightKind
from tandem.errors import ConfigError

LINEAR_WEIGHTS = frozenset({"bf16", "f32", "fp8_block32", "mxfp4"})


class CpuBackend(CanonicalCaches):
    """Host memory, torch's thread pool, one device.

    Options: ``native`` (default True): use the native kernels where they are built; False runs composites alone.
    """

    name = "cpu"
    contract = CONTRACT_VERSION

    def __init__(self, use_native: bool) -> None:
        self.device = torch.device("cpu")
        native = native_library() if use_native else None
        self._ops = ops.implementations(native)
        self._native_note = "native kernels" if native is not None else "composites only"
        op_caps = {name: OpCap("fused") for name in self._ops}
        held = frozenset({weights.LAYOUT})
        op_caps["linear"] = OpCap("fused", {"w": LINEAR_WEIGHTS, "x": frozenset({"bf16", "mxfp8"}), "layout": held})
        op_caps["group_linear"] = OpCap("fused", {"w": frozenset({"fp8_block32"}), "layout": held})
        op_caps["grouped_linear"] = OpCap("fused", {"w": frozenset({"mxfp4", "fp8_block32"}), "layout": held})
        self._caps = Capabilities(
            contract=CONTRACT_VERSION,
            formats=frozenset(f.value for f in QFormat),
            ops=op_caps,
            batch_invariant=True,
            graphs=False,
            notes=self._native_note,
        )

    @classmethod
    def probe(cls) -> Probe:
        """A CPU is always there; the facts say whether the native kernels are."""
        status = native_status()
        threads = "torch's OpenMP threads" if status.parallel else "one thread"
        kernels = f"{status.isa}, {threads}" if status.available else f"none, composites only: {status.reason}"
        return Probe(True, "host processor", {"machine": platform.machine(), "native": kernels}, accelerator=False)

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> CpuBackend:
        """Open the host processor; the only device index is 0."""
        check_index(cls.name, device_id, 1, "the host processor")
        unknown = sorted(set(options) - {"native"})
        if unknown:
            raise ConfigError(
                f"unknown backend option {', '.join(unknown)}",
                where="backend 'cpu'",
                why="it takes the option 'native' only",
                fix="remove the option",
            )
        return cls(bool(options.get("native", True)))

    def close(self) -> None:
        """Nothing to release."""

    @property
    def caps(self) -> Capabilities:
        """Capabilities; everything is batch-invariant, nothing is captured."""
        return self._caps

    def fingerprint(self) -> dict[str, str]:
        """What can change a bit: processor, torch, thread count, native kernels."""
        return {
            "backend": self.name,
            "machine": platform.machine(),
            "processor": platform.processor() or "unknown",
            "torch": torch.__version__,
            "threads": str(torch.get_num_threads()),
            "kernels": self._native_note,
            "isa": native_status().isa,
        }

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised host memory.

        Raises:
            CapacityError: there is not that much.
        """
        return allocate(shape, dtype, self.device, self.name)

    def from_host(self, array: Array, out: torch.Tensor | None = None) -> torch.Tensor:
        """Copy; the source may be reused on return."""
        return copy_in(array, out)

    def to_host(self, tensor: torch.Tensor) -> HostArray:
        """Copy, finished on return."""
        return copy_out(tensor)

    def memory(self) -> MemoryInfo:
        """Total and available host memory from /proc; zeros elsewhere."""
        try:
            with open("/proc/meminfo", encoding="ascii") as lines:
                table = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        except (OSError, ValueError, IndexError):
            return MemoryInfo(0, 0)
        return MemoryInfo(table.get("MemTotal", 0), table.get("MemAvailable", 0))

    def synchronize(self) -> None:
        """Work is done when a call returns."""

    def pack_weight(self, kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...]) -> PackedWeight:
        """Matrices become bf16; the Engram table stays mapped."""
        return weights.pack(kind, weight, shape)

    def unpack_weight(self, weight: PackedWeight) -> CanonicalWeight:
        """Exact stored bits."""
        return weights.unpack(weight)

    def to_canonical(self, q: QTensor) -> QTensor:
        """Codes and scales, row-major."""
        return ops.to_canonical(q)

    def from_canonical(self, q: QTensor) -> QTensor:
        """mxfp8 as f32 values."""
        return ops.from_canonical(q)

    def implementation(self, op: str) -> OpFunction | None:
        """Own implementations of ``ops.py``; None elsewhere."""
        return self._ops.get(op)


BACKEND = CpuBackend
