"""The CUDA library: *compiled* gates over its code, refusals without a device, and layouts against CUTLASS's own.

Needs nvcc and CUTLASS and builds the library where `make cuda` has not, which takes many minutes.
"""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import pytest
from support.cuda_host import e2m1_values, e4m3_values, packed

from tandem.backends.cuda import native
from tandem.backends.cuda.native import CudaLibrary
from tandem.errors import BackendLoadError
from tools import build_cuda, cuda_library
from tools.cuda_library import DeviceKernel

MX = {"UTCQMMA", "UTCCP", "UTMALDG", "UTMASTG", "LDTM"}
PLAIN = {"UTCHMMA", "UTMALDG", "UTMASTG", "LDTM"}
NEEDS = {
    "mx_small_bf16": MX, "mx_small_f32": MX, "mx_large_bf16": MX, "mx_large_f32": MX, "bf16_small": PLAIN,
    "bf16_large": PLAIN, "grouped_small": MX, "grouped_large": MX, "generic_product": set(), "sum_parts": set(),
    "fill_group_table": set(), "place_group_rows": set(),
}  # fmt: skip
SPILLS: dict[str, int] = {}  # kernel -> bytes, with the reason beside it
THREADS, REGISTERS, SHARED = 256, 65536, 227 * 1024  # of a block

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def toolchain() -> build_cuda.Toolchain:
    found = build_cuda.find_toolchain()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def library(toolchain: build_cuda.Toolchain) -> CudaLibrary:
    build_cuda.build(toolchain)
    native._load.cache_clear()
    found = native.library()
    assert found is not None, native.library_status()
    return found


@pytest.fixture(scope="module")
def kernels(library: CudaLibrary) -> dict[str, DeviceKernel]:
    tools = cuda_library.find_tools()
    if tools is None:
        pytest.skip("no cuobjdump and nvdisasm")
    found = cuda_library.read_kernels(build_cuda.LIBRARY, build_cuda.objects(".cu"), tools)
    return {kernel.name: kernel for kernel in found}


def test_every_kernel_is_known(kernels: dict[str, DeviceKernel], library: CudaLibrary) -> None:
    assert set(kernels) == set(NEEDS)
    assert {kernel.arch for kernel in kernels.values()} == {"sm_100a"}
    assert {fact.name for fact in library.kernels()} - {"generic"} <= set(kernels)


@pytest.mark.parametrize("name", NEEDS)
def test_resources_and_instructions(kernels: dict[str, DeviceKernel], library: CudaLibrary, name: str) -> None:
    kernel, facts = kernels[name], {fact.name: fact for fact in library.kernels()}
    assert kernel.spilled == SPILLS.get(name, 0)
    assert kernel.registers * THREADS <= REGISTERS
    assert NEEDS[name] <= set(kernel.instructions)
    if name in facts:
        assert 64 * 1024 < facts[name].shared_bytes <= SHARED
        assert kernel.pairs == (facts[name].multiprocessors == 2)


def test_library_stands_alone(library: CudaLibrary) -> None:
    """One symbol goes out, and nothing of CUDA need be there to open it."""
    names = subprocess.run(["nm", "-D", "--defined-only", str(build_cuda.LIBRARY)], capture_output=True, text=True)
    assert [line.split()[-1] for line in names.stdout.splitlines()] == ["tandem_cuda_get_api"]
    needs = subprocess.run(["readelf", "-d", str(build_cuda.LIBRARY)], capture_output=True, text=True).stdout
    assert "libcuda" not in needs
    assert library.api.major == native.ABI_MAJOR


