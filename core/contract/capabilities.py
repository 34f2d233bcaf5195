"""What a backend can do, as frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# How results of an open backend come about; every report and table of them says it.
RUN_ON_DEVICE, EMULATED = "run on device", "emulated"


def labelled(name: str, verification: str) -> str:
    """A name or level as it is shown: what was not run on a device says so."""
    return name if verification == RUN_ON_DEVICE else f"{name} ({verification})"


@dataclass(frozen=True, slots=True)
class OpCap:
    """Capability of one op on one backend.

    Args:
        impl: ``fused`` (own implementation), ``composite`` or ``absent``.
        allows: for an attribute name, the values that work; an attribute not named is not restricted.
        notes: shown in tables and errors.
    """

    impl: str
    allows: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of an open backend.

    Args:
        contract: (major, minor) it implements.
        formats: names of `QFormat` values it computes with.
        ops: records for ops it overrides or restricts; an op without a record is an unrestricted composite.
        batch_invariant: row results do not depend on the batch, bitwise.
        graphs: decode steps can be captured and replayed.
        composite_graphs: captures hold what torch computes in composites too, not only the backend's own kernels.
        notes: free text for tables.
        verification: ``run on device``, or ``emulated`` where the host computes what the device would.
    """

    contract: tuple[int, int]
    formats: frozenset[str]
    ops: Mapping[str, OpCap]
    batch_invariant: bool
    graphs: bool
    notes: str = ""
    verification: str = RUN_ON_DEVICE
    composite_graphs: bool = True


@dataclass(frozen=True, slots=True)
class Probe:
    """What can be said of a backend without opening it.

    Args:
        present: the hardware and libraries look usable.
        reason: why not, or what was found.
        facts: names and versions for tables.
        accelerator: takes part in automatic selection.
    """

    present: bool
    reason: str
    facts: Mapping[str, str] = field(default_factory=dict)
    accelerator: bool = True


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Device memory in bytes; zero where unknown."""

    total: int
    free: int
