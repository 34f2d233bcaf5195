"""The native kernels, loaded through the C ABI of ``csrc/include/tandem.h``.

A launcher calls ``run("rms_norm", x, None, y, rows, width, eps)``: torch tensors where the entry takes pointers, None
for NULL, then sizes and numbers.  What an entry takes is not written down here: the library tells it, and every call is
checked against that.  While a step is recorded a call is written down and does not run.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tandem.backends.cpu.loading import LIBRARY_PATH, Opened, native_status, open_library, text, usable_sets
from tandem.errors import BackendLoadError, LayoutError, TandemError

Tensor = torch.Tensor

# Types of arrays by the letter of a pointer; formats of one byte are codes.
_ARRAYS: dict[str, frozenset[torch.dtype]] = {
    "b": frozenset({torch.uint8, torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.bool, torch.int8}),
    "h": frozenset({torch.bfloat16}),
    "i": frozenset({torch.int32}),
    "u": frozenset({torch.uint32, torch.int32}),
    "l": frozenset({torch.int64}),
    "f": frozenset({torch.float32}),
    "d": frozenset({torch.float64}),
    "v": frozenset(found for found in vars(torch).values() if isinstance(found, torch.dtype)),
}
_NUMBERS: dict[str, tuple[tuple[type, ...], str]] = {"I": ((int,), "q"), "F": ((int, float), "d")}


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel.

    Args:
        name: of the op, mostly.
        signature: letters of ``tandem.h``.
        function: its C function.
        words: packs its arguments.
        arrays: what each argument may be, of an array; None of a number.
    """

    name: str
    signature: str
    function: Any
    words: struct.Struct
    arrays: tuple[frozenset[torch.dtype] | None, ...]


class _Thread(threading.local):
    """What this thread's calls are written down by; None where they run."""

    recorder: Recorder | None = None


class NativeLibrary:
    """The loaded kernels of one instruction set.

    Args:
        opened: the library.
        chosen: the ``tandem_set``.
    """

    def __init__(self, opened: Opened, chosen: Any) -> None:
        ffi = self.ffi = opened.ffi
        self._opened, self.api = opened, opened.api
        self.isa = text(ffi, chosen.name)
        self.parallel = bool(self.api.parallel)
        self.entries: dict[str, Entry] = {}
        index = 0
        while chosen.entries[index].name != ffi.NULL:
            found = chosen.entries[index]
            name, signature = text(ffi, found.name), text(ffi, found.signature)
            form = "=" + "".join(_NUMBERS[letter][1] if letter in _NUMBERS else "Q" for letter in signature)
            arrays = tuple(_ARRAYS.get(letter) for letter in signature)
            self.entries[name] = Entry(name, signature, found.run, struct.Struct(form), arrays)
            index += 1
        self._thread = _Thread()

    def run(self, name: str, *arguments: Tensor | int | float | None) -> None:
        """Call an entry, or write the call down where this thread records.

        Raises:
            LayoutError: the arguments are not what the entry takes.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise _stale(name)
        words = _words(entry, arguments)
        if self._thread.recorder is not None:
            self._thread.recorder.add(entry, words, arguments)
            return
        status = entry.function(words)
        if status:
            raise self.error(name, status, _shapes([value for value in arguments if isinstance(value, Tensor)]))

    def record(self, recorder: Recorder | None) -> None:
        """Let this thread's calls be written down, or run again (None)."""
        self._thread.recorder = recorder

    def error(self, name: str, status: int, shapes: str) -> TandemError:
        """The error of a status; ``shapes``: of the arrays that were passed."""
        return LayoutError(
            f"the native kernel '{name}' refused its arguments",
            where=f"kernel '{name}'" + (f" on {shapes}" if shapes else ""),
            why=text(self.ffi, self.api.status_string(status)),
            fix="check shapes and values against the op's contract and the comment in csrc/cpu/ops",
        )


