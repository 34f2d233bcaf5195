"""What this backend brings for each op, by what the device can run."""

from __future__ import annotations

import importlib
import pkgutil

from tandem.backends.cuda import kernels, products
from tandem.backends.cuda.runtime import Runtime
from tandem.contract.opspec import OpFunction


def triton_ops() -> dict[str, OpFunction]:
    """The launchers of every kernel file by op name."""
    found: dict[str, OpFunction] = {}
    for module in pkgutil.iter_modules(kernels.__path__):
        if not module.name.startswith("_"):
            found |= importlib.import_module(f"{kernels.__name__}.{module.name}").OPS
    return found


def implementations(runtime: Runtime) -> dict[str, OpFunction]:
    """Own implementations by op name."""
    return triton_ops() | products.implementations(runtime)
