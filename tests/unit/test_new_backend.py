"""`tandem backend new`: the package it writes is small, installs from a wheel, and runs at once."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tandem.cli.main import main
from tandem.conformance.emit import emit
from tandem.conformance.kit import run as conformance
from tandem.contract.opspec import OP_TABLE

NAME = "sample_toy"
OP = "hc_collapse"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated") / "package"
    assert main(["backend", "new", NAME, "--out", str(out)]) == 0
    return out


def files(package: Path) -> dict[str, str]:
    return {f.relative_to(package).as_posix(): f.read_text() for f in package.rglob("*") if f.is_file()}


def test_what_it_writes(package: Path) -> None:
    found = files(package)
    module = f"tandem_{NAME}"
    assert set(found) == {
        "pyproject.toml", "README.md", f"tests/test_{NAME}.py",
        f"{module}/__init__.py", f"{module}/backend.py", f"{module}/ops.py",
    }  # fmt: skip
    assert sum(len(text.splitlines()) for text in found.values()) <= 300
    assert not [name for name, text in found.items() if re.search(r"@[A-Z_]+@", text)]
    assert 'sample_toy = "tandem_sample_toy.backend:SampleToyBackend"' in found["pyproject.toml"]
    assert "contract 1.2" in found["README.md"] and "CONTRACT = (1, 2)" in found[f"{module}/backend.py"]


def test_one_install_command_everywhere(
    repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["backend", "new", "mydevice", "--out", "mydevice"]) == 0
    said, command = capsys.readouterr().out, "pip install -e './mydevice[test]'\n"
    readme = (tmp_path / "mydevice" / "README.md").read_text()
    for text in (said, readme, (repo_root / "docs" / "PORTING.md").read_text(encoding="utf-8")):
        assert text.count("pip install -e './mydevice") == 1 and command in text


def test_it_says_what_it_wrote(tmp_path: Path, capsys: Capture) -> None:
    assert main(["backend", "new", "other", "--out", str(tmp_path / "a" / "b"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == "other" and {Path(f) for f in told["files"]} == set((tmp_path / "a" / "b").rglob("*.*"))


@pytest.mark.parametrize(
    ("name", "out", "word"),
    [
        ("cpu", "new", "tandem.backends.cpu.backend:BACKEND of tandem has this name"),
        ("auto", "new", "a meaning of its own"),
        ("toy_", "new", "no name of a backend"),
        ("My-Toy", "new", "no name of a backend"),
        ("3toys", "new", "no name of a backend"),
        ("class", "new", "a meaning of its own"),
        ("toy:1", "new", "no name of a backend"),
        ("toy", "full", "exists and is not an empty directory"),
        ("toy", "full/file", "exists and is not an empty directory"),
        ("toy", "full/file/below", "Not a directory"),
    ],
)
def test_what_it_refuses(tmp_path: Path, capsys: Capture, name: str, out: str, word: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    assert main(["backend", "new", name, "--out", str(tmp_path / out), "--json"]) == 2
    told = json.loads(capsys.readouterr().err)
    assert told["error"] == "ConfigError" and word in told["why"]
    assert [f.name for f in tmp_path.rglob("*")] == ["full", "file"]
    assert (tmp_path / "full" / "file").read_text() == "mine"


# -- installed from a wheel --------------------------------------------------------------------------------------


def run(*command: str, folder: Path, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
    done = subprocess.run(command, cwd=folder, env=clean | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wheel_of(package: Path, folder: Path) -> Path:
    shutil.copytree(package, folder / "source")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet")
    run(*pip, "--no-build-isolation", "--no-deps", "--no-index", "-w", str(folder), "./source", folder=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def record(source: Path) -> None:
    """A run of L0 is kept where docs/PORTING.md says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(source))
        backend = importlib.import_module(f"tandem_{NAME}.backend").SampleToyBackend.open(0, {})
        emit(conformance(backend, "L0"), backend, source / f"tandem_{NAME}" / "capabilities.toml")
    for module in [name for name in sys.modules if name.partition(".")[0] == f"tandem_{NAME}"]:
        del sys.modules[module]


