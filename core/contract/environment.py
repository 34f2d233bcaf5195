"""Environment variables that Tandem reads, and names that look like one and are read by nobody."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tandem.errors import ConfigError

BACKEND = "TANDEM_BACKEND"
REQUIRE_ACCELERATOR = "TANDEM_REQUIRE_ACCELERATOR"
ALLOW_UNTESTED = "TANDEM_ALLOW_UNTESTED"
COMPOSITE = "TANDEM_COMPOSITE"
CACHE_DIR = "TANDEM_CACHE_DIR"
EMULATE = "TANDEM_EMULATE"

# Besides these, TANDEM_<SECTION>_<FIELD> sets one engine option.
KNOWN = {
    BACKEND: "backend of a run, name[:index] or auto",
    REQUIRE_ACCELERATOR: "1: automatic selection does not take the CPU",
    ALLOW_UNTESTED: "1: run with versions that no tested row names",
    COMPOSITE: "ops, separated by commas, that run as composites whatever the backend brings",
    EMULATE: "1: a backend that can emulates its device on the host; for tests, and very slow",
    CACHE_DIR: "folder for what may be measured or built again; default: ~/.cache/tandem",
    "TANDEM_CONFORMANCE_BACKEND": "backend that the conformance tests run on",
    "TANDEM_NO_NATIVE": "1 at build time: no native kernels",
    "TANDEM_PYTHON": "interpreter of ci/typecheck.sh",
}

# What other engines call it, or what one might guess.
_GUESSES = {
    BACKEND: ("TANDEM_DEVICE", "TANDEM_DEVICES", "TANDEM_PLATFORM", "TANDEM_ACCELERATOR", "TANDEM_TARGET"),
    # Without a model the one that comes with the package runs, so a wrong name here would give another model's text.
    "TANDEM_MODEL_PATH": (
        "TANDEM_MODEL",
        "TANDEM_MODEL_DIR",
        "TANDEM_MODEL_NAME",
        "TANDEM_CHECKPOINT",
        "TANDEM_WEIGHTS",
    ),
}
_GUESSED = {guess.replace("_", ""): name for name, guesses in _GUESSES.items() for guess in guesses}
_CLOSE = 0.85


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for what may be measured or built again; it need not exist."""
    named = (os.environ if environ is None else environ).get(CACHE_DIR)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "tandem"


def look_alikes(environ: Mapping[str, str], options: Iterable[str] = ()) -> dict[str, str]:
    """Set variables that nobody reads and that look like one that is read -> the one that was meant.

    Args:
        environ: the environment; variables set to nothing count as unset.
        options: further names that are read, those of the engine options.
    """
    known = [*KNOWN, *options]
    found: dict[str, str] = {}
    for name in sorted(name for name, value in environ.items() if value and name not in known):
        plain = name.upper().replace("-", "_")
        meant = _GUESSED.get(plain.replace("_", ""))
        if meant is None:
            meant = next(iter(difflib.get_close_matches(plain, known, n=1, cutoff=_CLOSE)), None)
        if meant is not None:
            found[name] = meant
    return found


def not_read(name: str, meant: str, value: str) -> ConfigError:
    """The error of a variable that looks like another one."""
    return ConfigError(
        f"the environment variable {name} is not read",
        where=f"environment {name}",
        why=f"did you mean {meant}={value}?",
        fix=f"set {meant}, or unset {name}",
    )


def unknown_variables(environ: Mapping[str, str], options: Iterable[str] = ()) -> list[str]:
    """Set variables that begin like ours, that nobody reads, and that look like none that is read."""
    known = {*KNOWN, *options}
    odd = [name for name, value in environ.items() if value and name.upper().startswith("TANDEM_")]
    return sorted(set(odd) - known - set(look_alikes(environ, options)))
