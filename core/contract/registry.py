"""Which backends exist and which one a run uses.

Nothing here imports torch before a backend class is loaded, so that what is registered can be shown where torch
itself cannot be imported.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
import pkgutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tandem.backends
from tandem.contract.environment import BACKEND as ENVIRONMENT
from tandem.contract.environment import REQUIRE_ACCELERATOR, look_alikes, not_read
from tandem.contract.opening import open_registered
from tandem.errors import BackendLoadError, BackendNotFound, ConfigError, ContractError

if TYPE_CHECKING:
    from tandem.contract.backend import Backend

ENTRY_POINTS = "tandem.backends"
_OWN = "tandem.backends."
_CORE = "tandem"  # origin of what is shipped here


@dataclass(frozen=True, slots=True)
class Registration:
    """A registered backend: its name, the distribution it comes from and how it is imported."""

    name: str
    origin: str
    target: str  # module:attribute

    def load(self) -> type[Backend]:
        """Import the backend class; the module imports no vendor library.

        Raises:
            ContractError: what is registered is no backend class, one without name or version, or one of another
                package that lies under `tandem.backends`.
        """
        from tandem.contract.backend import Backend

        if self.target.startswith(_OWN) and self.origin != _CORE:
            raise ContractError(
                f"backend '{self.name}' lies in a package that is not its own",
                where=f"{self.target} of {self.origin}",
                why=f"{_OWN.rstrip('.')} holds the backends that are shipped with Tandem",
                fix="move it to a top-level package of its own",
            )
        module, _, attribute = self.target.partition(":")
        found: Any = getattr(importlib.import_module(module), attribute)
        why = ""
        if not (isinstance(found, type) and issubclass(found, Backend)):
            why = f"{found!r} is no subclass of tandem.contract.backend.Backend"
        elif absent := [name for name in ("name", "contract") if not hasattr(found, name)]:
            why = f"the class sets no {', '.join(absent)}"
        if why:
            raise ContractError(
                f"backend '{self.name}' is no backend", where=self.target, why=why, fix="correct the class"
            )
        backend_class: type[Backend] = found
        return backend_class


def collect() -> tuple[dict[str, Registration], list[Registration]]:
    """(registered backends by name, registrations whose name was taken): those shipped here, then entry points."""
    found: dict[str, Registration] = {}
    clashes: list[Registration] = []
    for module in pkgutil.iter_modules(tandem.backends.__path__):
        if module.ispkg:
            found[module.name] = Registration(module.name, _CORE, f"{_OWN}{module.name}.backend:BACKEND")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.value.startswith(_OWN) and entry.name in found:
            continue  # what was found above, as this package's own entry points name it
        origin = entry.dist.name if entry.dist is not None else "entry point"
        registration = Registration(entry.name, origin, entry.value)
        if found.setdefault(entry.name, registration) != registration:
            clashes.append(registration)
    return found, clashes


def registrations() -> dict[str, Registration]:
    """All registered backends: those shipped in `tandem.backends`, then installed entry points.

    Raises:
        ContractError: two have the same name.
    """
    found, clashes = collect()
    for taken in clashes:
        raise clash(found[taken.name], taken)
    return found


def clash(first: Registration, taken: Registration) -> ContractError:
    """The error of a registration whose name the first one has."""
    return ContractError(
        f"two backends are called '{taken.name}'",
        where=f"entry point {taken.target} of {taken.origin}",
        why=f"the name is taken by {first.target} of {first.origin}",
        fix="rename or uninstall one of them",
    )


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
    or an error where TANDEM_REQUIRE_ACCELERATOR=1.  Registrations that failed are named in the warning.

    Raises:
        BackendLoadError: no or several accelerators where that matters.
        ConfigError: nothing was chosen, but a variable is set that looks like TANDEM_BACKEND.
    """
    environment = os.environ if environ is None else environ
    chosen = explicit or environment.get(ENVIRONMENT)
    if not chosen:
        refuse_look_alikes(environment)
    if chosen and chosen != "auto":
        return chosen
    from tandem.contract.probing import probe_all

    probes = probe_all()
    failed = "".join(f"; {e.broken()}" for e in probes.values() if e.failed)
    present = [name for name, found in probes.items() if found.probe.present and found.probe.accelerator]
    if len(present) > 1:
        raise BackendLoadError(
            "more than one accelerator is present",
            where="backend selection",
            why=f"found {', '.join(present)} and none was named",
            fix=f"set {ENVIRONMENT} to one of them",
        )
    if present:
        if failed:
            warnings.warn(f"running on {present[0]}, the only accelerator found{failed}", stacklevel=4)
        return present[0]
    if environment.get(REQUIRE_ACCELERATOR) == "1":
        reasons = "; ".join(f"{name}: {found.rejected()}" for name, found in probes.items())
        raise BackendLoadError(
            "no accelerator is present",
            where=f"backend selection with {REQUIRE_ACCELERATOR}=1",
            why=reasons,
            fix=f"install the driver, or unset {REQUIRE_ACCELERATOR} to run on the CPU",
        )
    choice = f"set {ENVIRONMENT}=cpu to choose it silently"
    warnings.warn(f"no accelerator found, running on the CPU ({choice}){failed}", stacklevel=4)
    return "cpu"


def refuse_look_alikes(environ: Mapping[str, str]) -> None:
    """Refuse to choose by ourselves where someone seems to have chosen under another name.

    Raises:
        ConfigError: TANDEM_BACKEND is not set, and something that looks like it is.
    """
    for name, meant in look_alikes(environ).items():
        if meant == ENVIRONMENT and not environ.get(ENVIRONMENT):
            raise not_read(name, meant, environ[name])


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
        given = f"{ENVIRONMENT}='{chosen}'" if origin.startswith("environment") else f"backend '{chosen}'"
        raise BackendNotFound(
            f"{given} is not registered",
            where=f"backend selection, from {origin}",
            why=f"{_meant(name, known)}Registered: {_listing(known)}",
            fix="use a registered name, or install the package that provides the backend",
        )
    return known[name], index


def open_backend(
    selector: str | None = None, options: Mapping[str, Any] | None = None, origin: str = "argument"
) -> Backend:
    """Open a backend; a named one never falls back to another.

    Args:
        selector: ``name[:index]``; None takes the environment, or chooses automatically.
        options: of the backend.
        origin: where the selector was given, for errors.
    Raises:
        BackendNotFound: the name is not registered.
        BackendLoadError: it is registered but cannot be opened.
        ContractError: it implements another contract.
        VersionError: the installed versions do not go together.
    """
    registration, index = resolve(selector, origin)
    return open_registered(registration, index, options or {})


def _meant(name: str, known: Mapping[str, Registration]) -> str:
    close = difflib.get_close_matches(name.strip().lower(), known, n=2)
    return f"Did you mean {' or '.join(repr(c) for c in close)}? " if close else ""


def _listing(known: Mapping[str, Registration]) -> str:
    """Names grouped by origin, as in 'cpu (from tandem), toy (from toys)'."""
    origins = dict.fromkeys(r.origin for r in known.values())
    groups = ((", ".join(r.name for r in known.values() if r.origin == origin), origin) for origin in origins)
    return ", ".join(f"{names} (from {origin})" for names, origin in groups)
