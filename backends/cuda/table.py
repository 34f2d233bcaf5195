"""What this backend brings for each op, by what the device can run."""

from __future__ import annotations

from tandem.accelerator.kernels import launchers
from tandem.backends.cuda import kernels, products
from tandem.backends.cuda.runtime import GpuRuntime
from tandem.contract.opspec import OpFunction


def triton_ops() -> dict[str, OpFunction]:
    """The launchers of every kernel file by op name."""
    return launchers(kernels)


def implementations(runtime: GpuRuntime) -> dict[str, OpFunction]:
    """Own implementations by op name."""
    return triton_ops() | products.implementations(runtime)
