"""A backend whose name is known before its kernels exist: opening it says why it cannot run."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from tandem.contract.backend import Backend
from tandem.contract.capabilities import Probe
from tandem.contract.opspec import CONTRACT_VERSION
from tandem.errors import BackendLoadError


class AbsentBackend(Backend):
    """Registered by name only.

    Subclasses set ``name``, ``_device_file`` (made by the driver) and ``_package`` (the vendor's Python package).
    """

    contract = CONTRACT_VERSION
    _device_file: ClassVar[str]
    _package: ClassVar[str]

    @classmethod
    def probe(cls) -> Probe:
        """Look for the device file and the package; load nothing."""
        found = "present" if os.path.exists(cls._device_file) else "absent"
        try:
            version = importlib.metadata.version(cls._package)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        reason = f"this version has no {cls.name} kernels; {cls._device_file} is {found}"
        return Probe(False, reason, {"device_file": found, cls._package: version})

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> Backend:
        """Always raises: there is nothing to open."""
        raise BackendLoadError(
            f"backend '{cls.name}' was requested but cannot be opened",
            where=f"{cls.name}:{device_id}",
            why=cls.probe().reason,
            fix="set TANDEM_BACKEND=cpu to run on the CPU. No fallback was made",
        )
