"""The CPU backend: native kernels, or plain torch where that is asked for.

The class is loaded and probed without torch: methods import what needs it.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tandem.accelerator.kernels import launchers, records
from tandem.backends.cpu.loading import native_status
from tandem.contract.backend import Array, Backend, Graph
from tandem.contract.capabilities import Capabilities, MemoryInfo, Probe
from tandem.contract.devices import check_index
from tandem.contract.host_memory import CanonicalCaches, HostArray, allocate, copy_in, copy_out
from tandem.contract.opspec import CONTRACT_VERSION, OpFunction
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, QTensor, WeightKind
from tandem.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from tandem.backends.cpu import recording


class CpuBackend(CanonicalCaches):
    """Host memory, torch's thread pool, one device.

    Options: ``native`` (default True): run the native kernels; False runs composites alone, which are slow.

    Raises:
        BackendLoadError: native kernels are wanted and not built.
    """

    name = "cpu"
    contract = CONTRACT_VERSION

    def __init__(self, use_native: bool) -> None:
        import torch

        from tandem.backends.cpu import kernels, memory, native
        from tandem.backends.cpu.records import ALLOWS

        self.device = torch.device("cpu")
        self._library = native.library() if use_native else None
        self._ops: dict[str, OpFunction] = launchers(kernels) if use_native else {}
        self._native_note = "native kernels" if use_native else "composites only"
        self._arena = memory.Arena()
        self._recordings = threading.local()  # memory: engines that share a backend run in threads of their own
        self._caps = Capabilities(
            contract=CONTRACT_VERSION,
            formats=frozenset(f.value for f in QFormat),
            ops=records(self._ops, ALLOWS, {}),
            batch_invariant=True,
            # Who wraps ops wants to see every call.
            graphs=use_native and type(self).wrap_op is Backend.wrap_op,
            notes=self._native_note,
            composite_graphs=False,
        )

    @classmethod
    def probe(cls) -> Probe:
        """A CPU is always there; the facts say whether the native kernels are."""
        status = native_status()
        threads = "torch's OpenMP threads" if status.parallel else "one thread"
        found = f"{status.isa}, {threads}" if status.available else f"none: {status.reason}"
        return Probe(True, "host processor", {"machine": platform.machine(), "native": found}, accelerator=False)

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
        """Release the memory of steps."""
        from tandem.backends.cpu import temporary

        temporary.give_back()

    @property
    def caps(self) -> Capabilities:
        """Capabilities; everything is batch-invariant."""
        return self._caps

    def fingerprint(self) -> dict[str, str]:
        """What can change a bit: processor, torch, thread count, native kernels."""
        import torch

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
        from tandem.backends.cpu import memory

        try:
            large = memory.empty(shape, dtype)
        except (OSError, OverflowError):
            large = None  # torch says why there is not that much
        return allocate(shape, dtype, self.device, self.name) if large is None else large

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
        """As stored, the output head with a screen for its kernel; tables whose rows are gathered stay mapped."""
        from tandem.backends.cpu import weights

        packed = weights.pack(self._arena, kind, weight, shape)
        return packed if self._library is None else weights.screened(self._arena, packed)

    def unpack_weight(self, weight: PackedWeight) -> CanonicalWeight:
        """Exact stored bits."""
        from tandem.backends.cpu import weights

        return weights.unpack(weight)

    def to_canonical(self, q: QTensor) -> QTensor:
        """Codes and scales, row-major, as they are."""
        from tandem.backends.cpu import activations

        return activations.canonical("to_canonical", q)

    def from_canonical(self, q: QTensor) -> QTensor:
        """The kernels read canonical codes and scales."""
        from tandem.backends.cpu import activations

        return activations.canonical("from_canonical", q)

    def implementation(self, op: str) -> OpFunction | None:
        """The launcher of the native kernel; None where there is none."""
        return self._ops.get(op)

    def capture(self, function: Callable[[], Any]) -> Graph:
        """Write down the kernels that one call of ``function`` starts; nothing runs.

        Raises:
            KernelError: something else than kernels would compute.
        """
        if self._library is None:
            return super().capture(function)
        from tandem.backends.cpu import recording

        return recording.record(self._library, self._step_memory(), function)

    def _step_memory(self) -> recording.Memory:
        """Memory of the arrays of steps that this thread writes down."""
        from tandem.backends.cpu import recording

        memory: recording.Memory | None = getattr(self._recordings, "memory", None)
        if memory is None:
            memory = self._recordings.memory = recording.Memory()
        return memory


BACKEND = CpuBackend
