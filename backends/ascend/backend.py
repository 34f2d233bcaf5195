"""Huawei Ascend 950 behind the contract: Ascend C kernels on the device, or the same kernels emulated on the host.

The class is loaded and probed without torch: methods import what needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.accelerator.backend import AcceleratorBackend
from tandem.accelerator.kernels import records
from tandem.accelerator.refusals import check_options
from tandem.backends.ascend import probing
from tandem.contract.backend import Backend
from tandem.contract.capabilities import EMULATED, RUN_ON_DEVICE, Capabilities, Probe
from tandem.contract.opspec import CONTRACT_VERSION
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, QTensor, WeightKind

if TYPE_CHECKING:
    from tandem.backends.ascend.runtime import NpuRuntime


class AscendBackend(AcceleratorBackend):
    """One NPU of the Ascend 950 series, or an emulated one (``TANDEM_EMULATE=1``)."""

    name = "ascend"
    contract = CONTRACT_VERSION

    def __init__(self, runtime: NpuRuntime) -> None:
        from tandem.backends.ascend import table
        from tandem.backends.ascend.records import ALLOWS

        ops = table.implementations()
        caps = Capabilities(
            contract=CONTRACT_VERSION,
            formats=frozenset(f.value for f in QFormat),
            ops=records(ops, ALLOWS, {}),
            batch_invariant=True,
            graphs=not runtime.emulated,
            notes="dav-3510",
            verification=EMULATED if runtime.emulated else RUN_ON_DEVICE,
        )
        super().__init__(runtime, ops, caps)

    @classmethod
    def probe(cls) -> Probe:
        """Look for driver files, packages and variables; load nothing."""
        return probing.probe()

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> Backend:
        """Open a device, or the emulated one.

        Raises:
            BackendLoadError: driver, device, toolkit, a library or the kernels are missing, or the chip is another.
            VersionError: torch and torch-npu do not go together.
        """
        check_options(cls.name, options)
        return cls(probing.open_runtime(device_id))

    def pack_weight(self, kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...]) -> PackedWeight:
        """Codes as stored, scales as matrix products read them."""
        from tandem.backends.ascend import weights

        return weights.pack(kind, weight, shape, self._runtime)

    def unpack_weight(self, weight: PackedWeight) -> CanonicalWeight:
        """Exact stored bits."""
        from tandem.backends.ascend import weights

        return weights.unpack(weight)

    def to_canonical(self, q: QTensor) -> QTensor:
        """Codes and scales, row-major."""
        from tandem.backends.ascend import activations

        return activations.to_canonical(q)

    def from_canonical(self, q: QTensor) -> QTensor:
        """mxfp8 with scales in even numbers."""
        from tandem.backends.ascend import activations

        return activations.from_canonical(q)


BACKEND = AscendBackend
