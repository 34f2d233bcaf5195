"""Level L0: a backend boots.  Its memory, packing, caches and errors, before any op is run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tandem.conformance.boot_data import data_checks
from tandem.conformance.calls import bits, read
from tandem.conformance.compare import Mismatch
from tandem.contract.backend import Array, Backend
from tandem.contract.capabilities import Capabilities, MemoryInfo, Probe
from tandem.contract.cases import upload
from tandem.contract.opspec import CONTRACT_VERSION, OP_TABLE
from tandem.contract.surface import check_subclass
from tandem.contract.types import QFormat
from tandem.errors import DeviceIndexError

Check = Callable[[Backend], None]
DTYPES = (torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.bfloat16)
NUMPY = (np.bool_, np.uint8, np.int16, np.int32, np.int64, np.float32)
SIZES = (3, 1 << 16)  # what may be passed by value, and what is copied in the background
BEYOND = 4096  # no machine has this many devices


def checks() -> Iterator[tuple[str, str, Check]]:
    """(part, case, check) of the whole suite."""
    plain: list[tuple[str, str, Check]] = [
        ("surface", "names-and-parameters", surface),
        ("probe", "present-and-repeatable", probe),
        ("contract", "version", contract),
        ("caps", "record", caps),
        ("fingerprint", "text-and-stable", fingerprint),
        ("memory", "info", memory_info),
        ("memory", "shapes", shapes),
        ("memory", "views", views),
        ("memory", "out", out),
        ("memory", "source-is-read", source_is_read),
        ("memory", "host-copy", host_copy),
        ("memory", "distinct", distinct),
        ("errors", "wrong-index", wrong_index),
        ("open", "second-instance-and-close", second_instance),
    ]
    yield from plain
    for dtype in DTYPES:
        yield "memory", f"round-trip-{str(dtype).partition('.')[2]}", functools.partial(round_trip, dtype=dtype)
    yield from data_checks()


def expect(holds: bool, text: str) -> None:
    """Raise Mismatch with ``text`` unless ``holds``."""
    if not holds:
        raise Mismatch(text)


def surface(backend: Backend) -> None:
    """The class defines the contract's names with its parameters, and a name for itself."""
    check_subclass(type(backend), Backend)
    expect(isinstance(backend.name, str) and bool(backend.name), "the backend has no name")
    expect(isinstance(backend.device, torch.device), f"device is {backend.device!r}, want a torch.device")


def probe(backend: Backend) -> None:
    """An open device probes as present, twice alike."""
    one, two = type(backend).probe(), type(backend).probe()
    expect(isinstance(one, Probe) and one.present, f"the device is open and probe() says {one!r}")
    expect(one == two, "probe() gives different answers")
    expect(bool(one.reason), "probe() gives no reason")


def contract(backend: Backend) -> None:
    """The version is one that core takes."""
    major, minor = backend.contract
    expect((major, minor) >= CONTRACT_VERSION and major == CONTRACT_VERSION[0], f"contract {major}.{minor}")
    expect(backend.caps.contract == backend.contract, "caps.contract is not the class's contract")


def caps(backend: Backend) -> None:
    """The record names formats and ops of the contract, and says of each op what the backend does."""
    found = backend.caps
    expect(isinstance(found, Capabilities), f"caps is {type(found).__name__}")
    expect(set(found.formats) <= {f.value for f in QFormat}, f"unknown formats in {sorted(found.formats)}")
    expect(set(found.ops) <= set(OP_TABLE), f"unknown ops: {sorted(set(found.ops) - set(OP_TABLE))}")
    for op, cap in found.ops.items():
        own = backend.implementation(op) is not None
        expect(cap.impl in ("fused", "composite", "absent"), f"{op} is '{cap.impl}'")
        expect(own == (cap.impl == "fused"), f"{op} is '{cap.impl}' and implementation() says {own}")
        expect(set(cap.allows) <= set(OP_TABLE[op].attrs), f"{op} allows attributes it does not have")
        expect(cap.impl != "absent" or bool(cap.notes), f"{op} is absent without a reason in its notes")


def fingerprint(backend: Backend) -> None:
    """Text by text, the same when asked again."""
    found = backend.fingerprint()
    expect(bool(found), "the fingerprint is empty")
    expect(all(isinstance(x, str) for pair in found.items() for x in pair), "the fingerprint holds what is not text")
    expect(found == backend.fingerprint(), "the fingerprint changes")


def memory_info(backend: Backend) -> None:
    """Total and free are bytes, free no more than total, or zero where unknown."""
    found = backend.memory()
    expect(isinstance(found, MemoryInfo) and 0 <= found.free <= found.total, f"memory() is {found!r}")
    backend.synchronize()


def shapes(backend: Backend) -> None:
    """`empty` gives what was asked for, nothing and a single element too."""
    for shape in ((), (0,), (3, 0, 2), (5,), (2, 3, 4)):
        for dtype in DTYPES:
            tensor = backend.empty(shape, dtype)
            expect(tuple(tensor.shape) == shape and tensor.dtype is dtype, f"empty({shape}, {dtype}) is {tensor.shape}")
            expect(tensor.device.type == backend.device.type, f"empty() is on {tensor.device}, not {backend.device}")


