"""The matrix products of backend 'cuda': which device gets which, what they refuse, and their plan in Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import cuda_host

from tandem.backends.cuda import (
    activations,
    native,
    products,
    products_device,
    products_host,
    products_traffic,
    scales,
    weights,
)
from tandem.backends.cuda.backend import CudaBackend
from tandem.backends.cuda.runtime import EmulatedRuntime
from tandem.contract.types import CanonicalWeight, QFormat, QTensor, WeightKind
from tandem.errors import BackendLoadError, LayoutError

CPU = torch.device("cpu")


def runtime(capability: tuple[int, int], emulated: bool = False) -> Any:
    return SimpleNamespace(emulated=emulated, capability=capability, device=CPU)


def test_which_device_gets_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = runtime((10, 0), emulated=True)
    assert products.implementations(here)["linear"] is products_host.linear
    assert set(products.notes(here)) == set(products.OPS) and "host reference" in products.notes(here)["linear"]
    for other in ((9, 0), (12, 0)):
        assert products.implementations(runtime(other)) == {} and products.notes(runtime(other)) == {}
    monkeypatch.setattr(native, "PLACES", (tmp_path / "none.so",))
    with pytest.raises(BackendLoadError, match="make cuda"):
        products.implementations(runtime((10, 0)))


def test_a_library_that_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(native, "PLACES", (broken,))
    assert native.library() is None
    assert native.library_status().reason.startswith("cannot be loaded")


def test_work_is_queued_on_the_device_of_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread's current device is 0 whatever the backend's is, and the library asks for the current one."""
    current: list[torch.Tensor] = []
    queued: list[tuple[str, int, bool]] = []

    @contextmanager
    def device_of(x: torch.Tensor) -> Iterator[None]:
        current.append(x)
        yield
        current.pop()

    def run(entry: str, stream: int, *_: int) -> None:
        queued.append((entry, stream, bool(current)))

    monkeypatch.setattr(products_device, "device_of", device_of)
    monkeypatch.setattr(products_device, "_stream", lambda _: 7)
    library: Any = SimpleNamespace(run=run, size=lambda *_: 256)
    ops = products_device.DeviceProducts(library)
    x = rows_of(4, 64)
    ops.linear(x, weight(QFormat.FP8_BLOCK32, 64, 64), torch.bfloat16)
    ops.grouped_linear(x, weight(QFormat.MXFP4, 2, 64, 64), torch.tensor([2, 4], dtype=torch.int32))
    assert queued == [("linear", 7, True), ("grouped_linear", 7, True)]


def test_python_declares_what_the_header_declares(repo_root: Path) -> None:
    """Same entries, arguments and order; Python spells tensor pointers as integers."""
    header = (repo_root / "csrc" / "include" / "tandem_cuda.h").read_text()
    assert f"#define TANDEM_CUDA_ABI_MAJOR {native.ABI_MAJOR}\n" in header
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    for name in ("tandem_cuda_kernel", "tandem_cuda_api"):
        struct = header[header.index(f"typedef struct {name} {{") : header.index(f"}} {name};")]
        struct = re.sub(r"(const )?(uint8_t|int32_t|void) \*(?=[a-z])", "uintptr_t ", struct)
        declared = native.CDEF[native.CDEF.index(f"typedef struct {name} {{") : native.CDEF.index(f"}} {name};")]
        assert struct.split() == declared.split()


