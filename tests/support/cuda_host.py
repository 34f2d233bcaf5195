"""The host side of csrc/cuda as a library, and decodes that owe it nothing.

The library is compiled with the machine's C++ compiler and called through cffi.
"""

from __future__ import annotations

import itertools
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import cffi
import numpy as np
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


def packed(scale: np.ndarray) -> np.ndarray:
    """Scales [rows, groups] by the words of the PTX manual: 32 lanes of 16 bytes, and a lane holds four rows."""
    rows, groups = scale.shape
    bands, columns = -(-rows // 128), -(-groups // 4)
    out = np.full((bands, columns, 32, 4, 4), 127, dtype=np.uint8)  # band, tile, lane, row of the lane, group
    for row, group in itertools.product(range(rows), range(groups)):
        out[row // 128, group // 4, row % 32, row % 128 // 32, group % 4] = scale[row, group]
    return out.reshape(-1)


def e4m3_values() -> np.ndarray:
    """What the 256 codes are worth, float64."""
    found = []
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        found.append(math.nan if code & 0x7F == 0x7F else -value if code & 0x80 else value)
    return np.array(found)


def e2m1_values() -> np.ndarray:
    """What the 16 codes are worth, float64."""
    positive = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    return np.concatenate((positive, -positive))
