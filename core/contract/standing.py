"""What a backend was shown to do: the capability table that a conformance run wrote beside it, and whether it holds.

``capabilities.toml`` names the contract, the op table and the sources it was written for.  Where one of them is another
now, or the file was edited, the level it states is not shown any more: the backend is unverified.
"""

from __future__ import annotations

import hashlib
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.contract.capabilities import RUN_ON_DEVICE, labelled
from tandem.contract.opspec import CONTRACT_VERSION, table_signature
from tandem.errors import ConfigError

TABLE_FILE = "capabilities.toml"
SEAL = "seal = "
UNVERIFIED = "unverified"
_SERVES = ("L2", "L3")  # levels whose run compares whole requests in many batches
# Kernels and what calls them; tables that tools and people write beside them are none.
_SOURCES = frozenset({".py", ".cpp", ".cc", ".c", ".h", ".hpp", ".cu", ".cuh", ".asc", ".cce", ".mojo", ".triton"})


@dataclass(frozen=True, slots=True)
class Standing:
    """What may be said of a backend.

    Args:
        level: ``L0`` to ``L3``, or ``unverified``.
        why: for a level, the run that showed it; else why there is none.
        verification: how that run's results came about; `capabilities.py` has the words.
        table: the contents of the file; empty where there is none.
    """

    level: str
    why: str
    table: dict[str, Any] = field(default_factory=dict)
    verification: str = RUN_ON_DEVICE

    @property
    def shown(self) -> str:
        """The level as tables show it, ``L1 (emulated)`` where it was not run on a device."""
        return labelled(self.level, self.verification)


def package_folder(backend: type) -> Path:
    """The folder of the module that defines a backend class: its package."""
    module = sys.modules[backend.__module__]
    return Path(module.__file__ or ".").resolve().parent


def source_hashes(backend: type) -> dict[str, str]:
    """SHA-256 of the sources of the package, and of ``csrc`` where a checkout has some for it.

    An installation has no ``csrc``; its native library was built from what the package came with.
    """
    return hashes_of(package_folder(backend))


def hashes_of(folder: Path) -> dict[str, str]:
    """As `source_hashes`, of a package's folder."""
    found = {"package": _hash(folder, _sources(folder))}
    native = folder.parent.parent / "csrc"
    own, shared = native / folder.name, native / "include"
    if own.is_dir():
        # A header named for a backend belongs to that one alone.
        headers = [path for path in _sources(shared) if path.stem in ("tandem", f"tandem_{folder.name}")]
        found["native"] = _hash(native, sorted([*_sources(own), *headers]))
    return found


def _sources(folder: Path) -> Iterator[Path]:
    files = sorted(path for path in folder.rglob("*") if path.suffix in _SOURCES and path.is_file())
    return (path for path in files if "__pycache__" not in path.parts)


def _hash(root: Path, files: Iterator[Path] | list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def contract_text() -> str:
    """Version of the contract, as tables state it."""
    return ".".join(map(str, CONTRACT_VERSION))


def sealed(body: str) -> str:
    """The text of a table with the hash of it as its last line."""
    return f'{body}{SEAL}"{hashlib.sha256(body.encode()).hexdigest()}"\n'


def standing(backend: type) -> Standing:
    """What the table beside a backend class shows now."""
    path = package_folder(backend) / TABLE_FILE
    if not path.is_file():
        return Standing(UNVERIFIED, "no conformance run is recorded")
    text = path.read_text(encoding="utf-8")
    body, found, _ = text.rpartition(SEAL)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return Standing(UNVERIFIED, f"{TABLE_FILE} cannot be read: {error}")
    if not found or sealed(body) != text:
        return Standing(UNVERIFIED, f"{TABLE_FILE} was edited; only a conformance run may write it", table)
    stale = list(_stale(backend, table))
    if stale:
        return Standing(UNVERIFIED, f"{', '.join(stale)} changed since the run of {table['date']}", table)
    verification = str(table.get("verification", RUN_ON_DEVICE))  # tables of runs before there was a label have none
    why = labelled(f"run of {table['date']}", verification)
    return Standing(str(table["level"]), why, table, verification)


def invariance(backend: type) -> tuple[bool, str]:
    """Whether a run proved that a request's bits depend on nothing but the request, and which run, or why not."""
    found = standing(backend)
    if found.level == UNVERIFIED:
        return False, found.why
    if found.verification != RUN_ON_DEVICE:
        return False, f"it was shown {found.verification}, which proves nothing of a device"
    if not found.table.get("batch_invariant", False):
        return False, "the backend does not claim it"
    if found.level not in _SERVES:
        return False, f"it was shown up to level {found.level}, and L2 compares requests in many batches"
    return True, found.why


def require_invariance(backend: type, origin: str) -> None:
    """Refuse a backend that was not shown to be batch-invariant.

    Args:
        backend: its class.
        origin: where the wish comes from.

    Raises:
        ConfigError: it is not proved.
    """
    proved, why = invariance(backend)
    if not proved:
        name = getattr(backend, "name", backend.__name__)
        raise ConfigError(
            "batch invariance is required and not proved",
            where=f"backend '{name}'; backend.batch_invariant, from {origin}",
            why=why,
            fix=f"run tandem conformance --backend {name} --level L2 --emit {TABLE_FILE} (the file beside the "
            "backend) on a device, not an emulated one, take another backend, or leave the option out",
        )


def _stale(backend: type, table: dict[str, Any]) -> Iterator[str]:
    """What is not any more as the run saw it."""
    if table["contract"] != contract_text():
        yield f"the contract ({table['contract']}, now {contract_text()})"
    if table["op_table"] != table_signature():
        yield "the op table"
    now = source_hashes(backend)
    for part, digest in table["sources"].items():
        if now.get(part, digest) != digest:  # without csrc, an installation has nothing to compare with
            yield f"the {part} sources"
    yield from (f"the {part} sources" for part in now if part not in table["sources"])
