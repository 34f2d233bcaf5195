"""The device's runtime as far as it goes on the host: its copies with a late queue, and what is kept in host memory."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import pytest
import torch
from support.late_queue import LateQueue

from tandem.accelerator.staging import Staging
from tandem.backends.cuda import weights
from tandem.backends.cuda.device import DeviceRuntime
from tandem.backends.cuda.runtime import EmulatedRuntime
from tandem.contract.types import CanonicalWeight, QFormat, WeightKind

Tensor = torch.Tensor


@pytest.fixture
def runtime() -> DeviceRuntime:
    """Without the parts that need a driver."""
    made = object.__new__(DeviceRuntime)
    made.device = torch.device("cpu")
    made._staging = Staging(LateQueue(), lambda count: torch.empty(count, dtype=torch.uint8), 4096)
    return made


def test_results_come_in_the_order_of_the_queue(runtime: DeviceRuntime) -> None:
    target = runtime.from_host(np.zeros(6, dtype=np.int32), None)
    part = runtime.from_host(np.array([5, 6], dtype=np.int32), target)
    assert part.data_ptr() == target.data_ptr() and part.shape == (2,)
    before = runtime.to_host(target)
    runtime.from_host(np.full(6, 9, dtype=np.int32), target)
    after = runtime.to_host(target)
    assert (before.ready(), after.ready()) == (False, False)
    assert after.result().tolist() == [9] * 6 and before.result().tolist() == [5, 6, 0, 0, 0, 0]


def test_scalars_strided_sources_and_bf16(runtime: DeviceRuntime) -> None:
    assert runtime.to_host(runtime.from_host(np.array(3.5), None)).result() == 3.5
    columns = torch.arange(8.0).view(4, 2)
    assert runtime.to_host(columns[:, 1]).result().tolist() == [1.0, 3.0, 5.0, 7.0]
    assert runtime.to_host(torch.ones(3, dtype=torch.bfloat16)).result().dtype == np.float32


def test_the_engram_table_is_kept_where_the_device_reads_it_in_place() -> None:
    class Pinning(EmulatedRuntime):
        def resident(self, tensor: Tensor) -> Tensor:
            kept.append(tensor.clone())
            return kept[-1]

    kept: list[Tensor] = []
    codes, scale = torch.ones((8, 64), dtype=torch.uint8), torch.full((8, 2), 127, dtype=torch.uint8)
    weight = CanonicalWeight(codes, scale, QFormat.MXFP8)
    packed = weights.pack(WeightKind.ENGRAM, weight, (8, 64), Pinning())
    assert packed.layout == weights.HOST and packed.nbytes == codes.numel() + scale.numel()
    assert packed.token.data is kept[1] and packed.token.scale is kept[0]
    found = weights.unpack(packed)
    assert torch.equal(found.data, codes) and found.scale is not None and torch.equal(found.scale, scale)


def test_arrays_that_are_pinned_share_no_pages(runtime: DeviceRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def __init__(self) -> None:
            self.held: dict[int, int] = {}

        def cudaHostRegister(self, start: int, count: int, flags: int) -> int:  # noqa: N802
            self.held[start] = count
            return 0

        def cudaHostUnregister(self, start: int) -> int:  # noqa: N802
            del self.held[start]
            return 0

    driver = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    sources = [torch.arange(40, dtype=torch.uint8).view(4, 10)[:, ::2], torch.ones(3, dtype=torch.bfloat16)]
    copies = [runtime.resident(source) for source in sources]
    assert all(torch.equal(copy, source) for copy, source in zip(copies, sources, strict=True))
    assert driver.held == {copies[0].data_ptr(): 20, copies[1].data_ptr(): 6}
    assert all(start % mmap.PAGESIZE == 0 for start in driver.held)
    assert runtime.resident(torch.empty(0)).numel() == 0
    other = copies.pop().view(torch.uint8)
    assert len(driver.held) == 2, "memory in use was given up"
    del other, copies
    assert not driver.held
