"""Errors of a backend that cannot be opened, in the same words whichever it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.contract.capabilities import Probe
from tandem.contract.environment import BACKEND
from tandem.contract.probing import checked
from tandem.errors import BackendLoadError, ConfigError, TandemError

NO_FALLBACK = f"set {BACKEND}=cpu to run the reference. No fallback was made"


def cannot_open(
    selector: str, why: str, fix: str, facts: Mapping[str, str], kind: type[TandemError] = BackendLoadError
) -> TandemError:
    """The error of a machine that lacks something.

    Args:
        selector: what was asked for, ``name:index``.
        why: what is missing.
        fix: what to do about it.
        facts: what was looked at.
        kind: of the error.
    """
    return kind(
        f"backend '{selector.partition(':')[0]}' was requested but cannot be opened",
        where=selector,
        why=f"{why}. {checked(Probe(False, why, facts))}",
        fix=f"{fix}, or {NO_FALLBACK}",
    )


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options of a backend that takes none.

    Raises:
        ConfigError: there are some.
    """
    if options:
        raise ConfigError(
            f"unknown backend option {', '.join(sorted(options))}",
            where=f"backend '{name}'",
            why="it takes no options",
            fix="remove the option",
        )