def weight(fmt: QFormat, *shape: int) -> Any:
    generator = torch.Generator().manual_seed(7)
    codes = torch.randint(0, 120, (*shape[:-1], shape[-1] * fmt.bits // 8), dtype=torch.uint8, generator=generator)
    rows = -(-shape[-2] // 32) if fmt is QFormat.FP8_BLOCK32 else shape[-2]
    scale = torch.randint(120, 130, (*shape[:-2], rows, shape[-1] // 32), dtype=torch.uint8, generator=generator)
    kind = WeightKind.LINEAR if len(shape) == 2 else WeightKind.EXPERTS
    return weights.pack(kind, CanonicalWeight(codes, scale, fmt), shape, runtime((10, 0)))


def rows_of(count: int, width: int) -> QTensor:
    q = activations.empty(count, width, CPU)
    q.data.fill_(0x38)  # one
    q.scale.fill_(127)
    return q


def test_host_reference_reads_the_packed_layout_only() -> None:
    w = weight(QFormat.FP8_BLOCK32, 40, 64)
    canonical = activations.to_canonical(rows_of(3, 64))
    with pytest.raises(LayoutError, match="layout 'canonical'"):
        products_host.linear(canonical, w, torch.float32)
    foreign = SimpleNamespace(layout="other", fmt=QFormat.BF16, shape=(40, 64), token=None)
    with pytest.raises(LayoutError, match="pack_weight"):
        products_host.linear(rows_of(3, 64), foreign, torch.float32)  # type: ignore[arg-type]


@pytest.mark.parametrize("fmt", [QFormat.FP8_BLOCK32, QFormat.MXFP4])
def test_host_reference_follows_each_packed_byte(fmt: QFormat) -> None:
    """A changed scale byte of the weight changes the sums of its row by its group alone."""
    w = weight(fmt, 200, 160)
    before = products_host.linear(rows_of(1, 160), w, torch.float32)[0]
    here = torch.zeros((200, 5), dtype=torch.uint8)
    here[150, 3] = 9
    at = int((scales.pack(here) == 9).nonzero()[0, 0])
    group = products_host.matrix_values("linear", w)[150, 96:128].sum()
    w.token.scale[at] += 1
    after = products_host.linear(rows_of(1, 160), w, torch.float32)[0]
    assert (after - before).nonzero().flatten().tolist() == [150]
    assert torch.isclose(after[150] - before[150], group, rtol=1e-5)


def test_filler_of_the_activation_is_not_read() -> None:
    """Rows beyond the last may hold NaN."""
    x, w = rows_of(5, 96), weight(QFormat.FP8_BLOCK32, 40, 96)
    before = products_host.linear(x, w, torch.float32)
    used = scales.pack(torch.ones((5, 3), dtype=torch.uint8)) == 1
    x.scale[~used] = 255
    assert torch.equal(products_host.linear(x, w, torch.float32), before)


def test_traffic_follows_the_plan(tmp_path: Path) -> None:
    """The Python form of the split agrees with that of the library."""
    ffi, lib = cuda_host.build(tmp_path)
    extra = ffi.new("int64_t[2]")
    for outputs in (32, 128, 384, 512, 1280, 2304, 2432, 5120, 32768):
        for depth in (96, 256, 1280, 2048, 2304, 4096, 5120, 5136, 8192):
            lib.host_linear(native.MXFP8, native.MXFP8, native.BF16, 16, outputs, depth, extra)
            assert products_traffic.sum_splits(outputs, depth) == extra[0], (outputs, depth)


def test_traffic_of_official_shapes() -> None:
    """Scales of a weight come in whole tiles of 128 rows."""
    read, written = products_traffic.linear(rows_of(16, 1280), weight(QFormat.FP8_BLOCK32, 256, 1280), torch.bfloat16)
    assert (read, written) == (16 * 1280 * 33 // 32 + 256 * 1280 * 33 // 32, 16 * 256 * 2)
    narrow, thin = products_traffic.linear(rows_of(2, 2048), weight(QFormat.FP8_BLOCK32, 32, 2048), torch.bfloat16)
    parts = 4 * 2 * 32 * 4
    assert (narrow, thin) == (2 * 2048 * 33 // 32 + 32 * 2048 + 128 * 64 + parts, 2 * 32 * 2 + parts)
    ends = torch.tensor([0, 3, 3, 3], dtype=torch.int32)
    read, written = products_traffic.grouped_linear(rows_of(2, 128), weight(QFormat.MXFP4, 4, 64, 128), ends)
    used = 4 * (1 - (3 / 4) ** 2)  # experts with rows, on average
    assert (read, written) == (2 * 132 + 8 + used * (64 * 64 + 128 * 4), 2 * 64 * 2 + 8)


@pytest.mark.parametrize("op", products.OPS)
def test_rows_that_a_product_cannot_read_are_refused(op: str) -> None:
    shape = {"linear": (64, 96), "group_linear": (2, 64, 96), "grouped_linear": (2, 64, 96)}[op]
    depth = 192 if op == "group_linear" else 96
    packed = SimpleNamespace(shape=shape, layout=weights.PLAIN, token=torch.zeros(shape), fmt=QFormat.BF16)
    last = {"linear": (torch.bfloat16,), "group_linear": (), "grouped_linear": (torch.zeros(2, dtype=torch.int32),)}[op]
    for where in (products_host, products_device.DeviceProducts(SimpleNamespace())):  # type: ignore[arg-type]
        for x in (torch.zeros(2, 64, dtype=torch.bfloat16), activations.empty(2, 64, CPU)):
            with pytest.raises(LayoutError, match=rf"have 64 elements, the weight sums over {depth}.*Fix: "):
                getattr(where, op)(x, packed, *last)
        with pytest.raises(LayoutError, match=r"they are torch.float32.*Fix: convert"):
            getattr(where, op)(torch.zeros(2, depth), packed, *last)


def test_what_has_no_layout_of_this_backend_is_refused() -> None:
    q = activations.empty(2, 64, CPU)
    alien = QTensor(q.data, q.scale, q.fmt, q.shape, "other.layout")
    for convert in (activations.to_canonical, activations.from_canonical):
        with pytest.raises(LayoutError, match=r"its layout is 'other.layout'\. Fix: "):
            convert(alien)
    with pytest.raises(LayoutError, match=r"the last 3 would have none\. Fix: .* multiple of 32"):
        activations.empty(2, 67, CPU)


@pytest.mark.parametrize(("capability", "claimed"), [((10, 0), True), ((9, 0), False)])
def test_batch_invariance_is_claimed_only_with_products_of_our_own(
    capability: tuple[int, int], claimed: bool
) -> None:
    """Without the library products are torch's, which picks kernels by the number of rows."""
    device = EmulatedRuntime()
    device.capability, device.emulated = capability, capability == (10, 0)
    assert CudaBackend(device).caps.batch_invariant is claimed
