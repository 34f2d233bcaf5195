"""A backend whose name is known before its kernels exist: opening it says why it cannot run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tandem.contract.backend import Backend
from tandem.contract.capabilities import Probe
from tandem.contract.environment import BACKEND
from tandem.contract.opspec import CONTRACT_VERSION
from tandem.contract.probing import checked
from tandem.contract.versions import UNKNOWN, installed
from tandem.errors import BackendLoadError


class AbsentBackend(Backend):
    """Registered by name only.

    Subclasses set ``name``, ``_device_file`` (made by the driver), ``_package`` (the vendor's Python package),
    ``_version_files`` (of driver and toolkit, by name: where their version is written; ``$NAME`` is the
    environment's), ``_variables`` (shown as they are set) and ``_misnamed`` (variables that the vendor does not read
    -> the one that it reads).
    """

    contract = CONTRACT_VERSION
    _device_file: ClassVar[str]
    _package: ClassVar[str]
    _version_files: ClassVar[Mapping[str, str]] = {}
    _variables: ClassVar[tuple[str, ...]] = ()
    _misnamed: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def probe(cls) -> Probe:
        """Look for files, the package and variables; load nothing."""
        found = "present" if os.path.exists(cls._device_file) else "absent"
        facts = {cls._device_file: found, **installed((cls._package,))}
        facts |= {name: _version_in(os.path.expandvars(file)) for name, file in cls._version_files.items()}
        facts |= {name: os.environ.get(name, "unset") for name in cls._variables}
        odd = {name: meant for name, meant in cls._misnamed.items() if name in os.environ}
        facts |= {name: f"set, and not read: did you mean {meant}?" for name, meant in odd.items()}
        return Probe(False, f"this version has no {cls.name} kernels; {cls._device_file} is {found}", facts)

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> Backend:
        """Always raises: there is nothing to open."""
        raise BackendLoadError(
            f"backend '{cls.name}' was requested but cannot be opened",
            where=f"{cls.name}:{device_id}",
            why=f"this version has no {cls.name} kernels. {checked(cls.probe())}",
            fix=f"set {BACKEND}=cpu to run the reference. No fallback was made",
        )


def _version_in(file: str) -> str:
    """The first word of a file that holds dotted numbers; ``unknown`` where there is none."""
    try:
        words = Path(file).read_text(encoding="utf-8", errors="replace").replace("=", " ").split()
    except OSError:
        return UNKNOWN
    return next((word for word in words if word[0].isdigit() and "." in word), UNKNOWN)
