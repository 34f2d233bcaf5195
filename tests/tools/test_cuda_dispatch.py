"""*Emulated*: the host side of the CUDA library on a runtime that runs nothing and writes down what it is asked.

What would be launched, and how each operand is described to the copy engine: addresses, extents and strides of every
descriptor, against the memory that the ops own.  Needs the built objects of the library, and so nvcc and CUTLASS.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cffi
import pytest

from tandem.backends.cuda import native
from tandem.backends.cuda.native import BF16, F32, MXFP4, MXFP8, CudaLibrary
from tandem.errors import BackendLoadError, LayoutError
from tools import build_cuda

pytestmark = pytest.mark.slow

X, X_SCALE, W, W_SCALE, OUT, WORK, ENDS = (place << 40 for place in range(1, 8))  # operands, far from one another
BYTES = {0: 1.0, 1: 2.0, 7: 4.0, 9: 2.0, 14: 0.5}  # CUtensorMapDataType: u8, u16, f32, bf16, two fp4 codes a byte
SIZE = {BF16: 2, F32: 4, MXFP8: 1}


@dataclass(frozen=True, slots=True)
class Map:
    """A descriptor of the copy engine: extents and strides in bytes by axis, axes of one element left out."""

    operand: int
    start: int
    axes: dict[int, int]  # stride -> extent
    row: int  # bytes of the innermost axis


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch: the function, blocks, threads of a block, blocks of a cluster and shared memory."""

    name: str
    grid: int
    threads: int
    cluster: int
    shared: int


class Fake:
    """The library on the runtime that runs nothing."""

    def __init__(self, path: Path) -> None:
        self._ffi = cffi.FFI()
        self._ffi.cdef(
            "void fake_reset(int, int); int32_t fake_launches(void); int32_t fake_maps(void);"
            "const char *fake_launch(int32_t, int64_t *); void fake_map(int32_t, int64_t *);"
        )
        self._lib = self._ffi.dlopen(str(path))
        found, status = native._load((path,))
        assert found is not None, status
        self.library: CudaLibrary = found
        self.facts = {fact.name: fact for fact in found.kernels()}

    def run(self, entry: str, *arguments: int, capability: int = 100) -> tuple[list[Launch], list[Map]]:
        """What a call asks of the runtime."""
        self._lib.fake_reset(capability, 148)
        self.library.run(entry, *arguments)
        return list(self._launches()), [self._map(index) for index in range(self._lib.fake_maps())]

    def _launches(self) -> Iterator[Launch]:
        for index in range(self._lib.fake_launches()):
            sizes = self._ffi.new("int64_t[10]")
            name = self._ffi.string(self._lib.fake_launch(index, sizes)).decode()
            yield Launch(name, math.prod(sizes[0:3]), math.prod(sizes[3:6]), math.prod(sizes[6:9]), sizes[9])

    def _map(self, index: int) -> Map:
        """A descriptor, after the rules that the driver has for one."""
        memory = self._ffi.new("int64_t[18]")
        self._lib.fake_map(index, memory)
        values = list(memory)
        kind, rank, address = values[:3]
        dims, strides, box = values[3 : 3 + rank], values[8 : 8 + rank], values[13 : 13 + rank]
        step = 32 if kind == 14 else 16
        assert 1 <= rank <= 5 and address % step == 0
        assert all(1 <= extent <= 2**32 for extent in dims) and all(1 <= extent <= 256 for extent in box)
        assert all(stride % step == 0 and 0 <= stride < 2**40 for stride in strides[1:])
        assert box[0] * BYTES[kind] % 16 == 0 and (kind != 14 or dims[0] % 128 == 0)
        axes = {stride: extent for stride, extent in zip(strides[1:], dims[1:], strict=True) if extent > 1}
        return Map(address >> 40 << 40, address, axes, int(dims[0] * BYTES[kind]))


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    tools = build_cuda.find_toolchain()
    if isinstance(tools, str):
        pytest.skip(tools)
    build_cuda.build(tools)
    target = tmp_path_factory.mktemp("fake") / "libtandem_fake.so"
    source = Path(__file__).parent.parent / "support" / "cuda_fake_runtime.cpp"
    objects = map(str, build_cuda.objects())
    flags = ["-std=c++17", "-O1", "-w", "-shared", "-Xcompiler", "-fPIC", "--cudart", "none", "-Xlinker", "-Bsymbolic"]
    subprocess.run([str(tools.nvcc), *flags, str(source), *objects, "-o", str(target)], check=True)
    return Fake(target)


