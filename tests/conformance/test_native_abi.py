"""The C ABI of the native CPU kernels: declarations, refusals, and what the loader says."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conformance.native_cases import LIB, mix_case, raw_api

from tandem.backends.cpu import native
from tandem.errors import LayoutError


def test_status_codes_leave_outputs_alone() -> None:
    ffi, handle, api = raw_api(native.LIBRARY_PATH)
    x, out, scales = torch.ones((2, 32)), torch.full((2, 32), 9, dtype=torch.uint8), torch.full((2, 1), 9)
    p, o, s = x.data_ptr(), out.data_ptr(), scales.data_ptr()
    assert api.quantize_fp8_g32(0, 1, 2, 32, o, s) == 1
    assert api.quantize_fp8_g32(p + 2, 1, 1, 32, o, s) == 2
    assert api.quantize_fp8_g32(p, 1, 2, 31, o, s) == 3 and api.quantize_fp8_g32(p, 1, -1, 32, o, s) == 3
    assert api.quantize_fp8_g32(p, 7, 2, 32, o, s) == 4
    assert api.quantize_nvfp4_g16(p + 1, 1, 16, o, s) == 2 and api.quantize_fp4_g32(p, 1, 16, o, s) == 3
    f = x.data_ptr()
    assert api.hc_mix(p, f, f, f, 1, 9, 1, 0.0, 0.0, 1, f, f, f) == 3
    assert api.hc_mix(p, f, f, f, 1, 1, 1, 0.0, 0.0, 0, f, f, f) == 4
    assert api.hc_mix(p, f, f, f, 1, 1, 1, float("nan"), 0.0, 1, f, f, f) == 4
    assert api.hc_mix(p, f, f + 2, f, 1, 1, 1, 0.0, 0.0, 1, f, f, f) == 2
    assert api.hc_mix(0, 0, 0, 0, 0, 4, 8, 0.0, 0.0, 1, 0, 0, 0) == 0
    assert (out == 9).all() and (scales == 9).all()
    texts = {ffi.string(api.status_string(code)) for code in range(6)}
    assert len(texts) == 6 and ffi.string(api.status_string(-3)) == b"unknown status code"


def test_wrappers_refuse_what_kernels_cannot_read() -> None:
    good = mix_case(2, 4, 32, seed=4)
    refused: list[Callable[[], object]] = [
        lambda: LIB.quantize_fp8_g32(torch.zeros((2, 33), dtype=torch.bfloat16)),
        lambda: LIB.quantize_fp8_g32(torch.zeros((2, 64), dtype=torch.float16)),
        lambda: LIB.quantize_fp8_g32(torch.zeros((64, 2), dtype=torch.bfloat16).t()),
        lambda: LIB.quantize_fp8_g32(torch.zeros((), dtype=torch.bfloat16)),
        lambda: LIB.quantize_fp4_g32(torch.zeros((2, 32))),
        lambda: LIB.quantize_nvfp4_g16(torch.zeros((2, 24), dtype=torch.bfloat16)),
        lambda: LIB.hc_mix(good[0].float(), *good[1:]),
        lambda: LIB.hc_mix(good[0], good[1][:-1], *good[2:]),
        lambda: LIB.hc_mix(*good[:3], good[3].double(), *good[4:]),
        lambda: LIB.hc_mix(*good[:6], 0),
    ]
    for call in refused:
        with pytest.raises(LayoutError):
            call()
    assert LIB.quantize_fp8_g32(torch.zeros((0, 64), dtype=torch.bfloat16))[1].shape == (0, 2)
    assert LIB.quantize_fp8_g32(torch.zeros((3, 5, 64), dtype=torch.bfloat16))[1].shape == (3, 5, 2)


def test_python_declares_what_the_header_declares(repo_root: Path) -> None:
    """Same entries, arguments and order; Python spells tensor pointers as integers."""
    header = (repo_root / "csrc" / "include" / "tandem.h").read_text()
    assert f"#define TANDEM_ABI_MAJOR {native.ABI_MAJOR}\n" in header
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    struct = header[header.index("typedef struct") : header.index("} tandem_api;")]
    struct = re.sub(r"(const )?(uint16_t|uint8_t|float|void) \*(?=\w)", "uintptr_t ", struct)
    declared = native.CDEF[: native.CDEF.index("} tandem_api;")]
    assert struct.split() == declared.split()


def compile_c(tmp_path: Path, source: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build a foreign library with")
    library = tmp_path / "foreign.so"
    (tmp_path / "foreign.c").write_text("#include <stdint.h>\n" + source)
    command = [compiler, "-shared", "-fPIC", str(tmp_path / "foreign.c"), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize(
    ("source", "reason"),
    (
        ("void *tandem_get_api(uint32_t major) { return 0; }", "another ABI"),
        ("uint32_t t[] = {16, 1, 0, 0}; void *tandem_get_api(uint32_t m) { return t; }", "older"),
        ("int unrelated;", "cannot be loaded"),
    ),
)
def test_a_foreign_library_is_refused_with_a_reason(tmp_path: Path, source: str, reason: str) -> None:
    library, status = native._load(compile_c(tmp_path, source))
    assert library is None and not status.available and reason in status.reason


def test_a_missing_or_damaged_library_is_reported(tmp_path: Path) -> None:
    library, status = native._load(tmp_path / "absent.so")
    assert library is None and status.reason == "it was never built" and status.isa == ""
    (tmp_path / native.WHY_ABSENT).write_text("no C++ compiler\n")
    assert native._load(tmp_path / "other.so")[1].reason == "no C++ compiler"
    (tmp_path / "damaged.so").write_bytes(b"not a library")
    assert "cannot be loaded" in native._load(tmp_path / "damaged.so")[1].reason


def test_threads_come_from_the_runtime_torch_has_loaded() -> None:
    """One OpenMP runtime in the process, and the kernels use it where torch's own is a libgomp."""
    maps = Path("/proc/self/maps").read_text() if Path("/proc/self/maps").exists() else ""
    runtimes = {line.split()[-1] for line in maps.splitlines() if "libgomp" in line}
    if not runtimes:
        pytest.skip("torch has loaded no libgomp here")
    assert len(runtimes) == 1 and native.native_status().parallel
