"""The islands backend: memory that the host cannot read, layouts bit by bit, the queue, and its faults."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tandem_islands.backend import IslandsBackend
from tandem_islands.faults import SLOW_COPY, InjectedFault
from tandem_islands.space import Handle, WrongSpaceError

from tandem.contract.backend import Backend
from tandem.contract.cases import Draw, materialise
from tandem.contract.plan import Plan
from tandem.contract.types import CacheKind, KVLayout, QFormat, QTensor, WeightKind
from tandem.errors import ConfigError, DeviceIndexError, LayoutError

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def island(index: int = 0, **options: Any) -> IslandsBackend:
    return IslandsBackend.open(index, options)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return island()


def behind(tensor: Any) -> torch.Tensor:
    """What a test may do and the host may not."""
    memory: torch.Tensor = tensor.memory
    return memory


# -- memory ------------------------------------------------------------------------------------------------

WRONG: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda t: t.numpy(),
    "tolist": lambda t: t.tolist(),
    "item": lambda t: t[0, 0].item(),
    "__bool__": lambda t: bool(t[0, 0]),
    "__int__": lambda t: int(t[0, 0]),
    "__float__": lambda t: float(t[0, 0]),
    "__array__": np.asarray,
    "cpu": lambda t: t.cpu(),
    "to": lambda t: t.to("cpu"),
    "clone": lambda t: t.clone(),
    "data_ptr": lambda t: t.data_ptr(),
    "untyped_storage": lambda t: t.untyped_storage(),
    "data": lambda t: t.data,
    "__dlpack__": lambda t: t.__dlpack__(),
    "__reduce_ex__": lambda t: t.__reduce_ex__(2),
    "__deepcopy__": copy.deepcopy,
    "unbind": list,
    "add": lambda t: t + torch.ones(2, 3),
    "mul": lambda t: torch.mul(torch.ones(2, 3), t),
    "eq": lambda t: t == t,
    "cat": lambda t: torch.cat((t, t)),
    "copy_": lambda t: torch.ones(2, 3).copy_(t),
    "fill_": lambda t: t.fill_(0),
    "__setitem__": lambda t: t.__setitem__(0, 0.0),
    "__getitem__": lambda t: t[[1, 0]],
    "index_select": lambda t: torch.ones(4).index_select(0, t),
    "add.Tensor": lambda t: torch.ops.aten.add.Tensor(t, t),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_host_cannot_read_or_compute(backend: Backend, name: str) -> None:
    tensor = backend.from_host(VALUES)
    with pytest.raises(WrongSpaceError) as caught:
        WRONG[name](tensor)
    assert name.strip("_") in caught.value.what and "memory space" in caught.value.what
    assert np.array_equal(backend.to_host(tensor).result(), VALUES)


def test_views_are_free_and_share_memory(backend: Backend) -> None:
    tensor = backend.from_host(VALUES)
    row, flat = tensor[1:], tensor.view(-1)
    backend.from_host(np.array([9, 9], dtype=np.float32), flat)
    assert backend.to_host(tensor).result().tolist() == [[9, 9, 2], [3, 4, 5]]
    backend.from_host(np.zeros((1, 3), dtype=np.float32), row)
    assert backend.to_host(flat).result().tolist() == [9, 9, 2, 0, 0, 0]
    assert (tensor.shape, tensor.dtype, tensor.dim(), len(row)) == ((2, 3), torch.float32, 2, 1)
    with pytest.raises(WrongSpaceError, match="reshape"):
        tensor[:, :2].reshape(-1)  # would be a copy


def test_ops_take_handles_of_their_own_island_only(backend: Backend) -> None:
    gather = Plan(backend).bind("gather_rows", "test")
    x, index = backend.from_host(VALUES), backend.from_host(np.array([1, -1], dtype=np.int32))
    found = gather(x, index)
    assert isinstance(found, Handle)
    assert backend.to_host(found).result().tolist() == [[3, 4, 5], [0, 0, 0]]
    other = island()
    for wrong in (torch.from_numpy(VALUES), other.from_host(VALUES)):
        with pytest.raises(WrongSpaceError, match="gather_rows"):
            gather(wrong, index)
    with pytest.raises(WrongSpaceError, match="to_host"):
        other.to_host(x)
    other.close()
    with pytest.raises(WrongSpaceError, match="closed"):
        other.to_host(other.from_host(VALUES))


def test_opening() -> None:
    assert IslandsBackend.probe().present and not IslandsBackend.probe().accelerator
    island(1).close()
    with pytest.raises(DeviceIndexError):
        island(2)
    with pytest.raises(ConfigError, match="colour"):
        island(colour="red")


# -- layouts -----------------------------------------------------------------------------------------------


def test_weights_are_columns_with_exchanged_nibbles(backend: Backend) -> None:
    made = Draw(1).weight(WeightKind.EXPERTS, QFormat.MXFP4, 2, 5, 64)
    packed = backend.pack_weight(made.kind, made.weight, made.shape)
    codes = behind(packed.token.data)
    assert codes.shape == (2, 32, 5) and packed.nbytes == 2 * 5 * (32 + 2)
    byte = int(made.weight.data[1, 4, 7])
    assert int(codes[1, 7, 4]) == (byte & 15) << 4 | byte >> 4
    back = backend.unpack_weight(packed)
    assert torch.equal(behind(back.data), made.weight.data) and torch.equal(behind(back.scale), made.weight.scale)
    made.weight.data.zero_()  # the packed weight has its own memory
    assert codes.any()


def test_activations_have_each_scale_before_its_codes(backend: Backend) -> None:
    q = Draw(2).quantised(QFormat.MXFP8, 3, 64)
    own = materialise(q, backend, 0)
    data = behind(own.data)
    assert own.layout.endswith(".rows") and data.shape == (3, 66) and own.shape == (3, 64)
    assert torch.equal(data[:, 0], q.scale[:, 0]) and torch.equal(data[:, 33], q.scale[:, 1])
    assert torch.equal(data[:, 1:33], q.data[:, :32]) and torch.equal(data[:, 34:], q.data[:, 32:])
    with pytest.raises(LayoutError):
        Plan(backend).bind("dequantize", "test")(QTensor(own.data, own.scale, q.fmt, q.shape, "foreign"))


def test_cache_bytes_are_transposed_in_their_block(backend: Backend) -> None:
    cache = backend.kv_alloc(KVLayout(CacheKind.INDEX, QFormat.MXFP4, 32, 4), 3)
    bytes_of = np.random.default_rng(3).integers(0, 256, (3, 4, 17), dtype=np.uint8)
    backend.kv_import(cache, np.arange(3), bytes_of.reshape(3, -1))
    memory = behind(cache.data)
    assert memory.shape == (4, 17, 4)
    assert torch.equal(memory[2, :, 1], torch.from_numpy(bytes_of[2, 1]))
    backend.kv_copy(cache, np.array([2]), np.array([0]))
    assert np.array_equal(backend.kv_export(cache, np.array([1, 0])), bytes_of[[1, 2]].reshape(2, -1))


# -- the queue ---------------------------------------------------------------------------------------------


def test_a_copy_holds_the_value_of_its_place_and_arrives_in_order(backend: Backend) -> None:
    tensor = backend.from_host(VALUES)
    early = backend.to_host(tensor)
    backend.from_host(VALUES + 10, tensor)
    late, last = backend.to_host(tensor), backend.to_host(tensor)
    assert not (early.ready() or late.ready() or last.ready())
    assert np.array_equal(late.result(), VALUES + 10)
    assert early.ready() and not last.ready()
    assert np.array_equal(early.result(), VALUES)
    backend.synchronize()
    assert last.ready()


def test_the_source_of_an_upload_is_free_at_once(backend: Backend) -> None:
    source = VALUES.copy()
    tensor = backend.from_host(source)
    source[:] = -1
    assert np.array_equal(backend.to_host(tensor).result(), VALUES)


# -- faults ------------------------------------------------------------------------------------------------


def test_the_nth_allocation_fails() -> None:
    backend = island(fault="alloc@2")
    backend.empty((4,), torch.int32)
    with pytest.raises(InjectedFault, match="16 bytes"):
        backend.empty((4,), torch.int32)
    backend.empty((4,), torch.int32)


def test_the_nth_call_of_an_op_fails() -> None:
    backend = island(fault="op:gather_rows@2, op@5")
    plan = Plan(backend)
    gather, start = plan.bind("gather_rows", "test"), plan.bind("aux.group_start", "test")
    x, index = backend.from_host(VALUES), backend.from_host(np.array([1], dtype=np.int32))
    start(index, 2)
    gather(x, index)
    with pytest.raises(InjectedFault, match="gather_rows"):
        gather(x, index)
    gather(x, index)
    with pytest.raises(InjectedFault, match="aux.group_start"):
        start(index, 2)  # the fifth call in all


@pytest.mark.parametrize("seed", [0, 35, 64 + 1])
def test_one_bit_is_wrong_in_the_nth_result(seed: int) -> None:
    backend = island(fault="flip:aux.group_start@2", seed=seed)
    start = Plan(backend).bind("aux.group_start", "test")
    positions = backend.from_host(np.array([4, 7], dtype=np.int32))
    results = [backend.to_host(start(positions, 2)).result().tolist() for _ in range(3)]
    wrong = [4, 6]
    wrong[seed % 64 // 32] ^= 1 << seed % 32
    assert results == [[4, 6], wrong, [4, 6]]


def test_the_nth_copy_is_slow() -> None:
    backend = island(fault="slow@2")
    first, second = (backend.to_host(backend.from_host(VALUES)) for _ in range(2))
    first.result()
    begun = time.perf_counter()
    assert np.array_equal(second.result(), VALUES)
    assert time.perf_counter() - begun >= SLOW_COPY


def test_faults_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISLANDS_FAULT", "alloc@1")
    with pytest.raises(InjectedFault):
        island().empty((1,), torch.int32)
    island(fault="").empty((1,), torch.int32)


@pytest.mark.parametrize("text", ["alloc", "alloc@0", "alloc:linear@1", "op:lienar@1", "melt@1", "op@1;op@2"])
def test_a_fault_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="op:OP@N"):
        island(fault=text)
