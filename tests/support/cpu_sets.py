"""Libraries of the CPU's kernels for one instruction set each, to compare their bits."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tandem.backends.cpu import native

# By what platform.machine() says: sets whose code differs from that of the best one.
NAMES = {"x86_64": ("portable", "avx2")}
_BUILT: dict[Path, dict[str, native.NativeLibrary]] = {}


def build(root: Path, make_folder: Callable[[str], Path]) -> dict[str, native.NativeLibrary]:
    """Libraries by set, compiled once a session from the source tree at ``root``; skips where that is not possible.

    Args:
        root: the source tree.
        make_folder: makes a folder of some name, for the libraries.
    """
    if root not in _BUILT:
        _BUILT[root] = _build(root, make_folder("sets"))
    return _BUILT[root]


def _build(root: Path, folder: Path) -> dict[str, native.NativeLibrary]:
    names = NAMES.get(platform.machine())
    sys.path.insert(0, str(root / "csrc"))
    try:
        from build_cpu import compile_library, find_compiler
    finally:
        sys.path.pop(0)
    compiler = find_compiler()
    if names is None or compiler is None:
        pytest.skip("no compiler, or one instruction set only")
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        names = tuple(name for name in names if name != "avx2")
    paths = {name: folder / f"{name}.so" for name in names}
    with ThreadPoolExecutor() as pool:
        messages = list(pool.map(lambda name: compile_library(paths[name], compiler, [name]), names))
    assert messages == [""] * len(names)
    found = {name: native._load(path)[0] for name, path in paths.items()}
    return {name: library for name, library in found.items() if library is not None}


@contextmanager
def using(library: native.NativeLibrary) -> Iterator[None]:
    """Launchers call another library."""
    before = native.run
    native.run = library.run
    try:
        yield
    finally:
        native.run = before


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Kernels run with a number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
