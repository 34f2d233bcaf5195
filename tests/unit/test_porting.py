"""docs/PORTING.md: its commands can be read, its checks exist, its line budgets are true.

That its commands run is tested with the wheels, in tests/conformance/test_islands.py.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path

import pytest

from tandem.backends.cpu.backend import CpuBackend
from tandem.cli.main import build_parser, main
from tandem.conformance.levels import every_job


@pytest.fixture(scope="module")
def text(repo_root: Path) -> str:
    return (repo_root / "docs" / "PORTING.md").read_text(encoding="utf-8")


def commands(text: str) -> list[str]:
    """Indented lines."""
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


def length(*files: Path) -> int:
    """Lines that are not blank."""
    return sum(bool(line.strip()) for file in files for line in file.read_text(encoding="utf-8").splitlines())


def test_commands_can_be_read(text: str) -> None:
    found = [shlex.split(line) for line in commands(text)]
    ours = [words[words.index("tandem") + 1 :] for words in found if "tandem" in words]
    assert len(ours) >= 8
    for words in ours:
        build_parser(words[0]).parse_args(words)


def test_checks_exist(text: str) -> None:
    names = [job.name for job in every_job(CpuBackend(True), "L2", False)]
    rows = re.findall(r"^\|[^|`]*(?:`[^`]+`[^|`]*)*\|([^|]*/[^|]*)\|$", text, flags=re.MULTILINE)
    patterns = [pattern for row in rows for pattern in re.findall(r"`([\w*.-]+(?:/[\w*.-]+)+)`", row)]
    assert len(patterns) >= 25
    known = {p for p in patterns if any(fnmatch.fnmatch(name, p) or name.startswith(p + "/") for name in names)}
    assert set(patterns) - known == set()


def test_line_budgets(text: str, repo_root: Path, tmp_path: Path) -> None:
    folder = repo_root / "examples" / "islands" / "tandem_islands"
    for file, stated in re.findall(r"^\| `(\w+\.py)` \| (\d+) \|", text, flags=re.MULTILINE):
        assert int(stated) - 10 < length(folder / file) <= int(stated) + 5, file
    assert length(*folder.glob("*.py")) <= 450
    assert main(["backend", "new", "mydevice", "--out", str(tmp_path / "new")]) == 0
    made = [file for file in (tmp_path / "new").rglob("*") if file.is_file()]
    assert length(*made) <= 300
    assert length(*(f for f in made if f.name in ("backend.py", "pyproject.toml"))) <= 150


def test_an_op_with_all_its_kernels(text: str, repo_root: Path) -> None:
    """The example has all files that name its op, each as long as stated, and their sum."""
    rows = re.findall(r"^\| `([\w./]+/[\w./]+)` \| (\d+) \|", text, flags=re.MULTILINE)
    op, stated = "pool_expand", {name: int(lines) for name, lines in rows}
    registry = "tools/kernels/model_calls.py"
    body = (repo_root / registry).read_text(encoding="utf-8")
    found = {registry: length_of_workload(body, op)}
    for folder in ("core/ops", "backends", "csrc"):
        for path in sorted((repo_root / folder).rglob("*")):
            if path.suffix in (".py", ".h", ".cpp", ".cu") and op in path.read_text(encoding="utf-8"):
                found[str(path.relative_to(repo_root))] = length(path)
    assert stated == found
    whole, *own = (sum(n for name, n in found.items() if part in name) for part in ("", "/cpu/", "/cuda/", "/ascend/"))
    shares = r"Together (\d+) lines, of which the contract has (\d+), the CPU (\d+), CUDA (\d+) and Ascend (\d+)\."
    told = re.search(shares, text)
    assert told is not None
    assert [int(n) for n in told.groups()] == [whole, whole - sum(own), *own]


def length_of_workload(body: str, op: str) -> int:
    """Lines of the builder of an op's official arguments."""
    found = re.search(rf'^@call\("{op}"\)\n(?:.+\n)+', body, flags=re.MULTILINE)
    return 0 if found is None else len(found[0].splitlines())