@pytest.fixture(scope="module")
def python(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel in it, which also sees what this one has installed."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(package, folder / "kept")
    record(folder / "kept")
    wheel = wheel_of(folder / "kept", folder)
    venv.create(folder / "env", with_pip=False)
    interpreter = folder / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(interpreter), "install")
    run(*pip, "--quiet", "--no-deps", "--no-index", str(wheel), folder=folder)
    (own,) = (folder / "env" / "lib").glob("python*/site-packages")
    also = "; ".join(f"site.addsitedir({path!r})" for path in site.getsitepackages())
    (own / "also.pth").write_text(f"import site; {also}\n")
    return interpreter


def test_its_own_tests_pass(python: Path, package: Path, tmp_path: Path) -> None:
    shutil.copytree(package / "tests", tmp_path / "tests")  # away from the sources: the wheel is what is tested
    said = run(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", folder=tmp_path)
    assert f"{len(OP_TABLE[OP].cases) + 5} passed" in said


def test_it_generates_by_name(python: Path, tiny: Path, tmp_path: Path) -> None:
    command = ("-m", "tandem.cli.main", "generate", "Once", "--model", str(tiny), "--max-tokens", "4", "--ignore-eos")
    result = json.loads(run(str(python), *command, "--json", folder=tmp_path, TANDEM_BACKEND=NAME))
    assert len(result["token_ids"]) == 4
    listed = json.loads(run(str(python), "-m", "tandem.cli.main", "backends", "--json", folder=tmp_path))
    entry = listed["backends"][NAME]
    assert (entry["state"], entry["from"], entry["contract"]) == ("opens", "tandem-sample-toy", "1.2")
    assert entry["level"] == "L0", entry["level_why"]  # the table came along in the wheel
    kinds = {op: column[NAME]["kind"] for op, column in listed["matrix"].items()}
    assert kinds.pop(OP) == "native" and set(kinds.values()) == {"composite"}


def test_the_conformance_cases_of_its_op_pass(python: Path, repo_root: Path) -> None:
    """The op it brings, and those composed of it."""
    command = ("-m", "tandem.cli.main", "conformance", "--backend", NAME, "--case", "hc_", "--quick", "--json")
    said = json.loads(run(str(python), *command, folder=repo_root))
    assert said["holds"] and said["claim"] == "none"
    ops = {result["op"] for result in said["results"] if result["skipped"] is None}
    assert ops == {name for name in OP_TABLE if "hc_" in name}


@pytest.mark.slow
def test_every_op_passes(python: Path, repo_root: Path) -> None:
    command = ("-m", "tandem.cli.main", "conformance", "--backend", NAME, "--json")
    said = json.loads(run(str(python), *command, folder=repo_root))
    assert said["claim"] == "L1", [result["name"] for result in said["results"] if result["failure"]]


@pytest.mark.slow
def test_it_installs_beside_tandem_in_an_empty_environment(package: Path, repo_root: Path, tmp_path: Path) -> None:
    """Only two wheels and what they declare, away from all sources."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TANDEM_", "PYTHON"))}
    sources = tmp_path / "tandem"
    sources.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(repo_root / name, sources / name)
    for name in ("core", "backends", "csrc"):
        ignore = shutil.ignore_patterns("__pycache__", "libtandem_cpu.*")
        shutil.copytree(repo_root / name, sources / name, ignore=ignore)

    def clean(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    clean(sys.executable, "-m", "venv", "empty")
    constraints = ("-c", str(repo_root / "ci" / "constraints.txt"))
    clean("empty/bin/python", "-m", "pip", "--quiet", "install", *constraints, str(sources))
    clean("empty/bin/python", "-m", "pip", "--quiet", "install", *constraints, str(wheel_of(package, tmp_path)))
    clean("empty/bin/tandem", "checkpoint", "make-tiny", "--seed", "3", "--out", "tiny")
    options = ("--model", "tiny", "--max-tokens", "4", "--ignore-eos", "--json", "--backend", NAME)
    assert len(json.loads(clean("empty/bin/tandem", "generate", "Hello", *options))["token_ids"]) == 4
