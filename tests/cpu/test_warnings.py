"""Compilers have nothing to say about the native kernels, on any instruction set that one is here for."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from support.cpu_build import BUILD, SOURCES, compiler_for

pytestmark = pytest.mark.slow
SETS = [(machine, one.name) for machine, sets in BUILD.SETS.items() for one in sets]


@pytest.mark.parametrize(("machine", "name"), SETS)
def test_compilers_have_nothing_to_say(machine: str, name: str, tmp_path: Path) -> None:
    """About these sources; gcc 12 warns of its own headers for AVX-512."""
    compiler = compiler_for(machine)
    if compiler is None:
        pytest.skip(f"no compiler for {machine} on this machine")
    path = tmp_path / f"{name}.cpp"
    path.write_text(BUILD.unit(name, sorted((SOURCES / "cpu" / "ops").glob("*.cpp"))), encoding="utf-8")
    flags = next(one.flags for one in BUILD.SETS[machine] if one.name == name)
    includes = [f"-I{SOURCES / 'include'}", f"-I{SOURCES / 'cpu'}"]
    command = [*shlex.split(compiler), *BUILD.FLAGS, *includes, *flags, "-c", str(path), "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line for line in done.stderr.splitlines() if "warning:" in line and str(SOURCES) in line] == []
