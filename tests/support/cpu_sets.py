"""The native CPU kernels of the lowest instruction set, beside those that the machine would choose."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

from tandem.backends.cpu import native
from tandem.backends.cpu.native import NativeLibrary

BUILD = Path(__file__).resolve().parents[2] / "csrc" / "build_cpu.py"


@cache
def portable() -> NativeLibrary:
    """Built from this source tree once a process."""
    with tempfile.TemporaryDirectory(prefix="tandem-portable-") as folder:
        path = Path(folder) / "libtandem_cpu.so"
        subprocess.run([sys.executable, str(BUILD), str(path), "--sets", "portable"], check=True)
        found, status = native._load(path)
    assert found is not None and status.isa == "portable", status.reason
    return found


@contextmanager
def portable_kernels() -> Iterator[None]:
    """Launchers call the portable set."""
    with mock.patch.object(native, "library", portable):
        yield
