"""NVIDIA SM100 (B200, GB200) behind the contract: Triton kernels, CUTLASS matrix products, or their emulation.

The class is loaded and probed without torch: methods import what needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.accelerator.backend import AcceleratorBackend
from tandem.accelerator.kernels import records
from tandem.accelerator.refusals import check_options
from tandem.backends.cuda import probing
from tandem.contract.backend import Backend
from tandem.contract.capabilities import EMULATED, RUN_ON_DEVICE, Capabilities, Probe
from tandem.contract.opspec import CONTRACT_VERSION
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, QTensor, WeightKind

if TYPE_CHECKING:
    from tandem.backends.cuda.runtime import GpuRuntime


class CudaBackend(AcceleratorBackend):
    """One GPU of compute capability 10.0 or 9.0, or an emulated one (``TANDEM_EMULATE=1``)."""

    name = "cuda"
    contract = CONTRACT_VERSION

    def __init__(self, runtime: GpuRuntime) -> None:
        from tandem.backends.cuda import products, table
        from tandem.backends.cuda.records import ALLOWS

        ops = table.implementations(runtime)
        caps = Capabilities(
            contract=CONTRACT_VERSION,
            formats=frozenset(f.value for f in QFormat),
            ops=records(ops, ALLOWS, products.notes(runtime)),
            # Elsewhere products are the library's of torch, which picks kernels by the number of rows.
            batch_invariant=runtime.capability == products.SM100,
            graphs=not runtime.emulated,
            notes=f"compute capability {probing.version(runtime.capability)}",
            verification=EMULATED if runtime.emulated else RUN_ON_DEVICE,
        )
        super().__init__(runtime, ops, caps)

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
        check_options(cls.name, options)
        return cls(probing.open_runtime(device_id))

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


BACKEND = CudaBackend
