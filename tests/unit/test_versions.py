"""The version matrix: nothing is called tested without a report; which versions a row covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.contract.registry import registrations
from tandem.contract.versions import VersionRow, installed, label_of, matrix

REPORTED = VersionRow("toy", {"torch": "2.13.0", "toykit": "3"}, {"driver": "25.1"}, "toy.md")
DECLARED = VersionRow("toy", {"torch": "2.13"}, {"driver": "unknown"})


def unreported(rows: list[VersionRow], reports: Path) -> list[str]:
    """Rows called tested whose report does not exist or does not name every one of their versions."""
    faults = []
    for row in rows:
        file = reports / row.report
        text = file.read_text(encoding="utf-8") if row.report and file.is_file() else ""
        missing = [f"{name} {version}" for name, version in row.versions().items() if f"{name} {version}" not in text]
        if row.label == "tested" and missing:
            faults.append(f"{row.backend}: {row.report} does not name {', '.join(missing)}")
    return faults


def test_a_tested_row_has_a_report_that_names_its_versions(repo_root: Path) -> None:
    assert unreported(matrix(), repo_root / "docs" / "reports") == []


def test_a_row_without_its_report_is_seen(tmp_path: Path) -> None:
    assert unreported([REPORTED], tmp_path) == ["toy: toy.md does not name torch 2.13.0, toykit 3, driver 25.1"]
    (tmp_path / "toy.md").write_text("torch 2.13.0, driver 25.1")
    assert unreported([REPORTED], tmp_path) == ["toy: toy.md does not name toykit 3"]
    (tmp_path / "toy.md").write_text("torch 2.13.0, toykit 3, driver 25.1")
    assert unreported([REPORTED, DECLARED], tmp_path) == []


def test_rows_belong_to_shipped_backends_and_are_no_inventions() -> None:
    rows = matrix()
    assert {row.backend for row in rows} == {name for name, r in registrations().items() if r.origin == "tandem"}
    assert all(row.packages and all(row.versions().values()) for row in rows)
    files = list((Path(__file__).parents[2] / "backends").glob("*/versions.toml"))
    assert {file.parent.name for file in files} == {row.backend for row in rows}
    # A label follows from the report, it is not written.
    assert not any("label" in file.read_text(encoding="utf-8") for file in files)


@pytest.mark.parametrize(
    ("found", "label"),
    [
        ({"torch": "2.13.0+cpu", "toykit": "3.9", "driver": "25.1.2"}, "tested"),
        ({"torch": "2.13.1", "toykit": "3.9", "driver": "25.1.2"}, "declared"),
        ({"torch": "2.13.0", "toykit": "30", "driver": "25.1"}, "declared"),
        ({"torch": "2.13.0"}, "declared"),
        ({"torch": "2.130.0", "toykit": "3", "driver": "25.1"}, "unknown"),
        ({"torch": "not installed"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_labels(found: dict[str, str], label: str) -> None:
    for rows in ([REPORTED, DECLARED], [DECLARED, REPORTED]):
        assert label_of("toy", found, rows) == (label, "toy.md" if label == "tested" else "")
    assert label_of("other", found, [REPORTED, DECLARED]) == ("unknown", "")


def test_installed_versions() -> None:
    found = installed(["python", "numpy", "no-such-package"])
    assert found["python"].startswith("3.") and found["numpy"][0].isdigit()
    assert found["no-such-package"] == "not installed"
