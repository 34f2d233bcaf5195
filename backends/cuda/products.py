"""Matrix products: kernels of the native library on the device, its host reference where the device is emulated."""

from __future__ import annotations

from tandem.backends.cuda import products_host
from tandem.backends.cuda.runtime import Runtime
from tandem.contract.opspec import OpFunction

HOST_NOTE = "host reference of the CUDA library"


def implementations(runtime: Runtime) -> dict[str, OpFunction]:
    """linear, group_linear and grouped_linear, where the device can run them."""
    if not runtime.emulated:
        return {}
    return {
        "linear": products_host.linear,
        "group_linear": products_host.group_linear,
        "grouped_linear": products_host.grouped_linear,
    }


def notes(runtime: Runtime) -> dict[str, str]:
    """What stands beside these ops in tables."""
    return dict.fromkeys(implementations(runtime), HOST_NOTE)