def tiles(elements: int) -> int:
    return -(-elements // 128)


def described(maps: list[Map], operand: int) -> Map:
    """The one way in which an operand is described."""
    found = [entry for entry in maps if entry.operand == operand]
    assert found and all(entry == found[0] for entry in found), found
    assert found[0].start == operand
    return found[0]


def check_launch(fake: Fake, launch: Launch, kernel: str) -> None:
    assert "device_kernel" in launch.name and launch.grid > 0 and launch.threads == 256
    assert (launch.cluster, launch.shared) == (fake.facts[kernel].multiprocessors, fake.facts[kernel].shared_bytes)


def axes(*pairs: tuple[int, int]) -> dict[int, int]:
    """(stride, extent) of the axes that have more than one element."""
    return {stride: extent for stride, extent in pairs if extent > 1}


PLAIN = [(129280, 5120), (384, 5120), (512, 5120), (32, 5120), (128, 512), (129280, 256)]
LINEAR = [
    (1280, 5120), (32768, 1280), (512, 5120), (5120, 8192), (2304, 5120), (5120, 2304), (129280, 5120), (72, 96),
    (40, 64), (304, 1056),
]  # fmt: skip


@pytest.mark.parametrize("out", [BF16, F32])
@pytest.mark.parametrize("rows", [1, 65, 1024])
@pytest.mark.parametrize(("width", "depth"), LINEAR)
def test_linear_of_mxfp8(fake: Fake, rows: int, width: int, depth: int, out: int) -> None:
    size = fake.library.size("linear", MXFP8, MXFP8, out, rows, width, depth)
    arguments = (0, X, X_SCALE, MXFP8, W, W_SCALE, MXFP8, rows, width, depth, OUT, out, WORK, size)
    launches, maps = fake.run("linear", *arguments)
    kernel = fake.library.kernel("linear", MXFP8, MXFP8, out, rows, width, depth)
    check_launch(fake, launches[0], kernel)
    splits = 4 if size else 1
    assert [launch.name for launch in launches[1:]] == (["_ZN6tandem9sum_partsEPK6float4ilPvi"] if size else [])
    part, bands = depth // splits, tiles(depth) * 512
    x, w = described(maps, X), described(maps, W)
    assert (x.row, x.axes) == (part, axes((depth, rows), (part, splits)))
    assert (w.row, w.axes) == (part, axes((depth, width), (part, splits)))
    for operand, count in ((X_SCALE, rows), (W_SCALE, width)):
        scale = described(maps, operand)
        split = axes((bands, tiles(count)), (512, tiles(part)), (tiles(part) * 512, splits))
        assert (scale.row, scale.axes) == (512, split)
    bytes_out = 4 if size else SIZE[out]
    y = described(maps, WORK if size else OUT)
    assert (y.row, y.axes) == (
        width * bytes_out, axes((width * bytes_out, rows), (rows * width * bytes_out, splits)),
    )  # fmt: skip


@pytest.mark.parametrize("out", [BF16, F32])
@pytest.mark.parametrize("rows", [1, 200, 1024])
@pytest.mark.parametrize(
    ("width", "depth"), [(129280, 5120), (384, 5120), (512, 5120), (32, 5120), (128, 512), (129280, 256)]
)
def test_linear_of_bf16(fake: Fake, rows: int, width: int, depth: int, out: int) -> None:
    size = fake.library.size("linear", BF16, BF16, out, rows, width, depth)
    launches, maps = fake.run("linear", 0, X, 0, BF16, W, 0, BF16, rows, width, depth, OUT, out, WORK, size)
    check_launch(fake, launches[0], fake.library.kernel("linear", BF16, BF16, out, rows, width, depth))
    assert len(launches) == 1 + bool(size)
    splits = max(1, size // (rows * width * 4))
    part = depth // splits
    x, w, y = described(maps, X), described(maps, W), described(maps, WORK if size else OUT)
    assert (x.row, x.axes) == (part * 2, axes((depth * 2, rows), (part * 2, splits)))
    assert (w.row, w.axes) == (part * 2, axes((depth * 2, width), (part * 2, splits)))
    assert (y.row, y.axes) == (width * 4, axes((width * 4, rows), (rows * width * 4, splits)))


@pytest.mark.parametrize("rows", [1, 130, 1024])
def test_group_linear(fake: Fake, rows: int) -> None:
    """A group of channels is a matrix within the rows and the scales of the whole activation."""
    groups, width, depth = 8, 1024, 4096
    launches, maps = fake.run("group_linear", 0, X, X_SCALE, W, W_SCALE, rows, groups, width, depth, OUT)
    check_launch(fake, launches[0], fake.library.kernel("group_linear", rows, groups, width, depth))
    found = {operand: described(maps, operand) for operand in (X, W, X_SCALE, W_SCALE, OUT)}
    assert (found[X].row, found[X].axes) == (depth, axes((groups * depth, rows), (depth, groups)))
    assert (found[W].row, found[W].axes) == (depth, axes((depth, width), (width * depth, groups)))
    of_x = axes((groups * 32 * 512, tiles(rows)), (512, 32), (32 * 512, groups))
    of_w = axes((32 * 512, 8), (512, 32), (8 * 32 * 512, groups))
    assert (found[X_SCALE].axes, found[W_SCALE].axes) == (of_x, of_w)
    assert (found[OUT].row, found[OUT].axes) == (width * 2, axes((groups * width * 2, rows), (width * 2, groups)))


@pytest.mark.parametrize("rows", [1, 96, 49152])
@pytest.mark.parametrize(("width", "depth"), [(2304, 5120), (5120, 2304)])
def test_grouped_linear(fake: Fake, rows: int, width: int, depth: int) -> None:
    """The table and the rows are prepared, then blocks cover the device whatever the groups hold."""
    size = fake.library.size("grouped_linear", MXFP4, rows, 384, width, depth)
    arguments = (X, X_SCALE, W, W_SCALE, MXFP4, ENDS, rows, 384, width, depth, OUT)
    launches, _ = fake.run("grouped_linear", 0, *arguments, WORK, size)
    assert ["fill_group_table" in launches[0].name, "place_group_rows" in launches[1].name] == [True, True]
    assert launches[1].grid == -(-rows // 8) and len(launches) == 3
    check_launch(fake, launches[2], fake.library.kernel("grouped_linear", MXFP4, rows, 384, width, depth))
    assert launches[2].grid == 148
    with pytest.raises(LayoutError, match="workspace"):
        fake.run("grouped_linear", 0, *arguments, WORK, size - 1)


def test_generic_and_empty_calls(fake: Fake) -> None:
    launches, maps = fake.run("linear", 0, X, 0, BF16, W, W_SCALE, MXFP8, 5, 40, 64, OUT, F32, 0, 0)
    assert ["generic_product" in launch.name for launch in launches] == [True] and maps == []
    assert fake.run("linear", 0, 0, 0, BF16, 0, 0, BF16, 0, 40, 64, 0, F32, 0, 0) == ([], [])
    launches, _ = fake.run("grouped_linear", 0, X, X_SCALE, W, W_SCALE, MXFP8, ENDS, 9, 5, 40, 64, OUT, 0, 0)
    assert ["generic_product" in launch.name for launch in launches] == [True]


def test_refusals(fake: Fake) -> None:
    """Other devices, missing and badly aligned memory."""
    good = [0, X, X_SCALE, MXFP8, W, W_SCALE, MXFP8, 3, 128, 128, OUT, BF16, 0, 0]
    for capability in (90, 103, 120):
        with pytest.raises(BackendLoadError, match=r"capability 10\.0"):
            fake.run("linear", *good, capability=capability)
    for place, value, reason in ((1, 0, "null"), (2, 0, "null"), (4, W + 8, "aligned"), (2, X_SCALE + 16, "aligned")):
        with pytest.raises(LayoutError, match=reason):
            fake.run("linear", *[value if i == place else old for i, old in enumerate(good)])
    with pytest.raises(LayoutError, match="mxfp4"):
        arguments = (X, X_SCALE, W + 16, W_SCALE, MXFP4, ENDS, 3, 2, 128, 128, OUT, WORK, 1 << 30)
        fake.run("grouped_linear", 0, *arguments)
    with pytest.raises(LayoutError, match="multiple of 32"):
        fake.library.size("linear", MXFP8, MXFP8, BF16, 1, 32, 33)
