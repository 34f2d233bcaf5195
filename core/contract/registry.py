"""Which backends exist and which one a run uses."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
import pkgutil
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tandem.backends
from tandem.contract.backend import Backend
from tandem.contract.capabilities import Probe
from tandem.contract.opspec import CONTRACT_VERSION
from tandem.errors import BackendLoadError, BackendNotFound, ConfigError, ContractError

ENTRY_POINTS = "tandem.backends"
ENVIRONMENT = "TANDEM_BACKEND"


@dataclass(frozen=True, slots=True)
class Registration:
    """A registered backend: its name, where it comes from and how it is imported."""

    name: str
    origin: str
    target: str  # module:attribute

    def load(self) -> type[Backend]:
        """Import the backend class; the module imports no vendor library."""
        module, _, attribute = self.target.partition(":")
        found: type[Backend] = getattr(importlib.import_module(module), attribute)
        return found


def registrations() -> dict[str, Registration]:
    """All registered backends: those shipped in `tandem.backends`, then installed entry points."""
    found: dict[str, Registration] = {}
    for module in pkgutil.iter_modules(tandem.backends.__path__):
        if module.ispkg:
            target = f"tandem.backends.{module.name}.backend:BACKEND"
            found[module.name] = Registration(module.name, "tandem", target)
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.value.startswith("tandem.backends."):
            continue
        if entry.name in found:
            raise ContractError(
                f"two backends are called '{entry.name}'",
                where=f"entry point {entry.value}",
                why=f"the name is taken by {found[entry.name].target}",
                fix="rename or uninstall one of them",
            )
        origin = entry.dist.name if entry.dist is not None else "entry point"
        found[entry.name] = Registration(entry.name, origin, entry.value)
    return found


def probe_all() -> dict[str, Probe]:
    """Probe every registered backend; a registration that raises is reported with its traceback."""
    probes: dict[str, Probe] = {}
    for name, registration in registrations().items():
        try:
            probes[name] = registration.load().probe()
        except Exception:
            probes[name] = Probe(False, f"its registration failed:\n{traceback.format_exc()}")
    return probes


def parse_selector(selector: str, origin: str = "argument") -> tuple[str, int]:
    """'name' or 'name:index' -> (name, index); ``origin`` says in errors where it was given.

    Raises:
        ConfigError: the index is not a number, or stands behind ``auto``.
    """
    name, separator, index = selector.partition(":")
    why = ""
    if not name:
        why = "it has no name"
    elif separator and name == "auto":
        why = "automatic selection takes no index"
    elif separator and not (index.isascii() and index.isdecimal()):
        why = f"'{index}' is not a device index"
    if why:
        raise ConfigError(
            f"'{selector}' is not a backend selector",
            where=f"backend selection, from {origin}",
            why=why,
            fix="write name or name:index, for example cpu or cpu:0",
        )
    return name, int(index) if index else 0


def select(explicit: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The selector to use: explicit, else the environment, else automatic.

    Automatic: exactly one accelerator present is taken; several are an error; none gives the CPU with one warning,
    or an error where TANDEM_REQUIRE_ACCELERATOR=1.
    """
    environment = os.environ if environ is None else environ
    chosen = explicit or environment.get(ENVIRONMENT) or "auto"
    if chosen != "auto":
        return chosen
    present = [name for name, probe in probe_all().items() if probe.present and probe.accelerator]
    if len(present) == 1:
        return present[0]
    if len(present) > 1:
        raise BackendLoadError(
            "more than one accelerator is present",
            where="backend selection",
            why=f"found {', '.join(present)} and none was named",
            fix=f"set {ENVIRONMENT} to one of them",
        )
    if environment.get("TANDEM_REQUIRE_ACCELERATOR") == "1":
        reasons = "; ".join(f"{n}: {p.reason.splitlines()[0]}" for n, p in probe_all().items() if p.accelerator)
        raise BackendLoadError(
            "no accelerator is present",
            where="backend selection with TANDEM_REQUIRE_ACCELERATOR=1",
            why=reasons or "no accelerator backend is registered",
            fix="install the driver, or unset TANDEM_REQUIRE_ACCELERATOR to run on the CPU",
        )
    warnings.warn(
        f"no accelerator found, running on the CPU (set {ENVIRONMENT}=cpu to choose it silently)", stacklevel=4
    )
    return "cpu"


def resolve(selector: str | None = None, origin: str = "argument") -> tuple[Registration, int]:
    """The registration and device index that a run would use, without opening anything.

    Args:
        selector: ``name[:index]``; None takes the environment, or chooses automatically.
        origin: where the selector was given, for errors.
    Raises:
        BackendNotFound: the name is not registered.
        BackendLoadError: automatic selection finds no or several accelerators where that matters.
        ConfigError: the selector cannot be read.
    """
    if selector is None and os.environ.get(ENVIRONMENT):
        selector, origin = os.environ[ENVIRONMENT], f"environment {ENVIRONMENT}"
    chosen = select(selector)
    name, index = parse_selector(chosen, origin)
    known = registrations()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        listing = ", ".join(f"{r.name} (from {r.origin})" for r in known.values())
        given = f"{ENVIRONMENT}='{chosen}'" if origin.startswith("environment") else f"backend '{chosen}'"
        raise BackendNotFound(
            f"{given} is not registered",
            where=f"backend selection, from {origin}",
            why=f"{hint}Registered: {listing}",
            fix="use a registered name, or install the package that provides the backend",
        )
    return known[name], index


def open_backend(
    selector: str | None = None, options: Mapping[str, Any] | None = None, origin: str = "argument"
) -> Backend:
    """Open a backend; a named one never falls back to another.  Arguments as for `resolve`.

    Raises:
        BackendNotFound: the name is not registered.
        BackendLoadError: it is registered but cannot be opened.
        ContractError: it implements another contract.
    """
    registration, index = resolve(selector, origin)
    name = registration.name
    try:
        backend_class = registration.load()
    except Exception as error:
        raise BackendLoadError(
            f"backend '{name}' was requested but its registration failed",
            where=registration.target,
            why=f"{type(error).__name__}: {error}",
            fix="repair or uninstall the package. No fallback was made",
        ) from error
    major, minor = backend_class.contract
    if major != CONTRACT_VERSION[0] or minor < CONTRACT_VERSION[1]:
        raise ContractError(
            f"backend '{name}' implements contract {major}.{minor}",
            where=registration.target,
            why=f"core needs {CONTRACT_VERSION[0]}.{CONTRACT_VERSION[1]} or a later minor",
            fix="install a matching version of the backend",
        )
    return backend_class.open(index, options or {})
