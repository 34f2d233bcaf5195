"""The matrix products of SM100, loaded through the C ABI of ``csrc/include/tandem_cuda.h``.

The library is built by ``make cuda``.  It needs no driver to be opened: without one every entry that queues work
returns a status that says so.  Nothing here raises where the library is missing; ``library_status`` says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cffi

from tandem.errors import BackendLoadError, LayoutError, TandemError

ABI_MAJOR = 1
NAME = "libtandem_cuda.so"
_HERE = Path(__file__).resolve().parent
# Beside the package as installed, and where `make cuda` leaves it in a checkout.
PLACES = (_HERE / NAME, _HERE.parent.parent / "build" / "cuda" / NAME)

BF16, F32, MXFP8, MXFP4 = 0, 1, 2, 3
NO_DRIVER, NO_DEVICE, WRONG_DEVICE = 16, 17, 18
_DEVICE_CODES = (NO_DRIVER, NO_DEVICE, WRONG_DEVICE)

# The declarations of tandem_cuda.h with tensor pointers as integers, as data_ptr() gives them.
CDEF = """
typedef struct tandem_cuda_kernel {
  const char *name;
  const char *use;
  int32_t outputs;
  int32_t tokens;
  int32_t depth;
  int32_t multiprocessors;
  int32_t shared_bytes;
} tandem_cuda_kernel;
typedef struct tandem_cuda_api {
  uint32_t size;
  uint32_t major;
  uint32_t minor;
  uint32_t reserved;
  const char *(*status_string)(int32_t status);
  int32_t (*device_status)(void);
  int32_t (*kernel_facts)(int32_t index, tandem_cuda_kernel *facts);
  int32_t (*linear_workspace)(int32_t x_format, int32_t w_format, int32_t out_format, int64_t T,
                              int64_t N, int64_t K, int64_t *bytes);
  int32_t (*linear)(uintptr_t stream, uintptr_t x, uintptr_t x_scale, int32_t x_format,
                    uintptr_t w, uintptr_t w_scale, int32_t w_format, int64_t T, int64_t N,
                    int64_t K, uintptr_t out, int32_t out_format, uintptr_t workspace,
                    int64_t workspace_bytes);
  const char *(*linear_kernel)(int32_t x_format, int32_t w_format, int32_t out_format, int64_t T,
                               int64_t N, int64_t K);
  int32_t (*group_linear)(uintptr_t stream, uintptr_t x, uintptr_t x_scale, uintptr_t w,
                          uintptr_t w_scale, int64_t T, int64_t G, int64_t N, int64_t K,
                          uintptr_t out);
  const char *(*group_linear_kernel)(int64_t T, int64_t G, int64_t N, int64_t K);
  int32_t (*grouped_linear_workspace)(int32_t w_format, int64_t T, int64_t E, int64_t N, int64_t K,
                                      int64_t *bytes);
  int32_t (*grouped_linear)(uintptr_t stream, uintptr_t x, uintptr_t x_scale, uintptr_t w,
                            uintptr_t w_scale, int32_t w_format, uintptr_t ends, int64_t T,
                            int64_t E, int64_t N, int64_t K, uintptr_t out, uintptr_t workspace,
                            int64_t workspace_bytes);
  const char *(*grouped_linear_kernel)(int32_t w_format, int64_t T, int64_t E, int64_t N,
                                       int64_t K);
} tandem_cuda_api;
const tandem_cuda_api *tandem_cuda_get_api(uint32_t major);
"""


@dataclass(frozen=True, slots=True)
class LibraryStatus:
    """What became of the library.

    Args:
        available: it is loaded.
        path: the file, or the places where it was looked for.
        reason: why it is not available; empty where it is.
    """

    available: bool
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """A kernel for tables.

    Args:
        name: as `CudaLibrary.kernel` gives it.
        use: the products it is for, and why.
        tile: outputs, tokens and depth of a step.
        multiprocessors: that share a tile.
        shared_bytes: shared memory of a block.
    """

    name: str
    use: str
    tile: tuple[int, int, int]
    multiprocessors: int
    shared_bytes: int


class CudaLibrary:
    """The loaded entries.  Pointers are integers, sizes are those of the header; statuses become errors."""

    def __init__(self, ffi: cffi.FFI, handle: Any, api: Any) -> None:
        self._ffi, self._handle, self.api = ffi, handle, api
        self._bytes = ffi.new("int64_t *")

    def device_status(self) -> str:
        """Why kernels cannot run on the current device; empty where they can."""
        status = self.api.device_status()
        return self.text(status) if status else ""

    def text(self, status: int) -> str:
        """What a status code means."""
        found: bytes = self._ffi.string(self.api.status_string(status))
        return found.decode()

    def size(self, entry: str, *arguments: int) -> int:
        """Bytes of workspace that an entry wants for these arguments."""
        query = f"{entry}_workspace"
        self._check(query, getattr(self.api, query)(*arguments, self._bytes))
        return int(self._bytes[0])

    def run(self, entry: str, *arguments: int) -> None:
        """Queue work.

        Raises:
            BackendLoadError: the current device cannot run it.
            LayoutError: the arguments are not what the entry takes.
        """
        self._check(entry, getattr(self.api, entry)(*arguments))

    def kernel(self, entry: str, *arguments: int) -> str:
        """Name of the kernel that an entry runs for these arguments."""
        name: bytes = self._ffi.string(getattr(self.api, f"{entry}_kernel")(*arguments))
        return name.decode()

    def kernels(self) -> list[KernelFacts]:
        """All kernels, in the library's order."""
        found: list[KernelFacts] = []
        facts = self._ffi.new("tandem_cuda_kernel *")
        while not self.api.kernel_facts(len(found), facts):
            name, use = (self._ffi.string(text).decode() for text in (facts.name, facts.use))
            tile = (facts.outputs, facts.tokens, facts.depth)
            found.append(KernelFacts(name, use, tile, facts.multiprocessors, facts.shared_bytes))
        return found

    def _check(self, entry: str, status: int) -> None:
        if not status:
            return
        kind: type[TandemError] = BackendLoadError if status in _DEVICE_CODES else LayoutError
        fix = "tandem doctor shows driver and device" if status in _DEVICE_CODES else "check the op's contract"
        raise kind(
            f"the CUDA library refused {entry}", where=f"{entry}, status {status}", why=self.text(status), fix=fix
        )


