"""The cuda backend's registration: its name is known, and opening it says why it cannot run yet."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any

from tandem.contract.backend import Backend
from tandem.contract.capabilities import Probe
from tandem.contract.opspec import CONTRACT_VERSION
from tandem.errors import BackendLoadError

DEVICE_FILE = "/dev/nvidiactl"

PACKAGE = "triton"


class CudaBackend(Backend):
    """NVIDIA SM100 (B200, GB200); its kernels are not part of this version."""

    name = "cuda"
    contract = CONTRACT_VERSION

    @classmethod
    def probe(cls) -> Probe:
        """Look at the device file; load nothing."""
        found = "present" if os.path.exists(DEVICE_FILE) else "absent"
        reason = f"this version has no cuda kernels; {DEVICE_FILE} is {found}"
        return Probe(False, reason, {"device_file": found, PACKAGE: _version(PACKAGE)})

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> Backend:
        """Always raises: there is nothing to open."""
        raise BackendLoadError(
            "backend 'cuda' was requested but cannot be opened",
            where=f"cuda:{device_id}",
            why=cls.probe().reason,
            fix="set TANDEM_BACKEND=cpu to run on the CPU. No fallback was made",
        )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


BACKEND = CudaBackend
