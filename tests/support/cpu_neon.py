"""Calls of native kernels as a file, and what kernels of another machine make of them in emulation."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from tandem.backends.cpu import native

Tensor = torch.Tensor
Bytes = np.typing.NDArray[np.uint8]
DRIVER = Path(__file__).with_name("cpu_neon.cpp")
FLOATS = {torch.float32: np.uint32, torch.bfloat16: np.uint16}


@dataclass(frozen=True, slots=True)
class Output:
    """Where an output of an op lies among the arrays of a call.

    Args:
        array: which one.
        first: its first byte there.
        count: of bytes.
        dtype: of its elements.
    """

    array: int
    first: int
    count: int
    dtype: torch.dtype


@dataclass(slots=True)
class Call:
    """One call of a kernel.

    Args:
        name: of the entry.
        words: its arguments; arrays are None.
        before, after: the arrays, in order, as this machine's kernel found and left them.
        places: addresses of the arrays.
        outputs: what the op gave back of them.
    """

    name: str
    words: list[bytes | None]
    before: list[Bytes]
    after: list[Bytes]
    places: list[int]
    outputs: list[Output] = dataclasses.field(default_factory=list)


class Listener:
    """Stands for the native library: runs calls and writes them down."""

    def __init__(self) -> None:
        self._library = native.library()
        self._kept: list[Tensor] = []  # so that no memory is used twice
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def run(self, name: str, *arguments: Tensor | int | float | None) -> None:
        arrays = [value for value in arguments if isinstance(value, Tensor)]
        before = [_memory(array).copy() for array in arrays]
        self._library.run(name, *arguments)
        self._kept += arrays
        words = [None if isinstance(value, Tensor) else _word(value) for value in arguments]
        after, places = [_memory(array).copy() for array in arrays], [array.data_ptr() for array in arrays]
        self.calls.append(Call(name, words, before, after, places))


def listen(call: Callable[[], Any], written: Any = None) -> list[Call]:
    """The calls that an op makes, with its outputs: what it gives back, and what it writes among its arguments."""
    listener = Listener()
    with mock.patch.object(native, "library", lambda: listener):
        given = call()
    for tensor in (*_tensors(given), *_tensors(written)):
        for one in listener.calls if tensor.is_contiguous() else ():
            for index, (place, memory) in enumerate(zip(one.places, one.after, strict=True)):
                first, count = tensor.data_ptr() - place, tensor.numel() * tensor.element_size()
                if 0 <= first and first + count <= memory.size:
                    one.outputs.append(Output(index, first, count, tensor.dtype))
    return listener.calls


def _memory(array: Tensor) -> Bytes:
    """From an array's first byte to the end of its memory: rows may lie apart."""
    whole = torch.empty(0, dtype=torch.uint8).set_(array.untyped_storage())
    memory: Bytes = whole.numpy()[array.storage_offset() * array.element_size() :]
    return memory


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))


def _word(value: int | float | None) -> bytes:
    return struct.pack("=d", value) if isinstance(value, float) else struct.pack("=q", value or 0)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _packed(call: Call) -> bytes:
    name, arrays = call.name.encode(), iter(call.before)
    parts = [struct.pack("=q", len(name) + 1), _padded(name + b"\0"), struct.pack("=q", len(call.words))]
    for word in call.words:
        if word is None:
            array = next(arrays)
            parts += [struct.pack("=qq", 1, array.size), _padded(array.tobytes())]
        else:
            parts += [struct.pack("=q", 0), word]
    return b"".join(parts)


def differences(calls: list[Call], command: list[str], library: Path, folder: Path) -> list[str]:
    """The calls whose outputs are other bytes in emulation than they are here; NaN of any sign and payload are one.

    Args:
        calls: what is run.
        command: that runs the driver.
        library: that is called.
        folder: for files.
    """
    sent, found = folder / "calls", folder / "results"
    sent.write_bytes(struct.pack("=q", len(calls)) + b"".join(_packed(call) for call in calls))
    subprocess.run([*command, str(library), str(sent), str(found)], check=True, capture_output=True, timeout=1200)
    results, at = np.fromfile(found, dtype=np.uint8), 0
    wrong: list[str] = []
    for number, call in enumerate(calls):
        status, at = int(results[at : at + 8].view(np.int64)[0]), at + 8
        arrays: list[Bytes] = []
        for array in call.after:
            arrays.append(results[at : at + array.size])
            at += array.size
        if status or not all(_same(call.after[o.array], arrays[o.array], o) for o in call.outputs):
            wrong.append(f"call {number}: {call.name}" + (f" with status {status}" if status else ""))
    assert at == results.size
    return wrong


def _same(here: Bytes, there: Bytes, output: Output) -> bool:
    a, b = (memory[output.first : output.first + output.count].copy() for memory in (here, there))
    kind = FLOATS.get(output.dtype)
    if kind is None:
        return bool(np.array_equal(a, b))
    x, y = (torch.from_numpy(memory).view(output.dtype) for memory in (a, b))
    equal = torch.from_numpy(a.view(kind) == b.view(kind))
    return bool((equal | (torch.isnan(x) & torch.isnan(y))).all())
