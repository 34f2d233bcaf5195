"""The documents against the tree: links, paths and names exist; the contract's types and surface are the code's."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import tomllib
import types
from functools import cache
from pathlib import Path

import pytest
from support import runner

from tandem.backends.cpu.backend import CpuBackend
from tandem.contract import backend, capabilities, registry
from tandem.contract import types as contract_types
from tandem.contract.opspec import CONTRACT_VERSION

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:core|backends|csrc|tests|docs|examples|ci)/[\w./*]*)(?:: ([\w.]+))?`")
DOCUMENTS = ["README.md"]
DOCUMENTS += [f"docs/{name}.md" for name in ("CONTRACT", "PORTING", "TOUR", "ORACLE", "PARITY")]
DOCUMENTS += ["docs/PREFIX_CACHE.md", "docs/REPLAY.md", "docs/REQUESTS.md", "docs/SPECULATION.md"]
DOCUMENTS += ["docs/STRUCTURED.md"]


@cache
def names_in(file: Path) -> frozenset[str]:
    """Functions, classes and ``Class.member`` of a Python file."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = (m for m in node.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef)))
            found |= {f"{node.name}.{m.name}" for m in members}
    return frozenset(found)


def broken_links(document: Path) -> list[str]:
    """Relative link targets that do not exist."""
    targets = LINK.findall(document.read_text(encoding="utf-8"))
    local = [t.partition("#")[0] for t in targets if not re.match(r"[a-z]+:", t)]
    return [t for t in local if t and not (document.parent / t).exists()]


def broken_names(text: str, root: Path) -> list[str]:
    """`path` and `path: name` in backticks without their file, or their function or class in it."""
    broken = []
    for path, name in PATH.findall(text):
        files = sorted(root.glob(path)) if "*" in path else [f for f in [root / path] if f.exists()]
        if not files or (name and name not in names_in(files[0])):
            broken.append(f"{path}: {name}" if name else path)
    return broken


def test_relative_links_resolve(repo_root: Path) -> None:
    documents = [repo_root / "README.md", *(repo_root / "docs").glob("*.md"), *(repo_root / "tests").rglob("README.md")]
    assert len(documents) >= 7
    assert {str(d): broken for d in documents if (broken := broken_links(d))} == {}
    assert len(LINK.findall(documents[0].read_text(encoding="utf-8"))) >= 3


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_and_functions_exist(document: str, repo_root: Path) -> None:
    assert broken_names((repo_root / document).read_text(encoding="utf-8"), repo_root) == []


def test_each_step_of_the_tour_names_a_function(repo_root: Path) -> None:
    text = (repo_root / "docs" / "TOUR.md").read_text(encoding="utf-8")
    steps = re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]
    assert len(steps) == 15
    assert all(any(name for _, name in PATH.findall(step)) for step in steps)


def test_what_is_missing_is_seen(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "a.py").write_text("class A:\n    def run(self): ...\ndef f(): ...\n", encoding="utf-8")
    good = "`core/a.py`, `core/a.py: A.run`, `core/a.py: f`, `core`, `core/`, `core/*.py`"
    assert broken_names(good, tmp_path) == []
    bad = "`core/b.py`, `core/a.py: A.walk`, `core/a.py: g`, `core/*.md`"
    assert broken_names(bad, tmp_path) == ["core/b.py", "core/a.py: A.walk", "core/a.py: g", "core/*.md"]
    page = tmp_path / "page.md"
    page.write_text("[a](core/a.py) [b](core/b.py#x) [c](https://nowhere.invalid/) [d](#here)", encoding="utf-8")
    assert broken_links(page) == ["core/b.py"]


@pytest.fixture(scope="module")
def contract(repo_root: Path) -> str:
    return (repo_root / "docs" / "CONTRACT.md").read_text(encoding="utf-8")


def own_classes(module: types.ModuleType) -> dict[str, type]:
    """Public classes that a module defines."""
    classes = inspect.getmembers(module, inspect.isclass)
    return {name: c for name, c in classes if c.__module__ == module.__name__ and not name.startswith("_")}


def fields_of(cls: type) -> list[str]:
    """Fields of a dataclass or named tuple, values of an enum, in order."""
    if issubclass(cls, enum.Enum):
        return [str(member.value) for member in cls]
    if dataclasses.is_dataclass(cls):
        return [f.name for f in dataclasses.fields(cls)]
    return list(getattr(cls, "_fields", ()))


def test_types_are_listed_with_their_fields_in_order(contract: str) -> None:
    section = contract.split("\n## 1 Types")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, flags=re.MULTILINE))
    listed = {name: re.findall(r"\w+", cell) for name, cell in rows.items()}
    assert listed == {name: fields_of(c) for name, c in own_classes(contract_types).items()}


def test_capability_records_are_listed_with_their_fields_in_order(contract: str) -> None:
    section = contract.split("\n## 4 Backend surface")[1].split("\n## ")[0]
    for name, cls in own_classes(capabilities).items():
        assert f"`{name}({', '.join(fields_of(cls))})`" in section


def test_the_backend_surface_is_the_class(contract: str) -> None:
    """Methods with their arguments, and attributes, of the code block."""
    block = contract.split("class Backend(ABC):\n")[1].split("```")[0]
    lines = [line.partition("#")[0].strip() for line in block.splitlines()]
    methods = {m[1]: re.findall(r"\w+", m[2]) for line in lines if (m := re.match(r"(\w+)\((.*?)\)", line))}
    attributes = {m[1] for line in lines if (m := re.match(r"(\w+):", line))}
    assert len(methods) + len(attributes) == len(lines), "a line is neither method nor attribute"

    members = {name: m for name, m in vars(backend.Backend).items() if not name.startswith("_")}
    properties = {name for name, member in members.items() if isinstance(member, property)}
    called = {name: getattr(backend.Backend, name) for name in members if name not in properties}
    assert methods == {n: [p for p in inspect.signature(f).parameters if p != "self"] for n, f in called.items()}
    assert attributes == properties | set(backend.Backend.__annotations__)


def test_the_contract_states_the_version(contract: str) -> None:
    assert contract.startswith(f"# The backend contract, version {CONTRACT_VERSION[0]}.{CONTRACT_VERSION[1]}\n")


def test_the_entry_point_example_is_one_that_the_registry_reads(contract: str) -> None:
    example = tomllib.loads(contract.split("```toml\n")[1].split("```")[0])
    ((name, target),) = example["project"]["entry-points"][registry.ENTRY_POINTS].items()
    assert re.fullmatch(r"[\w.]+:\w+", target) and not target.startswith("tandem.backends.")
    assert f"TANDEM_BACKEND={name}" in contract and f"{runner.CHOICE}={name}" in contract


def test_conformance_runs_on_the_backend_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(runner.CHOICE, raising=False)
    assert runner.implementations()[:2] == ["composite", "cpu-plain"]
    monkeypatch.setenv(runner.CHOICE, "cpu:0")
    assert runner.implementations() == ["cpu:0"]
    assert type(runner.plan_of("cpu:0").backend) is CpuBackend