def test_every_entry_refuses_without_a_driver(library: CudaLibrary) -> None:
    if not library.device_status():
        pytest.skip("a device is here")
    code = library.api.device_status()
    assert code in (native.NO_DRIVER, native.NO_DEVICE, native.WRONG_DEVICE)
    memory = np.full(4096, 7, dtype=np.uint8)
    at = (memory.ctypes.data + 255) // 256 * 256
    calls: dict[str, tuple[int, ...]] = {
        "linear": (0, at, at, native.MXFP8, at, at, native.MXFP8, 1, 32, 32, at, native.BF16, at, 1024),
        "group_linear": (0, at, at, at, at, 1, 1, 32, 32, at),
        "grouped_linear": (0, at, at, at, at, native.MXFP4, at, 1, 1, 32, 32, at, at, 1024),
    }
    for entry, arguments in calls.items():
        assert getattr(library.api, entry)(*arguments) == code
        with pytest.raises(BackendLoadError, match=entry):
            library.run(entry, *arguments)
    assert (memory == 7).all()
    assert len({library.text(status) for status in (*range(5), *range(16, 21), 99)}) == 11


def test_sizes_need_no_device(library: CudaLibrary) -> None:
    assert library.size("linear", native.MXFP8, native.MXFP8, native.BF16, 8, 32768, 1280) == 0
    assert library.size("linear", native.MXFP8, native.MXFP8, native.BF16, 8, 1280, 5120) == 4 * 8 * 1280 * 4
    assert library.size("linear", native.BF16, native.BF16, native.F32, 8, 129280, 5120) == 0
    small, more = (library.size("grouped_linear", native.MXFP4, rows, 384, 2304, 5120) for rows in (96, 96 + 128))
    assert 384 * 20480 < small < more == small + 40 * 512
    assert library.kernel("grouped_linear", native.MXFP4, 96, 384, 2304, 5120) == "grouped_small"
    status = library.api.linear_workspace(native.MXFP8, native.MXFP8, native.BF16, 1, 32, 33, library._bytes)
    assert status == 3 and library.kernel("linear", 9, native.BF16, native.BF16, 1, 32, 32) == ""


def test_recorded_facts_are_those_of_the_library(kernels: dict[str, DeviceKernel]) -> None:
    """The tables of docs/CUDA_LIBRARY.md come from a build of these sources with this compiler."""
    facts = json.loads(cuda_library.FACTS.read_text(encoding="utf-8"))
    found = build_cuda.find_toolchain()
    if isinstance(found, str) or (facts["nvcc"], facts["cutlass"]) != (found.version, version("nvidia-cutlass")):
        pytest.skip("another compiler than that of the record")
    recorded = {entry["name"]: entry["registers"] for entry in facts["kernels"]}
    assert recorded == {name: kernel.registers for name, kernel in kernels.items()}, "run python -m tools.cuda_library"


@pytest.fixture(scope="module")
def cutlass(toolchain: build_cuda.Toolchain, tmp_path_factory: pytest.TempPathFactory) -> tuple[cffi.FFI, Any]:
    """CUTLASS on the host."""
    source = Path(__file__).parent.parent / "support" / "cuda_layouts.cu"
    target = tmp_path_factory.mktemp("cuda_layouts") / "cuda_layouts.so"
    includes = [word for path in toolchain.includes for word in ("-I", str(path))]
    command = [str(toolchain.nvcc), *build_cuda.FLAGS, "-w", "-shared", "-Xcompiler", "-fPIC", "--cudart", "static"]
    command += ["-L", str(toolchain.runtime)]
    subprocess.run([*command, *includes, str(source), "-o", str(target)], check=True)
    ffi = cffi.FFI()
    scaled = "const void *w, const uint8_t *w_scale, const void *x, const uint8_t *x_scale"
    ffi.cdef(
        "void layout_offsets(int32_t rows, int32_t depth, int32_t count, int32_t band, int32_t batch, int64_t *out);"
        "void own_strides(int32_t rows, int32_t depth, int32_t count, int64_t *out);"
        f"void product_fp8({scaled}, int32_t tokens, int32_t outputs, int32_t depth, float *out);"
        f"void product_fp4({scaled}, int32_t tokens, int32_t outputs, int32_t depth, float *out);"
    )
    return ffi, ffi.dlopen(str(target))


