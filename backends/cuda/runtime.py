"""What kernels ask of an SM100 device, and its emulation on host memory."""

from __future__ import annotations

import importlib
import platform

from tandem.accelerator.runtime import HostRuntime, Runtime
from tandem.backends.cuda.emulation import LABEL


class GpuRuntime(Runtime):
    """A device, real or emulated.

    Attributes:
        capability: compute capability, (10, 0) for SM100.
    """

    backend = "cuda"
    capability: tuple[int, int]


class EmulatedRuntime(HostRuntime, GpuRuntime):
    """Host memory; every call has finished when it returns."""

    capability = (10, 0)

    def facts(self) -> dict[str, str]:
        libraries = {name: str(importlib.import_module(name).__version__) for name in ("triton", "numpy")}
        return {"device": "none", "verification": LABEL, "machine": platform.machine(), **libraries}