@cache
def _load(places: tuple[Path, ...]) -> tuple[CudaLibrary | None, LibraryStatus]:
    path = next((place for place in places if place.exists()), None)
    if path is None:
        shown = " or ".join(map(str, places))
        return None, LibraryStatus(False, shown, "it was never built; `make cuda` builds it")

    def absent(reason: str) -> tuple[None, LibraryStatus]:
        return None, LibraryStatus(False, str(path), reason)

    ffi = cffi.FFI()
    ffi.cdef(CDEF)
    try:
        handle = ffi.dlopen(str(path))
        api = handle.tandem_cuda_get_api(ABI_MAJOR)
    except (OSError, AttributeError) as error:
        return absent(f"cannot be loaded: {error}")
    if api == ffi.NULL:
        return absent(f"serves another ABI than version {ABI_MAJOR}; build it again with `make cuda`")
    if api.size < ffi.sizeof("tandem_cuda_api"):
        return absent(f"is older than this source tree (ABI {api.major}.{api.minor}); build it again with `make cuda`")
    return CudaLibrary(ffi, handle, api), LibraryStatus(True, str(path), "")


def library() -> CudaLibrary | None:
    """The library, loaded at the first call; None where it is not available."""
    return _load(PLACES)[0]


def library_status() -> LibraryStatus:
    """Whether the library is available, and if not, why.  Loads it at the first call."""
    return _load(PLACES)[1]
