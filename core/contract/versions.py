"""Which versions go together, by backend, and how much is known about each set.

The rows of a backend stand in ``versions.toml`` beside it.  A row is ``tested`` only with a report in docs/reports
that names its versions; anything else is ``declared``: what the package asks for, and nobody has shown.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tandem.contract.environment import ALLOW_UNTESTED
from tandem.errors import VersionError

UNKNOWN = "unknown"
TESTED, DECLARED = "tested", "declared"


@dataclass(frozen=True, slots=True)
class VersionRow:
    """Versions that go together on one backend.

    Args:
        backend: its name.
        packages: Python and its packages by name; a version stands for all that begin with its numbers.
        system: toolkits and drivers by name, likewise.
        report: file in docs/reports that shows it, or empty.
    """

    backend: str
    packages: Mapping[str, str]
    system: Mapping[str, str] = field(default_factory=dict)
    report: str = ""

    @property
    def label(self) -> str:
        """``tested`` where a report is named, else ``declared``."""
        return TESTED if self.report else DECLARED

    def versions(self) -> dict[str, str]:
        """All versions of the row by name."""
        return {**self.packages, **self.system}

    def covers(self, found: Mapping[str, str]) -> bool:
        """Whether the versions found are those of this row; a cell that the row does not know is no condition."""
        wanted = {name: version for name, version in self.versions().items() if version != UNKNOWN}
        return all(_same(found.get(name, UNKNOWN), version) for name, version in wanted.items())


def _same(found: str, wanted: str) -> bool:
    """'2.13.0+cpu' is '2.13' and '2.13.0'; '2.130' is neither, and what is unknown is nothing."""
    numbers, asked = found.partition("+")[0].split("."), wanted.split(".")
    return numbers[: len(asked)] == asked


def matrix() -> list[VersionRow]:
    """All rows of the backends that come with the package, by backend and in the order of its file."""
    spec = importlib.util.find_spec("tandem.backends")
    folders = spec.submodule_search_locations if spec is not None and spec.submodule_search_locations else ()
    files = sorted(file for folder in folders for file in Path(folder).glob("*/versions.toml"))
    return [row for file in files for row in read_rows(file)]


def read_rows(file: Path) -> list[VersionRow]:
    """The rows of one file; the backend is the folder's name."""
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["row"]
    return [VersionRow(file.parent.name, r["packages"], r.get("system", {}), r.get("report", "")) for r in rows]


def installed(names: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of installed packages; ``not installed`` where there is none."""
    found = {}
    for name in names:
        try:
            found[name] = platform.python_version() if name == "python" else importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def label_of(backend: str, found: Mapping[str, str], rows: Iterable[VersionRow]) -> tuple[str, str]:
    """(label, report) of the versions found: of the best row that covers them, else ``unknown``."""
    covering = [row for row in rows if row.backend == backend and row.covers(found)]
    best = next((row for row in covering if row.label == TESTED), covering[0] if covering else None)
    return (best.label, best.report) if best is not None else (UNKNOWN, "")


def check_versions(
    backend: str, found: Mapping[str, str], rows: Iterable[VersionRow], environ: Mapping[str, str]
) -> None:
    """Refuse versions that no tested row covers, before a vendor library is imported.

    A backend of which nothing is tested has nothing to compare with, and passes; `tandem doctor` shows its label.

    Raises:
        VersionError: with the rows that would work.
    """
    tested = [row for row in rows if row.backend == backend and row.label == TESTED]
    if not tested or environ.get(ALLOW_UNTESTED) == "1" or any(row.covers(found) for row in tested):
        return
    packages = [name for name in tested[0].packages if name != "python"]
    raise VersionError(
        f"{' with '.join(f'{name} {found.get(name, UNKNOWN)}' for name in packages)} is not in the tested matrix",
        where=f"backend '{backend}'",
        why="; ".join(map(_told, tested)),
        fix=f"install a tested set, or set {ALLOW_UNTESTED}=1 to go on",
    )


def _told(row: VersionRow) -> str:
    system = " + ".join(f"{name} {version}" for name, version in row.system.items())
    packages = " + ".join(f"{name} {version}" for name, version in row.packages.items())
    return f"Tested with {system}: {packages}" if system else f"Tested: {packages}"
