"""csrc/build_cpu.py, and the compilers that it finds here."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).parents[2] / "csrc"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_cpu", SOURCES / "build_cpu.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


BUILD = _load()


def compiler_for(machine: str) -> str | None:
    """The command of a C++ compiler for an architecture, as ``platform.machine()`` names it; None without one."""
    if machine == platform.machine():
        found: str | None = BUILD.find_compiler()
        return found
    return shutil.which(f"{machine.replace('_', '-')}-linux-gnu-g++")
