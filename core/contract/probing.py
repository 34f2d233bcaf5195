"""What can be said of every registered backend without opening one."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from tandem.contract.capabilities import Probe
from tandem.contract.registry import Registration, registrations

PRESENT, ABSENT, FAILED = "present", "absent", "failed"


@dataclass(frozen=True, slots=True)
class Probed:
    """A registration and what became of its probe.

    Args:
        registration: what was probed.
        probe: its answer; where it raised, an absent one whose reason is the error.
        contract: version that the class declares; None where it could not be loaded.
        trace: traceback of a registration or probe that raised, else empty.
    """

    registration: Registration
    probe: Probe
    contract: tuple[int, int] | None = None
    trace: str = ""

    @property
    def failed(self) -> bool:
        """Whether loading the class or probing it raised."""
        return bool(self.trace)

    @property
    def state(self) -> str:
        """``present``, ``absent`` or ``failed``."""
        return FAILED if self.failed else PRESENT if self.probe.present else ABSENT

    def summary(self) -> str:
        """The reason in one line."""
        return self.probe.reason.strip().splitlines()[0]

    def rejected(self) -> str:
        """Why automatic selection does not take it, in one line."""
        return self.summary() if self.probe.accelerator else f"{self.summary()}, which is no accelerator"

    def broken(self) -> str:
        """One line that names backend, package and error."""
        registration = self.registration
        return f"backend '{registration.name}' (from {registration.origin}): {self.summary()}"


def probe(registration: Registration) -> Probed:
    """Load and probe one; an exception is kept with its traceback."""
    contract = None
    try:
        backend_class = registration.load()
        contract = backend_class.contract
        return Probed(registration, backend_class.probe(), contract)
    except Exception as error:
        step = "its registration failed" if contract is None else "its probe failed"
        reason = f"{step}: {type(error).__name__}: {error}"
        return Probed(registration, Probe(False, reason), contract, traceback.format_exc())


def probe_all() -> dict[str, Probed]:
    """Every registered backend by name."""
    return {name: probe(registration) for name, registration in registrations().items()}


def checked(probe: Probe) -> str:
    """The facts of a probe, as an error tells them; empty without facts."""
    return f"Checked: {', '.join(f'{name}={value}' for name, value in probe.facts.items())}" if probe.facts else ""
