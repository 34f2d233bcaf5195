"""Kernels, loaded through the C ABI of ``csrc/include/tandem_ascend.h``: on a device, or emulated on the host.

A launcher calls ``run("rms_norm", x, None, y, rows, width, eps)``: torch tensors where the entry takes pointers, None
for NULL, then sizes and numbers.  What an entry takes is not written down here: the library hands out its declarations,
and every call is checked against them.  The struct of device facts and the stream, first in C, are passed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cffi
import torch

from tandem.accelerator.emulation import ONE_AT_A_TIME, emulating
from tandem.errors import BackendLoadError, KernelError, LayoutError, TandemError

Tensor = torch.Tensor
DEVICE, EMULATED = "libtandem_ascend.so", "libtandem_ascend_emulated.so"
MAKE = {DEVICE: "make ascend", EMULATED: "make ascend-emulated"}
_HERE = Path(__file__).resolve().parent
_BUILD = _HERE.parent.parent / "build"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\bint32_t\s+tandem_ascend_(\w+)\(\s*const tandem_ascend_device \*\w+,([^)]*)\)")
# C has no small floats: their codes are unsigned integers there.  Other floats of a size would be taken for them.
_FLOATS = {"float": torch.float32, "double": torch.float64}
_CODES = {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e8m0fnu}
# Makes a device the thread's current one and gives the stream that calls go to.
Queue = Callable[[int], AbstractContextManager[int]]


@dataclass(frozen=True, slots=True)
class _Parameter:
    """What an entry takes in one place.

    Args:
        name: in its declaration.
        told: what it takes, in words.
        arrays: types of arrays, of a pointer; empty of a number.
        numbers: types of Python, of a number; empty of a pointer.
    """

    name: str
    told: str
    arrays: frozenset[torch.dtype] = frozenset()
    numbers: tuple[type, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    function: Any
    parameters: tuple[_Parameter, ...]


class AscendLibrary:
    """The loaded entries.

    Args:
        ffi, handle: of cffi; the library's declarations are known to them.
        path: the file.
        queue: where calls go; None of the emulation, whose calls have finished when they return.
    """

    def __init__(self, ffi: cffi.FFI, handle: Any, path: Path, queue: Queue | None) -> None:
        self._ffi, self._handle, self.path, self._queue = ffi, handle, path, queue
        self._entries: dict[str, _Entry] = {}
        self._devices: dict[int, Any] = {}
        self._pointer = ffi.typeof("void *")
        told = _COMMENT.sub("", _text(ffi, handle.tandem_ascend_declarations()))
        self._names = {name: parameters.split(",")[1:] for name, parameters in _ENTRY.findall(told)}  # the stream first

    @property
    def entries(self) -> frozenset[str]:
        """Names of all entries."""
        return frozenset(self._names)

    def run(self, name: str, *arguments: Tensor | int | float | None) -> None:
        """Queue an entry on the current stream of the device that its arrays are on.

        Raises:
            LayoutError: the arguments are not what the entry takes.
            KernelError: the device refused the launch, or the emulation found a fault.
        """
        entry = self._entries.get(name) or self._bind(name)
        if len(arguments) != len(entry.parameters):
            told = ", ".join(parameter.name for parameter in entry.parameters)
            raise _refused(name, f"{len(arguments)} arguments were passed; it takes {len(entry.parameters)}: {told}")
        values, arrays = self._values(name, entry, arguments)
        index = self._place(name, arrays)
        try:
            if self._queue is None:
                self._emulate(name, entry, values, arrays)
                return
            with self._queue(index) as stream:
                status = entry.function(self._device(index), self._ffi.cast(self._pointer, stream), *values)
        except OverflowError as error:
            raise _refused(name, f"a number is too large: {error}") from error
        if status:
            raise self._error(name, status, arrays)

    def facts(self, index: int = 0) -> dict[str, int]:
        """What kernels tile by: cores and bytes of their buffers."""
        if self._queue is None:
            device = self._device(index)
        else:
            with self._queue(index):
                device = self._device(index)
        return {name: int(getattr(device, name)) for name, _ in self._ffi.typeof("tandem_ascend_device").fields}

    def text(self, status: int) -> str:
        """What a status code means."""
        return _text(self._ffi, self._handle.tandem_ascend_status_string(status))

    def _bind(self, name: str) -> _Entry:
        if name not in self._names:
            raise BackendLoadError(
                f"the kernel library has no entry '{name}'",
                where=str(self.path),
                why="it was built from other sources than these",
                fix=f"build it again with `{MAKE[self.path.name]}`",
            )
        function = getattr(self._handle, f"tandem_ascend_{name}")
        names = [part.split()[-1].lstrip("*") for part in self._names[name]]
        types = self._ffi.typeof(function).args[2:]  # after the device and the stream
        entry = _Entry(function, tuple(_parameter(self._ffi, *pair) for pair in zip(names, types, strict=True)))
        self._entries[name] = entry
        return entry

    def _values(self, name: str, entry: _Entry, arguments: tuple[Any, ...]) -> tuple[list[Any], list[Tensor]]:
        """What C gets for the arguments, and the arrays among them."""
        cast, pointer = self._ffi.cast, self._pointer
        values: list[Any] = []
        arrays: list[Tensor] = []
        for parameter, value in zip(entry.parameters, arguments, strict=True):
            if isinstance(value, Tensor) and value.dtype in parameter.arrays and value.is_contiguous():
                values.append(cast(pointer, value.data_ptr()))
                arrays.append(value)
            elif value is None and parameter.arrays:
                values.append(self._ffi.NULL)
            elif type(value) in parameter.numbers:
                values.append(value)
            else:
                raise _unfit(name, parameter, value)
        return values, arrays

    def _device(self, index: int) -> Any:
        """Facts of the current device, whose index this is; read once."""
        if index not in self._devices:
            facts = self._ffi.new("tandem_ascend_device *")
            status = self._handle.tandem_ascend_device_facts(facts)
            if status:
                raise self._error("device_facts", status, [])
            self._devices[index] = facts
        return self._devices[index]

    def _place(self, name: str, arrays: list[Tensor]) -> int:
        """Index of the device that all arrays are on."""
        if not arrays:
            return 0
        first = arrays[0].device
        if (first.type == "cpu") != (self._queue is None) or any(array.device != first for array in arrays):
            found = " and ".join(sorted({str(array.device) for array in arrays}))
            raise _refused(name, f"arrays are on {found}, not on one device of its own")
        return first.index or 0

    def _emulate(self, name: str, entry: _Entry, values: list[Any], arrays: list[Tensor]) -> None:
        """Run an entry with nothing but its arrays in reach: a kernel that touches other memory is at fault."""
        with ONE_AT_A_TIME:
            try:
                for array in arrays:
                    if array.numel():
                        place = self._ffi.cast(self._pointer, array.data_ptr())
                        self._handle.tandem_ascend_register(place, array.nbytes)
                status = entry.function(self._device(0), self._ffi.NULL, *values)
            finally:
                self._handle.tandem_ascend_forget_all()
            if status:
                raise self._error(name, status, arrays)

    def _error(self, name: str, status: int, arrays: list[Tensor]) -> TandemError:
        shapes = ", ".join(f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)}" for array in arrays)
        where = f"kernel '{name}'" + (f" on {shapes}" if shapes else "")
        if status == self._handle.TANDEM_EMULATION_FAULT:
            fault, _, told = _text(self._ffi, self._handle.tandem_ascend_last_fault()).partition(": ")
            fix = "correct the kernel: a device gives wrong numbers or hangs there"
            return KernelError(f"the emulated device found a fault: {fault}", where=where, why=told, fix=fix)
        if status in (self._handle.TANDEM_BAD_VALUE, self._handle.TANDEM_TOO_LARGE):
            fix = "check the op's contract and the comment of the kernel's declaration"
            return LayoutError(f"kernel '{name}' refused its arguments", where=where, why=self.text(status), fix=fix)
        fix = "tandem doctor shows driver and device; the log of the vendor's runtime names the error"
        return KernelError(f"kernel '{name}' was not started", where=where, why=self.text(status), fix=fix)


def _parameter(ffi: cffi.FFI, name: str, ctype: Any) -> _Parameter:
    """What an entry takes in a place; ``void`` stands for all types."""
    if ctype.kind != "pointer":
        wide = ctype.cname in _FLOATS
        return _Parameter(name, "float" if wide else "int", numbers=(int, float) if wide else (int,))
    item = ctype.item.cname
    if item in _FLOATS:
        return _Parameter(name, item, frozenset({_FLOATS[item]}))
    types = {found for found in vars(torch).values() if isinstance(found, torch.dtype)}
    if ctype.item.kind != "void":
        size = ffi.sizeof(ctype.item)
        whole = {found for found in types if not (found.is_floating_point or found.is_complex)}
        types = {found for found in whole | _CODES if found.itemsize == size}
    return _Parameter(name, item, frozenset(types))


def _unfit(name: str, parameter: _Parameter, value: Any) -> LayoutError:
    """The error of an argument that a parameter does not take."""
    if not (isinstance(value, Tensor) and parameter.arrays):
        what = f"{parameter.told} array or None" if parameter.arrays else parameter.told
        return _refused(name, f"'{parameter.name}' is {type(value).__name__}, it takes {what}")
    if value.dtype not in parameter.arrays:
        return _refused(name, f"'{parameter.name}' has {value.dtype}, it takes {parameter.told}")
    return _refused(name, f"'{parameter.name}' {tuple(value.shape)} is not contiguous: {value.stride()}")


def _refused(name: str, why: str) -> LayoutError:
    fix = "pass what the declaration in csrc/ascend says"
    return LayoutError("a kernel got arguments that it does not take", where=f"kernel '{name}'", why=why, fix=fix)


def _text(ffi: cffi.FFI, pointer: Any) -> str:
    found: bytes = ffi.string(pointer)
    return found.decode()


def places(name: str) -> list[Path]:
    """Where a library may lie: beside the package as installed, and where the build leaves it in a checkout."""
    return [_HERE / name, *sorted(_BUILD.glob(f"ascend*/{name}"))]


def missing(name: str) -> BackendLoadError:
    """The error of a library that was never built."""
    return BackendLoadError(
        "the kernels of backend 'ascend' are missing",
        where=f"{_HERE / name} or {_BUILD / 'ascend*' / name}",
        why="the library was never built",
        fix=f"build it with `{MAKE[name]}`",
    )


def load(path: Path, queue: Queue | None) -> AscendLibrary:
    """Open a library.

    Raises:
        BackendLoadError: the loader refuses it, or it is another library.
    """
    asking, ffi = cffi.FFI(), cffi.FFI()
    asking.cdef("const char *tandem_ascend_declarations(void);")
    try:
        ffi.cdef(_text(asking, asking.dlopen(str(path)).tandem_ascend_declarations()))
        handle = ffi.dlopen(str(path))
        emulated = bool(handle.tandem_ascend_emulated())
    except (OSError, AttributeError, cffi.CDefError, cffi.FFIError) as error:
        raise _unusable(path, f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
    if emulated != (queue is None):
        raise _unusable(path, f"it {'emulates' if emulated else 'is for'} a device, and its name says otherwise")
    return AscendLibrary(ffi, handle, path, queue)


def _unusable(path: Path, why: str) -> BackendLoadError:
    needs = "source set_env.sh of the toolkit, or " if path.name == DEVICE else ""
    return BackendLoadError(
        "the kernels of backend 'ascend' cannot be loaded",
        where=str(path),
        why=why,
        fix=f"{needs}build them again with `{MAKE[path.name]}`",
    )


@cache
def library() -> AscendLibrary:
    """The library of this process, loaded at the first call: the device's, or the emulated one where it emulates.

    Raises:
        BackendLoadError: it was never built, or cannot be loaded.
    """
    name = EMULATED if emulating() else DEVICE
    path = next((place for place in places(name) if place.exists()), None)
    if path is None:
        raise missing(name)
    if name == EMULATED:
        return load(path, None)
    from tandem.backends.ascend import device

    return load(path, device.queue)


def run(name: str, *arguments: Tensor | int | float | None) -> None:
    """Queue an entry; see `AscendLibrary.run`."""
    library().run(name, *arguments)
