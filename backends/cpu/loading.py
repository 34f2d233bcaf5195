"""The library of native kernels as a file: whether it is there, whether it can be loaded, and what it says of itself.

Nothing here imports torch, so that probing need not; `native.py` calls the kernels.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cffi

ABI_MAJOR = 2
LIBRARY_PATH = Path(__file__).parent / "libtandem_cpu.so"
# Written by the build beside a library that it could not make.
WHY_ABSENT = "libtandem_cpu.absent.txt"

CDEF = """
typedef int32_t (*tandem_entry_fn)(const uint8_t *words);
typedef struct tandem_entry { const char *name; const char *signature; tandem_entry_fn run; } tandem_entry;
typedef struct tandem_set { const char *name; const tandem_entry *entries; int64_t usable; } tandem_set;
typedef struct tandem_api {
  uint32_t size; uint32_t major; uint32_t minor; uint32_t parallel;
  const tandem_set *sets;
  const char *(*status_string)(int32_t status);
  int32_t (*replay)(const tandem_entry_fn *entries, const int64_t *offsets, const uint8_t *words, int64_t count,
                    int64_t *failed);
} tandem_api;
const tandem_api *tandem_get_api(uint32_t major);
"""


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """What became of the native library.

    Attributes:
        available: its kernels can be called.
        path: where it was looked for.
        reason: why it is not available; empty when it is.
        sets: the instruction sets that this machine has of those it was compiled for, best first.
        parallel: large calls are split over torch's OpenMP threads.
    """

    available: bool
    path: Path
    reason: str
    sets: tuple[str, ...]
    parallel: bool

    @property
    def isa(self) -> str:
        """The instruction set that kernels run with; empty when they are not available."""
        return self.sets[0] if self.sets else ""


class Opened(NamedTuple):
    """A loaded library: its types, the handle that keeps it loaded, and the table that it serves."""

    ffi: cffi.FFI
    handle: Any
    api: Any


@cache
def open_library(path: Path) -> tuple[Opened | None, NativeStatus]:
    """Load a library, once; None where it cannot be used, and the status says why."""

    def absent(reason: str) -> tuple[None, NativeStatus]:
        return None, NativeStatus(False, path, reason, (), False)

    if not path.exists():
        note = path.with_name(WHY_ABSENT)
        return absent(note.read_text(encoding="utf-8").strip() if note.exists() else "it was never built")
    _show_openmp_to_the_loader()
    ffi = cffi.FFI()
    ffi.cdef(CDEF)
    try:
        handle = ffi.dlopen(str(path))
        api = handle.tandem_get_api(ABI_MAJOR)
    except (OSError, AttributeError) as error:
        return absent(f"cannot be loaded: {error}")
    if api == ffi.NULL:
        return absent(f"serves another ABI than version {ABI_MAJOR}; rebuild it with this source tree")
    if api.size < ffi.sizeof("tandem_api"):
        return absent(f"is older than this source tree (ABI {api.major}.{api.minor}); rebuild it")
    opened = Opened(ffi, handle, api)
    return opened, NativeStatus(True, path, "", tuple(usable_sets(opened)), bool(api.parallel))


def usable_sets(opened: Opened) -> dict[str, Any]:
    """Instruction sets that this machine has, best first: name to ``tandem_set``."""
    found, index = {}, 0
    while opened.api.sets[index].name != opened.ffi.NULL:
        one = opened.api.sets[index]
        if one.usable:
            found[text(opened.ffi, one.name)] = one
        index += 1
    return found


def _show_openmp_to_the_loader() -> None:
    """Make torch's OpenMP runtime visible to libraries loaded later.

    The kernels refer to it weakly and never link one of their own, so that a process holds one OpenMP runtime only.
    What they find when they are loaded they keep.  So before torch is imported its runtime is loaded here, from the
    file that torch will ask for and then find loaded.  Afterwards RTLD_NOLOAD makes sure that this loads nothing:
    without torch's runtime the kernels run in one thread.
    """
    loaded = getattr(os, "RTLD_NOLOAD", None)
    spec = importlib.util.find_spec("torch")
    if loaded is None or spec is None or spec.origin is None:
        return
    mode = os.RTLD_GLOBAL | (loaded if "torch" in sys.modules else os.RTLD_NOW)
    for runtime in sorted((Path(spec.origin).parent / "lib").glob("libgomp*.so*")):
        try:
            ctypes.CDLL(str(runtime), mode=mode)
            return
        except OSError:
            continue


def native_status() -> NativeStatus:
    """Whether the native kernels are available, and if not, why. Loads them at the first call."""
    return open_library(LIBRARY_PATH)[1]


def text(ffi: cffi.FFI, pointer: Any) -> str:
    """A C string."""
    found: bytes = ffi.string(pointer)
    return found.decode()
