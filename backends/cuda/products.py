"""Matrix products: kernels of the CUDA library on the device, its host reference where the device is emulated."""

from __future__ import annotations

from tandem.backends.cuda import native, products_host
from tandem.backends.cuda.products_device import DeviceProducts
from tandem.backends.cuda.runtime import GpuRuntime
from tandem.contract.opspec import OpFunction
from tandem.errors import BackendLoadError

OPS = ("linear", "group_linear", "grouped_linear")
SM100 = (10, 0)
HOST_NOTE = "host reference of the CUDA library"
DEVICE_NOTE = "CUDA library"


def implementations(runtime: GpuRuntime) -> dict[str, OpFunction]:
    """The three products where the device can run them; elsewhere the composites do.

    Raises:
        BackendLoadError: the device can run them and the library is not there.
    """
    if runtime.emulated:
        return {op: getattr(products_host, op) for op in OPS}
    if runtime.capability != SM100:
        return {}
    library = native.library()
    if library is None:
        status = native.library_status()
        raise BackendLoadError(
            "the matrix products of backend 'cuda' are missing",
            where=status.path,
            why=status.reason,
            fix="build the library with `make cuda`",
        )
    products = DeviceProducts(library)
    return {op: getattr(products, op) for op in OPS}


def notes(runtime: GpuRuntime) -> dict[str, str]:
    """What stands beside these ops in tables."""
    if runtime.emulated:
        return dict.fromkeys(OPS, HOST_NOTE)
    return dict.fromkeys(OPS, DEVICE_NOTE) if runtime.capability == SM100 else {}
