"""The C ABI of the native CPU kernels: declarations, refusals, and what the loader says."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cpu.residual_cases import op

from tandem.backends.cpu import loading, native
from tandem.contract.types import QFormat
from tandem.errors import BackendLoadError, LayoutError


def status_of(name: str, *words: int | float) -> int:
    """What an entry says to words as they are, unchecked."""
    entry = native.library().entries[name]
    assert len(words) == len(entry.signature)
    packed = b"".join(struct.pack("=d" if isinstance(word, float) else "=q", word) for word in words)
    status: int = entry.function(packed)
    return status


def test_status_codes_leave_outputs_alone() -> None:
    x, out, scales = torch.ones((2, 32)), torch.full((2, 32), 9, dtype=torch.uint8), torch.full((2, 1), 9)
    p, o, s = x.data_ptr(), out.data_ptr(), scales.data_ptr()
    mxfp8 = 2
    assert status_of("quantize", 0, o, s, 2, 32, mxfp8) == 1
    assert status_of("quantize", p, o, s, 2, 31, mxfp8) == 3
    assert status_of("quantize", p, o, s, -1, 32, mxfp8) == 3
    assert status_of("quantize", p, o, s, 2, 32, 7) == 4
    assert status_of("rms_norm", p, 0, o, 0, s, 1, 32, 0.0) == 1
    assert status_of("rms_norm", p, 0, o, o, s, 1, 31, 0.0) == 3
    assert status_of("rms_norm", p, 0, o, 0, 0, 1, 32, float("nan")) == 4
    arrays = (p, p, p, p, o, o, o, o)
    assert status_of("hc_mix", *arrays, 1, 9, 1, 1 << 20, 0.0, 0.0, 1) == 3
    assert status_of("hc_mix", *arrays, 1, 1, 1, 63, 0.0, 0.0, 1) == 3
    assert status_of("hc_mix", *arrays, 1, 1, 1, 64, 0.0, 0.0, 0) == 4
    assert status_of("hc_mix", *arrays, 1, 1, 1, 64, float("nan"), 0.0, 1) == 4
    assert status_of("hc_mix", *(0 for _ in arrays), 1, 1, 1, 64, 0.0, 0.0, 1) == 1
    assert status_of("hc_mix", *(0 for _ in arrays), 0, 4, 8, 0, 0.0, 0.0, 1) == 0
    index = torch.tensor([[0, 3]])
    assert status_of("engram_gather", index.data_ptr(), p, p, o, s, 0, 1, 2, 3, 32) == 5
    assert (out == 9).all() and (scales == 9).all()


def test_status_codes_have_texts() -> None:
    library = native.library()
    texts = {library.ffi.string(library.api.status_string(code)) for code in range(6)}
    assert len(texts) == 6 and library.ffi.string(library.api.status_string(-3)) == b"unknown status code"


def test_arguments_are_checked_against_the_signature() -> None:
    x = torch.zeros((2, 64), dtype=torch.bfloat16)
    codes, scales = torch.zeros((2, 64), dtype=torch.uint8), torch.zeros((2, 2), dtype=torch.uint8)
    refused: list[Callable[[], object]] = [
        lambda: native.run("quantize", x.to(torch.float16), codes, scales, 2, 64, 2),
        lambda: native.run("quantize", x.view(64, 2).t(), codes, scales, 2, 64, 2),
        lambda: native.run("quantize", x.to("meta"), codes, scales, 2, 64, 2),
        lambda: native.run("quantize", x, codes, scales, 2, 64),
        lambda: native.run("quantize", x, codes, scales, 2, 64.0, 2),
        lambda: native.run("quantize", x, codes, scales, 2, 2**70, 2),
        lambda: native.run("quantize", x, codes, scales, 2, None, 2),
        lambda: op("quantize")(x[:, :33], QFormat.MXFP8),
        lambda: op("quantize")(x[:, :24], QFormat.NVFP4),
    ]
    for call in refused:
        with pytest.raises(LayoutError):
            call()
    with pytest.raises(BackendLoadError, match="no kernel 'absent'"):
        native.run("absent")
    assert not codes.any() and not scales.any()


def test_python_declares_what_the_header_declares(repo_root: Path) -> None:
    """Same types, fields and arguments, in the same order."""
    header = (repo_root / "csrc" / "include" / "tandem.h").read_text()
    assert f"#define TANDEM_ABI_MAJOR {loading.ABI_MAJOR}\n" in header
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    end = "tandem_get_api(uint32_t major);"
    declared = header[header.index("typedef int32_t") : header.index(end) + len(end)]
    assert declared.split() == loading.CDEF.split()


def test_signatures_have_known_letters() -> None:
    letters = set("bhiulfdvIF")
    for entry in native.library().entries.values():
        assert entry.signature and set(entry.signature) <= letters


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
        ("uint32_t t[] = {16, 2, 0, 0}; void *tandem_get_api(uint32_t m) { return t; }", "older"),
        ("int unrelated;", "cannot be loaded"),
    ),
)
def test_a_foreign_library_is_refused_with_a_reason(tmp_path: Path, source: str, reason: str) -> None:
    library, status = loading.open_library(compile_c(tmp_path, source))
    assert library is None and not status.available and reason in status.reason


def test_a_missing_or_damaged_library_is_reported(tmp_path: Path) -> None:
    library, status = loading.open_library(tmp_path / "absent.so")
    assert library is None and status.reason == "it was never built" and status.isa == ""
    (tmp_path / loading.WHY_ABSENT).write_text("no C++ compiler\n")
    assert loading.open_library(tmp_path / "other.so")[1].reason == "no C++ compiler"
    (tmp_path / "damaged.so").write_bytes(b"not a library")
    assert "cannot be loaded" in loading.open_library(tmp_path / "damaged.so")[1].reason


def test_threads_come_from_the_runtime_torch_has_loaded() -> None:
    """One OpenMP runtime in the process, and the kernels use it where torch's own is a libgomp."""
    maps = Path("/proc/self/maps").read_text() if Path("/proc/self/maps").exists() else ""
    runtimes = {line.split()[-1] for line in maps.splitlines() if "libgomp" in line}
    if not runtimes:
        pytest.skip("torch has loaded no libgomp here")
    assert len(runtimes) == 1 and loading.native_status().parallel
