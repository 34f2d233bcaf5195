"""Matrix products: CUTLASS kernels on the device, their host reference where it is emulated."""

from __future__ import annotations

from tandem.backends.cuda.runtime import Runtime
from tandem.contract.opspec import OpFunction


def implementations(runtime: Runtime) -> dict[str, OpFunction]:
    """linear, group_linear and grouped_linear, where the device can run them."""
    return {}
