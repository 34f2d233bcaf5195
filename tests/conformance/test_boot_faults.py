"""Level L0 itself: faults of memory and caches are caught by the check that should, and by no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from tandem.backends.cpu.backend import CpuBackend
from tandem.conformance.kit import run
from tandem.contract.host_memory import HostArray
from tandem.contract.types import KVCache, KVLayout, QTensor

Array = Any
Tensor = torch.Tensor


class Plain(CpuBackend):
    """Keeps what it handed out."""

    name = "faulty"

    def __init__(self) -> None:
        super().__init__(use_native=False)
        self._held: dict[Any, Any] = {}

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> CpuBackend:
        return cls() if device_id == 0 else CpuBackend.open(device_id, options)


class KeepsShortSources(Plain):
    def from_host(self, array: Array, out: Tensor | None = None) -> Tensor:
        if out is None and array.nbytes < 4096:
            return torch.from_numpy(np.ascontiguousarray(array))
        return super().from_host(array, out)


class SharesFloats(Plain):
    def to_host(self, tensor: Tensor) -> HostArray:
        return HostArray(tensor.numpy()) if tensor.dtype is torch.float32 else super().to_host(tensor)


class OneStagingBuffer(Plain):
    def to_host(self, tensor: Tensor) -> HostArray:
        copied = super().to_host(tensor).result()
        staged = self._held.setdefault((copied.dtype, copied.shape), np.empty_like(copied))
        staged[...] = copied
        return HostArray(staged)


class OneArray(Plain):
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._held.setdefault((shape, dtype), super().empty(shape, dtype))


class OneCache(Plain):
    def kv_alloc(self, layout: KVLayout, num_blocks: int) -> KVCache:
        return self._held.setdefault((layout, num_blocks), super().kv_alloc(layout, num_blocks))


class SortsBlocks(Plain):
    def kv_import(self, cache: KVCache, blocks: Array, data: Array) -> None:
        super().kv_import(cache, np.sort(blocks), data)


class CopiesTwo(Plain):
    def kv_copy(self, cache: KVCache, source: Array, target: Array) -> None:
        super().kv_copy(cache, source[:2], target[:2])


class FewRows(Plain):
    def to_canonical(self, q: QTensor) -> QTensor:
        plain = super().to_canonical(q)
        plain.data[256:] = 0
        return plain


@pytest.mark.parametrize(
    ("kind", "checks"),
    [
        (Plain, set()),
        (KeepsShortSources, {"memory/source-is-read"}),
        (SharesFloats, {"memory/host-copy"}),
        (OneStagingBuffer, {"memory/host-copy"}),
        (OneArray, {"memory/distinct"}),
        (OneCache, {"caches/blocks-mxfp4", "caches/blocks-mxfp8", "caches/blocks-nvfp4"}),
        (SortsBlocks, {"caches/blocks-mxfp4", "caches/blocks-mxfp8", "caches/blocks-nvfp4"}),
        (CopiesTwo, {"caches/blocks-mxfp4", "caches/blocks-mxfp8", "caches/blocks-nvfp4"}),
        (FewRows, {"activations/canonical-mxfp4", "activations/canonical-mxfp8", "activations/canonical-nvfp4"}),
    ],
)
def test_a_fault_of_memory_is_caught(kind: type[Plain], checks: set[str]) -> None:
    assert checks <= {f"{result.op}/{result.case}" for result in run(kind(), "L0").failures}
    assert checks or run(kind(), "L0").holds
