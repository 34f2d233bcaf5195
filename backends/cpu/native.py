"""The native kernels of the CPU backend, loaded through the C ABI of ``csrc/include/tandem.h``.

The library is an optional part of an installation: without a C++ compiler at build time it is
absent, and the backend then runs the plain-torch composites alone.  Nothing here raises when it is
missing; ``native_status`` says why, for ``tandem doctor``.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cffi
import torch
from torch import Tensor

from tandem.errors import LayoutError, TandemError

ABI_MAJOR = 1
LIBRARY_PATH = Path(__file__).parent / "libtandem_cpu.so"
# Written by the build beside a library that it could not make.
WHY_ABSENT = "libtandem_cpu.absent.txt"

# The declarations of tandem.h with tensor pointers as integers, because Tensor.data_ptr() gives
# integers and converting each one would cost more than a small kernel does.
CDEF = """
typedef struct tandem_api {
  uint32_t size;
  uint32_t major;
  uint32_t minor;
  uint32_t parallel;
  const char *(*isa)(void);
  const char *(*status_string)(int32_t status);
  int32_t (*hc_mix)(uintptr_t trunk, uintptr_t fn, uintptr_t base, uintptr_t scale,
                    int64_t T, int64_t m, int64_t H, float norm_eps, float hc_eps, int32_t iters,
                    uintptr_t pre, uintptr_t post, uintptr_t comb);
  int32_t (*quantize_fp8_g32)(uintptr_t x, int32_t x_dtype, int64_t T, int64_t N, uintptr_t codes,
                              uintptr_t scales);
  int32_t (*fake_quant_fp8_g32)(uintptr_t x, int32_t x_dtype, int64_t T, int64_t N, uintptr_t y,
                                uintptr_t scales);
  int32_t (*quantize_fp4_g32)(uintptr_t x, int64_t T, int64_t N, uintptr_t packed,
                              uintptr_t scales);
  int32_t (*quantize_nvfp4_g16)(uintptr_t x, int64_t T, int64_t N, uintptr_t packed,
                                uintptr_t scales);
} tandem_api;
const tandem_api *tandem_get_api(uint32_t major);
"""

_X_DTYPE = {torch.bfloat16: 0, torch.float32: 1}


@dataclass(frozen=True)
class NativeStatus:
    """What became of the native library.

    Attributes:
        available: its kernels can be called.
        path: where it was looked for.
        reason: why it is not available; empty when it is.
        isa: the instruction set its kernels run with; empty when not available.
        parallel: large calls are split over torch's OpenMP threads.
    """

    available: bool
    path: Path
    reason: str
    isa: str
    parallel: bool


class NativeLibrary:
    """The loaded kernels, one method each; ``tandem.h`` holds the full contract.

    Every method allocates its outputs, takes contiguous CPU tensors and raises ``LayoutError`` for
    anything else.  A row's result does not depend on the other rows or on the thread count.
    """

    def __init__(self, ffi: cffi.FFI, handle: Any, api: Any) -> None:
        self._ffi, self._handle, self._api = ffi, handle, api
        self.isa: str = ffi.string(api.isa()).decode()
        self.parallel = bool(api.parallel)
        self._hc_mix = api.hc_mix
        self._quantize_fp8_g32 = api.quantize_fp8_g32
        self._fake_quant_fp8_g32 = api.fake_quant_fp8_g32
        self._quantize_fp4_g32 = api.quantize_fp4_g32
        self._quantize_nvfp4_g16 = api.quantize_nvfp4_g16

    def hc_mix(
        self,
        trunk: Tensor,
        fn: Tensor,
        base: Tensor,
        scale: Tensor,
        norm_eps: float,
        hc_eps: float,
        iters: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mixing coefficients of the multi-stream residual.

        Args:
            trunk: bf16 [T, m, H], the residual streams.
            fn: f32 [m*m + 2m, m*H]; base: f32 [m*m + 2m]; scale: f32 [3].
            norm_eps: added to the mean square; hc_eps: added to pre, comb and the Sinkhorn sums.
            iters: Sinkhorn iterations, at least 1.

        Returns:
            pre f32 [T, m], post f32 [T, m], comb f32 [T, m, m].
        """
        shape = trunk.shape
        if len(shape) != 3 or trunk.dtype is not torch.bfloat16 or not trunk.is_contiguous():
            raise _layout_error("hc_mix", "trunk", trunk, "contiguous bf16 [T, m, H]")
        rows, m, width = shape
        mixes = m * m + 2 * m
        _check_f32("hc_mix", "fn", fn, (mixes, m * width))
        _check_f32("hc_mix", "base", base, (mixes,))
        _check_f32("hc_mix", "scale", scale, (3,))
        pre, post, comb = base.new_empty(rows, m), base.new_empty(rows, m), base.new_empty(rows, m, m)
        status = self._hc_mix(
            trunk.data_ptr(), fn.data_ptr(), base.data_ptr(), scale.data_ptr(),
            rows, m, width, norm_eps, hc_eps, iters,
            pre.data_ptr(), post.data_ptr(), comb.data_ptr(),
        )  # fmt: skip
        if status:
            raise self._status_error("hc_mix", status, trunk)
        return pre, post, comb

    def quantize_fp8_g32(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x bf16 or f32 [..., N] to e4m3 codes u8 [..., N] and ue8m0 scales u8 [..., N/32]."""
        rows, n = _rows("quantize_fp8_g32", x, 32)
        codes = torch.empty(*x.shape, dtype=torch.uint8)
        scales = torch.empty(*x.shape[:-1], n // 32, dtype=torch.uint8)
        status = self._quantize_fp8_g32(
            x.data_ptr(), _X_DTYPE[x.dtype], rows, n, codes.data_ptr(), scales.data_ptr()
        )
        if status:
            raise self._status_error("quantize_fp8_g32", status, x)
        return codes, scales

    def fake_quant_fp8_g32(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `quantize_fp8_g32`, with the represented values f32 [..., N] in place of the codes."""
        rows, n = _rows("fake_quant_fp8_g32", x, 32)
        y = torch.empty(*x.shape, dtype=torch.float32)
        scales = torch.empty(*x.shape[:-1], n // 32, dtype=torch.uint8)
        status = self._fake_quant_fp8_g32(
            x.data_ptr(), _X_DTYPE[x.dtype], rows, n, y.data_ptr(), scales.data_ptr()
        )
        if status:
            raise self._status_error("fake_quant_fp8_g32", status, x)
        return y, scales

    def quantize_fp4_g32(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x bf16 [..., N] to packed e2m1 u8 [..., N/2] and ue8m0 scales u8 [..., N/32]."""
        return self._quantize_fp4("quantize_fp4_g32", self._quantize_fp4_g32, x, 32)

    def quantize_nvfp4_g16(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x bf16 [..., N] to packed e2m1 u8 [..., N/2] and e4m3 scales u8 [..., N/16]."""
        return self._quantize_fp4("quantize_nvfp4_g16", self._quantize_nvfp4_g16, x, 16)

    def _quantize_fp4(self, op: str, kernel: Any, x: Tensor, group: int) -> tuple[Tensor, Tensor]:
        if x.dtype is not torch.bfloat16:
            raise _layout_error(op, "x", x, "bf16")
        rows, n = _rows(op, x, group)
        packed = torch.empty(*x.shape[:-1], n // 2, dtype=torch.uint8)
        scales = torch.empty(*x.shape[:-1], n // group, dtype=torch.uint8)
        status = kernel(x.data_ptr(), rows, n, packed.data_ptr(), scales.data_ptr())
        if status:
            raise self._status_error(op, status, x)
        return packed, scales

    def _status_error(self, op: str, status: int, x: Tensor) -> TandemError:
        return LayoutError(
            f"the native kernel {op} refused its arguments",
            where=f"{op}, first tensor {tuple(x.shape)} {x.dtype}",
            why=self._ffi.string(self._api.status_string(status)).decode(),
            fix="check the shapes and scalars against the op's contract",
        )


def _layout_error(op: str, name: str, tensor: Tensor, expected: str) -> LayoutError:
    return LayoutError(
        f"the native kernel {op} cannot read its tensor {name}",
        where=f"{op}, {name} {tuple(tensor.shape)} {tensor.dtype} {tensor.stride()} on {tensor.device}",
        why=f"it reads {expected} in host memory only",
        fix="pass a contiguous tensor of that shape and dtype",
    )


def _check_f32(op: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.dtype is not torch.float32 or tensor.shape != shape or not tensor.is_contiguous():
        raise _layout_error(op, name, tensor, f"contiguous f32 {shape}")


def _rows(op: str, x: Tensor, group: int) -> tuple[int, int]:
    """Number of rows and channels of an activation whose channels come in whole groups."""
    shape = x.shape
    n = shape[-1] if shape else 0
    if n == 0 or n % group or x.dtype not in _X_DTYPE or not x.is_contiguous():
        raise _layout_error(op, "x", x, f"contiguous bf16 or f32 [..., N] with N a multiple of {group}")
    return x.numel() // n, n


@cache
def _load(path: Path) -> tuple[NativeLibrary | None, NativeStatus]:
    def absent(reason: str) -> tuple[None, NativeStatus]:
        return None, NativeStatus(False, path, reason, "", False)

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
    library = NativeLibrary(ffi, handle, api)
    return library, NativeStatus(True, path, "", library.isa, library.parallel)


def _show_openmp_to_the_loader() -> None:
    """Make the OpenMP runtime that torch has loaded visible to libraries loaded later.

    The kernels refer to it weakly and never link one of their own, so that a process holds one
    OpenMP runtime only.  RTLD_NOLOAD makes sure that this loads nothing: without torch's runtime
    the kernels run in one thread.
    """
    mode = getattr(os, "RTLD_NOLOAD", None)
    if mode is None:
        return
    for runtime in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            ctypes.CDLL(str(runtime), mode=mode | os.RTLD_GLOBAL)
            return
        except OSError:
            continue


def native_library() -> NativeLibrary | None:
    """The native kernels, loaded at the first call; None when they are not available."""
    return _load(LIBRARY_PATH)[0]


def native_status() -> NativeStatus:
    """Whether the native kernels are available, and if not, why. Loads them at the first call."""
    return _load(LIBRARY_PATH)[1]