class Recorder:
    """Calls in order, to be run again as one.

    Args:
        library: whose entries are called.
        keeps: whether an array at an address must be kept alive; of others somebody else keeps the memory.
    """

    def __init__(self, library: NativeLibrary, keeps: Callable[[int], bool]) -> None:
        self._library, self._keeps = library, keeps
        self._kept: list[Tensor] = []
        self._calls: list[tuple[Entry, str]] = []
        self._words = bytearray()
        self._offsets: list[int] = []
        self._frozen: tuple[Any, Any, Any, Any] | None = None

    def add(self, entry: Entry, words: bytes, arguments: tuple[Any, ...]) -> None:
        """Write a call down."""
        arrays = [value for value in arguments if isinstance(value, Tensor)]
        self._kept += [array for array in arrays if self._keeps(array.data_ptr())]
        self._calls.append((entry, _shapes(arrays)))
        self._offsets.append(len(self._words))
        self._words += words

    def __len__(self) -> int:
        return len(self._calls)

    def replay(self) -> None:
        """Run the calls in order, by one native call.

        Raises:
            LayoutError: a kernel refused its arguments; those before it have run.
        """
        ffi, api = self._library.ffi, self._library.api
        if self._frozen is None:
            functions = ffi.new("tandem_entry_fn[]", [entry.function for entry, _ in self._calls])
            offsets, words = ffi.new("int64_t[]", self._offsets), ffi.new("uint8_t[]", bytes(self._words))
            self._frozen = functions, offsets, words, ffi.new("int64_t *")
        functions, offsets, words, failed = self._frozen
        status = api.replay(functions, offsets, words, len(self._calls), failed)
        if status:
            entry, shapes = self._calls[failed[0]]
            raise self._library.error(entry.name, status, shapes)


def _words(entry: Entry, arguments: tuple[Any, ...]) -> bytes:
    """What C gets for the arguments."""
    if len(arguments) != len(entry.signature):
        raise _refused(entry.name, f"{len(arguments)} arguments were passed; it takes '{entry.signature}'")
    values: list[Any] = []
    for dtypes, value in zip(entry.arrays, arguments, strict=True):
        if dtypes is None:
            values.append(value)
        elif value is None:
            values.append(0)
        elif isinstance(value, Tensor) and value.dtype in dtypes and value.is_contiguous() and value.is_cpu:
            values.append(value.data_ptr())
        else:
            raise _unfit(entry, len(values), value)
    try:
        return entry.words.pack(*values)
    except struct.error as error:
        place = next((i for i, letter in enumerate(entry.signature) if not _fits(letter, arguments[i])), None)
        if place is not None:
            raise _unfit(entry, place, arguments[place]) from error
        raise _refused(entry.name, f"a number is too large: {error}") from error


def _fits(letter: str, value: Any) -> bool:
    """Whether a number is one that C takes there."""
    return letter not in _NUMBERS or isinstance(value, _NUMBERS[letter][0])


def _unfit(entry: Entry, place: int, value: Any) -> LayoutError:
    letter = entry.signature[place]
    if letter in _NUMBERS:
        wanted = " or ".join(kind.__name__ for kind in _NUMBERS[letter][0])
    else:
        wanted = f"a contiguous {' or '.join(sorted(str(dtype) for dtype in _ARRAYS[letter]))} array in host memory"
    found = _shown(value) if isinstance(value, Tensor) else type(value).__name__
    return _refused(entry.name, f"argument {place} is {found}, it takes {wanted}")


def _shapes(arrays: list[Tensor]) -> str:
    return ", ".join(_shown(array) for array in arrays)


def _shown(tensor: Tensor) -> str:
    strides = "" if tensor.is_contiguous() else f" with strides {tuple(tensor.stride())}"
    place = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{strides}{place}"


def _refused(name: str, why: str) -> LayoutError:
    fix = "pass what the comment in csrc/cpu/ops says"
    return LayoutError("a kernel got arguments that it does not take", where=f"kernel '{name}'", why=why, fix=fix)


def _stale(name: str) -> BackendLoadError:
    return BackendLoadError(
        f"the native library has no kernel '{name}'",
        where=str(LIBRARY_PATH),
        why="it was built from other sources than these",
        fix="build it again: python setup.py build_native --inplace, or install Tandem again",
    )


@cache
def library_for(name: str) -> NativeLibrary:
    """The native kernels of an instruction set, loaded at the first call; all of them give the same bits.

    Raises:
        BackendLoadError: they are not available.
    """
    opened, status = open_library(LIBRARY_PATH)
    sets = {} if opened is None else usable_sets(opened)
    if opened is None or name not in sets:
        raise BackendLoadError(
            "the native kernels of backend 'cpu' cannot be used",
            where=str(status.path),
            why=status.reason or f"this machine has {', '.join(sets)}, not {name}",
            fix="install Tandem where a C++ compiler is, or choose the slow plain torch: backend option native=false",
        )
    return NativeLibrary(opened, sets[name])


@cache
def library() -> NativeLibrary:
    """The native kernels of the best instruction set that this machine has.

    Raises:
        BackendLoadError: they are not available.
    """
    return library_for(native_status().isa)


def run(name: str, *arguments: Tensor | int | float | None) -> None:
    """Call an entry; see `NativeLibrary.run`."""
    library().run(name, *arguments)
