"""The installed form: what a wheel holds, how it behaves without a compiler, and that types are checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

LIBRARY = "tandem/backends/cpu/libtandem_cpu.so"
WHY_ABSENT = "tandem/backends/cpu/libtandem_cpu.absent.txt"
SHIPPED = (
    "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE", "core", "backends", "csrc"
)  # fmt: skip
BESIDE = ("versions.toml", "capabilities.toml", "floors.json")  # tables beside a backend's code


def copy_sources(root: Path, target: Path) -> Path:
    """What a source distribution holds, without anything built."""
    target.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "libtandem_cpu.*")
    for name in SHIPPED:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, ignore=ignore)
        else:
            shutil.copy(root / name, target / name)
    return target


def build_wheel(source: Path, **environment: str) -> Path:
    out = source.parent / (source.name + "-wheel")
    options = ["--quiet", "--no-build-isolation", "--no-deps", "-w", str(out)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(source)]
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = copy_sources(repo_root, tmp_path_factory.mktemp("wheel") / "source")
    return build_wheel(source, CXXFLAGS="-O1")  # in less than half the time


def test_wheel_holds_every_source_file_and_nothing_else(repo_root: Path, wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {"tandem/py.typed"}
    for folder, package in (("core", "tandem"), ("backends", "tandem/backends")):
        for path in (repo_root / folder).rglob("*"):
            inside = path.relative_to(repo_root / folder)
            wanted = path.suffix == ".py" or path.name in BESIDE or inside.parts[0] == "assets"
            if path.is_file() and wanted:
                expected.add(f"{package}/{inside.as_posix()}")
    packaged = {n for n in names if not n.split("/")[0].endswith(".dist-info")}
    assert packaged - {LIBRARY, WHY_ABSENT} == expected
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert any(n.endswith("licenses/NOTICE") for n in names)


def test_source_distribution_holds_the_shipped_model(repo_root: Path, tmp_path: Path) -> None:
    source = copy_sources(repo_root, tmp_path / "source")
    program = "from setuptools import build_meta; build_meta.build_sdist('../made')"
    done = subprocess.run([sys.executable, "-c", program], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (archive,) = (tmp_path / "made").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        held = {"/".join(Path(name).parts[1:]): packed.getmember(name).size for name in packed.getnames()}
    files = {file for file in (repo_root / "core" / "assets" / "nano").rglob("*") if file.is_file()}
    assert files
    for file in files:
        assert held[file.relative_to(repo_root).as_posix()] == file.stat().st_size


def test_wheel_bundles_and_links_no_openmp_runtime(wheel: Path, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    libraries = {n for n in archive.namelist() if ".so" in Path(n).suffixes or n.endswith((".a", ".o"))}
    assert libraries <= {LIBRARY}
    if LIBRARY not in archive.namelist():
        pytest.skip(f"no native library in the wheel: {archive.read(WHY_ABSENT).decode().strip()}")
    if shutil.which("readelf") is None:
        pytest.skip("no readelf to read the library's dependencies with")
    library = archive.extract(LIBRARY, tmp_path)
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = [line for line in dynamic.splitlines() if "NEEDED" in line]
    assert needed and not [line for line in needed if "omp" in line or "stdc++" in line]


def test_wheel_tag_and_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    native = LIBRARY in archive.namelist()
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert wheel.name.endswith("-any.whl") != native
    (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    lines = archive.read(metadata).decode().splitlines()
    needs = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    base = {need.split(">")[0].split("<")[0] for need in needs if "extra ==" not in need}
    assert base == {"torch", "numpy", "safetensors", "tokenizers", "cffi", "deepseek-recipe", "tqdm", "llguidance"}
    assert any("triton" in need and 'extra == "cuda"' in need for need in needs)
    (entries,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
    text = archive.read(entries).decode()
    for backend in ("cpu", "cuda", "ascend"):
        assert f"{backend} = tandem.backends.{backend}." in text


@pytest.mark.parametrize(
    ("environment", "reason"),
    (
        ({"TANDEM_NO_NATIVE": "1"}, "TANDEM_NO_NATIVE was set"),
        ({"CXX": "false"}, "the C++ compiler false failed"),
    ),
)
def test_without_a_compiler_the_kernels_are_missing_and_nothing_replaces_them_unasked(
    repo_root: Path, tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    wheel = build_wheel(copy_sources(repo_root, tmp_path / "source"), **environment)
    assert wheel.name.endswith("-py3-none-any.whl")
    archive = zipfile.ZipFile(wheel)
    assert LIBRARY not in archive.namelist()
    archive.extractall(tmp_path / "site")
    program = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tandem.backends.cpu.loading import native_status
from tandem.contract.registry import open_backend
from tandem.errors import BackendLoadError
s = native_status()
try:
    open_backend("cpu")
    refused = ""
except BackendLoadError as error:
    refused = str(error)
plain = open_backend("cpu", {"native": False})
print(json.dumps([refused, plain.implementation("linear") is None, s.available, s.reason, str(s.path)]))
"""
    result = subprocess.run(
        [sys.executable, "-I", "-c", program, str(tmp_path / "site")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    refused, plain, available, why, path = json.loads(result.stdout)
    assert reason in refused and "native=false" in refused
    assert plain and not available and reason in why
    assert path.startswith(str(tmp_path))  # the wheel's own module was asked, not the source tree's


def test_type_checking_sees_across_the_mapped_packages(repo_root: Path, tmp_path: Path) -> None:
    """A call in a backend that misuses a function of core is an error; both are found by import name."""
    source = copy_sources(repo_root, tmp_path / "source")
    planted = "from tandem.errors import TandemError\n\nTandemError(1, where='', why='', fix='')\n"
    (source / "backends" / "cpu" / "planted.py").write_text(planted)
    result = subprocess.run(
        [str(repo_root / "ci" / "typecheck.sh"), str(source), "-m", "tandem.backends.cpu.planted"],
        env={**os.environ, "TANDEM_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "planted.py:3" in result.stdout and "[arg-type]" in result.stdout
    assert "import-not-found" not in result.stdout and "import-untyped" not in result.stdout


@pytest.mark.slow
def test_wheel_runs_in_an_empty_environment(repo_root: Path, wheel: Path, tmp_path: Path) -> None:
    """Only the wheel and what it declares, away from the sources: text, a chat turn that ends, a checkpoint made."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TANDEM_", "PYTHON"))} | {"HF_HUB_OFFLINE": "1"}

    def run(*command: str, said: str = "") -> str:
        result = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, input=said)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    run(sys.executable, "-m", "venv", "empty")
    constraints = str(repo_root / "ci" / "constraints.txt")
    run("empty/bin/python", "-m", "pip", "--quiet", "install", "-c", constraints, str(wheel))
    run("empty/bin/tandem", "doctor")
    run("empty/bin/tandem", "checkpoint", "make-tiny", "--seed", "3", "--out", "tiny")
    options = ("--model", "tiny", "--max-tokens", "4", "--seed", "5", "--json")
    generate = ("empty/bin/tandem", "generate", "Hello", *options)
    printed = run(*generate)
    assert "token_ids" in printed
    assert run(*generate) == printed
    text = run("empty/bin/tandem", "generate", "In the beginning", "--max-tokens", "24", "--seed", "5")
    assert text.strip()
    turn = json.loads(run("empty/bin/tandem", "chat", "--temperature", "0.7", "--seed", "5", "--json", said="Hello\n"))
    assert turn["finish_reason"] == "stop" and turn["text"].strip()
