"""What kernels ask of an Ascend device, and its emulation on host memory."""

from __future__ import annotations

import platform

from tandem.accelerator.runtime import HostRuntime, Runtime
from tandem.backends.ascend import native

LABEL = "emulated: Ascend C kernels on the host"


class NpuRuntime(Runtime):
    """A device, real or emulated."""

    backend = "ascend"


class EmulatedRuntime(HostRuntime, NpuRuntime):
    """Host memory; every call has finished when it returns.

    Raises:
        BackendLoadError: the emulated kernels were never built, or cannot be loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._library = native.library()

    def facts(self) -> dict[str, str]:
        return {"device": "none", "verification": LABEL, "machine": platform.machine(), **cores(self._library)}


def cores(library: native.AscendLibrary, index: int = 0) -> dict[str, str]:
    """What kernels tile by, in words."""
    found = library.facts(index)
    buffers = " ".join(f"{name.removesuffix('_bytes')} {size >> 10}" for name, size in found.items() if "bytes" in name)
    return {"cores": f"{found['cube_cores']} cube, {found['vector_cores']} vector", "buffers in KiB": buffers}
