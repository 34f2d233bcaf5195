"""Facts about a machine for tables and errors, from files, metadata and variables alone: no library is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tandem.contract.versions import UNKNOWN, installed


@dataclass(frozen=True, slots=True)
class Traces:
    """What the driver, the toolkit and the package of a vendor leave on a machine.

    Args:
        device_file: made by the driver.
        package: the vendor's Python package.
        version_files: by name of a component, where its version is written; ``$NAME`` is the environment's.
        variables: shown as they are set.
        misnamed: variables that the vendor does not read -> the one that it reads.
    """

    device_file: str
    package: str
    version_files: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    misnamed: Mapping[str, str] = field(default_factory=dict)


def gather(traces: Traces) -> dict[str, str]:
    """Names and values as they are now."""
    found = "present" if os.path.exists(traces.device_file) else "absent"
    facts = {traces.device_file: found, **installed((traces.package,))}
    facts |= {name: version_in(os.path.expandvars(file)) for name, file in traces.version_files.items()}
    facts |= {name: os.environ.get(name, "unset") for name in traces.variables}
    odd = {name: meant for name, meant in traces.misnamed.items() if name in os.environ}
    return facts | {name: f"set, and not read: did you mean {meant}?" for name, meant in odd.items()}


def version_in(file: str) -> str:
    """The first word of a file that holds dotted numbers; ``unknown`` where there is none."""
    try:
        words = Path(file).read_text(encoding="utf-8", errors="replace").replace("=", " ").split()
    except OSError:
        return UNKNOWN
    return next((word for word in words if word[0].isdigit() and "." in word), UNKNOWN)
