"""The host side of csrc/cuda as a library: compiled with the machine's C++ compiler, called through cffi."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import cffi
import pytest

SOURCE = Path(__file__).with_name("cuda_host.cpp")


def declarations() -> str:
    """The C signatures of the source, bodies left out; pointers stay pointers."""
    text = SOURCE.read_text(encoding="utf-8")
    block = text[text.index('extern "C" {') + len('extern "C" {') : text.rindex('}  // extern "C"')]
    found = re.findall(r"^(?:const char \*|void |int32_t |int64_t )host_\w+\([^{]*?\)(?= \{)", block, re.MULTILINE)
    return ";\n".join(found) + ";"


def build(folder: Path) -> tuple[cffi.FFI, Any]:
    """Compile and load; skips the test where there is no C++ compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = folder / "cuda_host.so"
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    done = subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ffi = cffi.FFI()
    ffi.cdef(declarations())
    return ffi, ffi.dlopen(str(library))