def round_trip(backend: Backend, dtype: torch.dtype) -> None:
    """Bits go to the device and come back: every byte value, so NaN with payloads too."""
    size = torch.empty(0, dtype=dtype).element_size()
    pattern = torch.arange(256 * size, dtype=torch.int32).mul(37).to(torch.uint8)
    plain = pattern.view(dtype) if dtype is not torch.bool else pattern % 2 == 1
    for tensor in (plain, plain.view(2, -1, 4), plain[:0]):
        back = read(backend, upload(tensor, backend))
        expect(back.dtype is dtype and back.shape == tensor.shape, f"comes as {back.dtype} {tuple(back.shape)}")
        expect(bool((bits(back) == bits(tensor)).all()), f"bits of {dtype} {tuple(tensor.shape)} differ")
    if dtype is torch.bfloat16:
        wide = backend.to_host(upload(torch.tensor([1.5, -2.0], dtype=dtype), backend)).result()
        expect(wide.dtype == np.float32 and wide.tolist() == [1.5, -2.0], f"bf16 arrives as {wide.dtype}, want f32")


def views(backend: Backend) -> None:
    """Slices and reshapes of device arrays are views of the same memory."""
    tensor = upload(torch.arange(24, dtype=torch.int32), backend)
    matrix = tensor.view(4, 6)
    backend.from_host(np.full((1, 6), -7, np.int32), matrix[2:3])
    back = read(backend, tensor).tolist()
    expect(back == [*range(12), *[-7] * 6, *range(18, 24)], f"writing rows of a view gives {back}")
    expect(read(backend, matrix[1:3].view(-1)).tolist() == back[6:18], "a slice reads other memory")
    expect(read(backend, matrix[:, 2:4]).tolist() == [row[2:4] for row in read(backend, matrix).tolist()], "columns")


def out(backend: Backend) -> None:
    """`from_host` with a target writes its leading part and gives that back."""
    target = upload(torch.full((5, 2), 9, dtype=torch.int64), backend)
    part = backend.from_host(np.array([[1, 2], [3, 4]], np.int64), target)
    expect(read(backend, part).tolist() == [[1, 2], [3, 4]], f"the result is {read(backend, part).tolist()}")
    whole = read(backend, target).tolist()
    expect(whole == [[1, 2], [3, 4], [9, 9], [9, 9], [9, 9]], f"the target holds {whole}")


def source_is_read(backend: Backend) -> None:
    """The source may be reused as soon as `from_host` returns, and one that is not contiguous is taken too."""
    for dtype, size, given in itertools.product(NUMPY, SIZES, (False, True)):
        source = _numbers(dtype, size)
        target = backend.empty((size,), torch.from_numpy(source).dtype) if given else None
        tensor = backend.from_host(source, target)
        source[:] = 0
        back = read(backend, tensor).numpy()
        what = f"a change of the source after the call shows: {size} of {source.dtype}"
        expect(np.array_equal(back, _numbers(dtype, size)), what)
    turned = np.arange(12, dtype=np.int32).reshape(3, 4).T
    expect(read(backend, backend.from_host(turned)).tolist() == turned.tolist(), "a transposed source is misread")


def host_copy(backend: Backend) -> None:
    """`to_host` gives the value at its place in the queue, ready after its result was taken, and it stays."""
    for dtype, size in itertools.product(NUMPY, SIZES):
        first = _numbers(dtype, size)
        second: Array = np.zeros(size, dtype)
        tensor = upload(torch.from_numpy(first), backend)
        early, late = backend.to_host(tensor), backend.to_host(tensor)
        taken = early.result()
        backend.from_host(second, tensor)
        what = f"{size} of {first.dtype}"
        expect(np.array_equal(taken, first), f"a result of to_host changed with the device array: {what}")
        expect(np.array_equal(late.result(), first), f"a write queued after to_host shows in its result: {what}")
        expect(late.ready(), "ready() is false after result()")
        expect(np.array_equal(read(backend, tensor).numpy(), second), f"the later write is lost: {what}")
        expect(np.array_equal(taken, first), f"a result of to_host changed with a later copy: {what}")


def distinct(backend: Backend) -> None:
    """Memory that was handed out and is still held is not handed out again."""
    one, two = (backend.empty((64,), torch.int32) for _ in range(2))
    for number, tensor in enumerate((one, two)):
        backend.from_host(np.full(64, number, np.int32), tensor)
    expect(set(read(backend, one).tolist()) == {0}, "two arrays of empty() share memory")


def _numbers(dtype: Any, size: int) -> Array:
    """Numbers of which none is zero."""
    return (np.arange(size) % 125 + 1).astype(dtype)


def wrong_index(backend: Backend) -> None:
    """A device that does not exist is refused in four parts."""
    try:
        type(backend).open(BEYOND, {}).close()
    except DeviceIndexError as error:
        parts = (error.what, error.where, error.why, error.fix)
        expect(all(parts), "the error of a wrong index leaves a part out")
    else:
        raise Mismatch(f"device {BEYOND} opens")


def second_instance(backend: Backend) -> None:
    """Opening and closing another instance leaves the first one working."""
    tensor = upload(torch.arange(7), backend)
    type(backend).open(backend.device.index or 0, {}).close()
    expect(read(backend, tensor).tolist() == list(range(7)), "closing another instance changed memory of this one")
    read(backend, upload(torch.arange(3), backend))
