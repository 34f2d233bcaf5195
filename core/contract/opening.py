"""What is checked between the choice of a backend and its use; a failure never leads to another backend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.contract import opspec, versions
from tandem.contract.environment import BACKEND
from tandem.contract.surface import Version, version_text
from tandem.errors import BackendLoadError, ContractError, TandemError

if TYPE_CHECKING:
    from tandem.contract.backend import Backend
    from tandem.contract.registry import Registration

_NO_FALLBACK = "No fallback was made"


def open_registered(registration: Registration, index: int, options: Mapping[str, Any]) -> Backend:
    """Load, check and open one registered backend; errors as for `tandem.contract.registry.open_backend`."""
    from tandem.contract.probing import checked, probe

    backend_class = _load(registration)
    check_contract(registration, backend_class.contract)
    _check_versions(registration)
    try:
        return backend_class.open(index, options)
    except TandemError:
        raise
    except Exception as error:
        facts = checked(probe(registration).probe)
        raise BackendLoadError(
            f"backend '{registration.name}' was requested but cannot be opened",
            where=f"{registration.name}:{index}, {registration.target} from {registration.origin}",
            why=f"{type(error).__name__}: {error}" + (f". {facts}" if facts else ""),
            fix=f"repair what the cause names, or set {BACKEND}=cpu to run the reference. {_NO_FALLBACK}",
        ) from error


def _load(registration: Registration) -> type[Backend]:
    try:
        return registration.load()
    except Exception as error:
        raise BackendLoadError(
            f"backend '{registration.name}' was requested but its registration failed",
            where=f"{registration.target} from {registration.origin}",
            why=f"{type(error).__name__}: {error}",
            fix=f"repair or uninstall the package; 'tandem doctor' shows the traceback. {_NO_FALLBACK}",
        ) from error


def check_contract(registration: Registration, version: Version) -> None:
    """Accept the major of core and a minor that is not below core's.

    Raises:
        ContractError: naming the ops that the backend's version does not know.
    """
    core = opspec.CONTRACT_VERSION
    if version[0] == core[0] and version[1] >= core[1]:
        return
    import tandem.ops  # noqa: F401  (declares every op)

    newer = [f"op '{spec.name}' since {version_text(spec.since)}" for spec in opspec.iter_ops() if spec.since > version]
    if version[0] != core[0]:
        why = "another major changes what ops mean"
    else:
        why = ", ".join(newer) or "later minors added arguments or formats that it does not know"
    raise ContractError(
        f"backend '{registration.name}' implements contract {version_text(version)}, core needs >= "
        f"{version_text(core)} with the same major",
        where=f"{registration.target} from {registration.origin}",
        why=why,
        fix=f"install a version of the backend for contract {version_text(core)}",
    )


def _check_versions(registration: Registration) -> None:
    from tandem.contract.probing import probe

    rows = [row for row in versions.matrix() if row.backend == registration.name]
    if any(row.label == versions.TESTED for row in rows):
        packages = versions.installed({name for row in rows for name in row.packages})
        facts = probe(registration).probe.facts
        versions.check_versions(registration.name, {**facts, **packages}, rows, os.environ)
