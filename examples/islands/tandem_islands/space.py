"""A memory space of its own: the host holds handles, and only what runs inside the space sees memory.

A handle has the shape and dtype of a tensor and no storage.  Taking views of it is free; whatever would read or combine
its values outside the space is a `WrongSpaceError`.  Work enters by `Space.run`, which every bound op goes through:
handles among its arguments become memory, and memory among its results becomes handles.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from tandem.contract.backend import Array
from tandem.errors import TandemError
from tandem_islands.faults import SLOW_COPY, Faults

Tensor = torch.Tensor
DEVICE = torch.device("meta")  # torch knows of no memory behind a handle

_PROPERTIES = ("shape", "dtype", "device", "layout", "ndim", "nbytes", "itemsize")
_METHODS = ("dim", "size", "numel", "element_size", "is_floating_point", "is_contiguous", "stride", "__len__")
_FACTS = {getattr(Tensor, name).__get__ for name in _PROPERTIES} | {getattr(Tensor, name) for name in _METHODS}
_VIEWS = {getattr(Tensor, name) for name in ("view", "reshape", "flatten", "unflatten", "narrow", "__getitem__")}


class WrongSpaceError(TandemError):
    """Device memory was used outside its space."""


def refuse(what: str, where: str) -> NoReturn:
    """Raise the error of an access from the wrong side."""
    raise WrongSpaceError(
        f"{what} outside the memory space that holds it",
        where=where,
        why="the host holds handles of device tensors; their values lie in another memory",
        fix="bring values over by from_host, to_host or kv_export, and compute by bound ops",
    )


class Handle(torch.Tensor):
    """What the host holds of a device tensor."""

    memory: Tensor  # only for `Space`
    space: Space

    @staticmethod
    def of(memory: Tensor, space: Space) -> Handle:
        """A handle of memory in a space."""
        make = torch.Tensor._make_wrapper_subclass
        handle: Handle = make(Handle, memory.shape, strides=memory.stride(), dtype=memory.dtype, device=DEVICE)
        handle.memory, handle.space = memory, space
        return handle

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func in _VIEWS and isinstance(args[0], Handle):
            base = args[0].memory
            seen = func(base, *args[1:], **(kwargs or {}))
            if seen.untyped_storage().data_ptr() == base.untyped_storage().data_ptr():
                return Handle.of(seen, args[0].space)
        name = getattr(func, "__name__", str(func))
        refuse(f"{func.__self__.__name__ if name == '__get__' else name} was used on a device tensor", _named(args))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        refuse(f"{func} was used on a device tensor", _named(args))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Handle({tuple(self.shape)}, {self.dtype}, {self.space.name})"


def _named(args: Any) -> str:
    return ", ".join(repr(a) if isinstance(a, Handle) else type(a).__name__ for a in args)


def each(value: Any, leaf: Callable[[Tensor], Tensor]) -> Any:
    """The value with every tensor in it, however nested in tuples and dataclasses, replaced by ``leaf`` of it."""
    if isinstance(value, torch.Tensor):
        return leaf(value)
    if isinstance(value, tuple):
        items = [each(item, leaf) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: each(getattr(value, f.name), leaf) for f in dataclasses.fields(value)})
    return value


class Space:
    """The memory of one open device and its in-order queue.

    One thread at a time queues work; others may wait for copies meanwhile.
    """

    def __init__(self, name: str, faults: Faults) -> None:
        self.name, self.closed = name, False
        self._faults, self._inside = faults, False
        self._queue: deque[Copy] = deque()
        self._arriving = threading.Lock()

    def run(self, op: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function inside: it gets memory where the caller has handles, and the other way round.

        Raises:
            WrongSpaceError: an argument lies elsewhere.
            InjectedFault: it is due.
        """
        if self._inside:  # a part of a composite
            return self._call(op, function, *args, **kwargs)
        args, named = each((args, tuple(kwargs.values())), lambda tensor: self.memory(tensor, op))
        self._inside = True
        try:
            result = self._call(op, function, *args, **dict(zip(kwargs, named, strict=True)))
        finally:
            self._inside = False
        return each(result, lambda memory: Handle.of(memory, self))

    def _call(self, op: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._faults.fail("op", f"op '{op}'", op)
        result = function(*args, **kwargs)
        if not self._faults.due("flip", op):
            return result
        first = iter([self._faults.flip])
        return each(result, lambda tensor: next(first, Tensor.clone)(tensor) if tensor.numel() else tensor)

    def memory(self, tensor: Tensor, user: str) -> Tensor:
        """What is behind a handle of this space."""
        if self.closed or not isinstance(tensor, Handle) or tensor.space is not self:
            refuse(f"{user} got {tensor!r}", f"{self.name}, closed" if self.closed else self.name)
        return tensor.memory

    def hold(self, memory: Tensor) -> Handle:
        """Take newly allocated memory in.

        Raises:
            InjectedFault: it is due.
        """
        self._faults.fail("alloc", f"an allocation of {memory.nbytes} bytes")
        return Handle.of(memory, self)

    def copy_out(self, tensor: Tensor) -> Copy:
        """Queue a copy to the host of the values as they are now."""
        self._queue.append(Copy(self, self.memory(tensor, "to_host").clone()))
        return self._queue[-1]

    def wait(self, until: Copy | None = None) -> None:
        """Let queued copies arrive, oldest first, up to ``until`` or all."""
        with self._arriving:
            while self._queue and not (until is not None and until.ready()):
                if self._faults.due("slow"):
                    time.sleep(SLOW_COPY)
                self._queue.popleft().arrive()


class Copy:
    """A copy to the host under way; bf16 arrives as f32."""

    def __init__(self, space: Space, memory: Tensor) -> None:
        self._space, self._memory = space, memory
        self._array: Array | None = None

    def ready(self) -> bool:
        """Whether it has arrived: someone waited for it, for a later one, or for all."""
        return self._array is not None

    def result(self) -> Array:
        """Wait for it."""
        self._space.wait(self)
        return self.arrive()

    def arrive(self) -> Array:
        """The values on the host."""
        if self._array is None:
            memory = self._memory
            self._array = (memory.to(torch.float32) if memory.dtype is torch.bfloat16 else memory).numpy()
        return self._array