def offsets(cutlass: tuple[cffi.FFI, Any], rows: int, depth: int, count: int, band: int, batch: int) -> np.ndarray:
    ffi, lib = cutlass
    out = np.empty((count, rows, depth // 32), dtype=np.int64)
    lib.layout_offsets(rows, depth, count, band, batch, ffi.from_buffer("int64_t *", out))
    return out


@pytest.mark.parametrize(("rows", "depth"), [(1, 128), (129, 160), (300, 512)])
def test_cutlass_reads_scales_where_they_are_packed(cutlass: tuple[cffi.FFI, Any], rows: int, depth: int) -> None:
    scale = np.random.default_rng(rows).integers(0, 255, (rows, depth // 32), dtype=np.uint8)
    tiles = -(-depth // 128)
    np.testing.assert_array_equal(packed(scale)[offsets(cutlass, rows, depth, 1, tiles, tiles)[0]], scale)
    ffi, lib = cutlass
    own = np.empty(3, dtype=np.int64)
    lib.own_strides(256, depth, 2, ffi.from_buffer("int64_t *", own))
    np.testing.assert_array_equal(own, [tiles * 512, 512, 2 * tiles * 512])


def test_cutlass_reads_parts_of_packed_scales(cutlass: tuple[cffi.FFI, Any]) -> None:
    """A part of a split sum, and a group of channels, have the bands of the whole; weights of groups have their own."""
    rng = np.random.default_rng(5)
    whole = rng.integers(0, 255, (200, 64), dtype=np.uint8)  # depth 2048 in four parts of 512
    memory = packed(whole)
    found = memory[offsets(cutlass, 200, 512, 4, 16, 4)]
    np.testing.assert_array_equal(found, np.stack(np.split(whole, 4, axis=1)))
    weights = rng.integers(0, 255, (3, 150, 8), dtype=np.uint8)
    memory = np.concatenate([packed(weight) for weight in weights])
    np.testing.assert_array_equal(memory[offsets(cutlass, 150, 256, 3, 2, 4)], weights)


@pytest.mark.parametrize("fmt", ["fp8", "fp4"])
def test_cutlass_reference_over_packed_operands(cutlass: tuple[cffi.FFI, Any], fmt: str) -> None:
    """CUTLASS's host product, given operands as the kernels are given them, against a decode in float64."""
    ffi, lib = cutlass
    rng = np.random.default_rng(8)
    tokens, outputs, depth = 70, 136, 256

    def operand(rows: int, codes: int) -> tuple[np.ndarray, np.ndarray]:
        scale = rng.integers(122, 132, (rows, depth // 32), dtype=np.uint8)
        code = rng.integers(0, codes, (rows, depth), dtype=np.uint8)
        code[code & 0x7F == 0x7F] = 0
        return code, scale

    (x, x_scale), (w, w_scale) = operand(tokens, 256), operand(outputs, 256 if fmt == "fp8" else 16)
    factors = [2.0 ** (np.repeat(scale, 32, axis=1).astype(np.float64) - 127) for scale in (x_scale, w_scale)]
    x_values = e4m3_values()[x] * factors[0]
    w_values = (e4m3_values() if fmt == "fp8" else e2m1_values())[w] * factors[1]
    stored = w if fmt == "fp8" else w[:, 0::2] | w[:, 1::2] << 4
    arrays = [np.ascontiguousarray(a) for a in (stored, packed(w_scale), x, packed(x_scale))]
    out = np.empty((tokens, outputs), dtype=np.float32)
    kinds = ("void *", "uint8_t *", "void *", "uint8_t *")
    pointers = [ffi.from_buffer(kind, array) for kind, array in zip(kinds, arrays, strict=True)]
    getattr(lib, f"product_{fmt}")(*pointers, tokens, outputs, depth, ffi.from_buffer("float *", out))
    size = np.abs(x_values) @ np.abs(w_values).T
    assert (np.abs(out - x_values @ w_values.T) <= size * depth * 2.0**-23).all()
