"""Corrections to Triton's interpreter, so that a kernel computes on the host what it would on the device.

The stock interpreter truncates to bf16, multiplies bf16 matrices by their bits, wraps fp8 around, adds bf16 numbers as
integers, and takes a condition on a block of elements for true.  The corrections change private names of one version
of Triton; `install` refuses every other one.  What has no model raises `NotModelled` inside the kernel.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tandem.accelerator.emulation import ONE_AT_A_TIME
from tandem.errors import BackendLoadError

TRITON = "3.9.0"
_state = {"installed": False}


def install() -> None:
    """Correct the interpreter of this process; once is enough.

    Raises:
        BackendLoadError: another version of Triton, or one without the names that are changed.
    """
    if _state["installed"]:
        return
    triton: Any = importlib.import_module("triton")
    if triton.__version__ != TRITON:
        raise _refused(
            f"Triton {triton.__version__} is installed, and the corrections of its interpreter are for {TRITON}",
            f"install triton=={TRITON}",
        )
    changes = list(_changes())
    gone = [(owner, name) for owner, name, _ in changes if not hasattr(owner, name)]
    missing = [f"{getattr(owner, '__name__', 'builder')}.{name}" for owner, name in gone]
    if missing:
        raise _refused(
            f"Triton {TRITON} is installed without {', '.join(missing)}, which the corrections change",
            f"install triton=={TRITON} again",
        )
    for owner, name, value in changes:
        setattr(owner, name, value)
    _open_language()
    _state["installed"] = True


def _refused(why: str, fix: str) -> BackendLoadError:
    return BackendLoadError(
        "the device cannot be emulated", where="triton.runtime.interpreter", why=why, fix=f"{fix}, or do not emulate"
    )


def _changes() -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and new value of all that is changed."""
    from triton.runtime import interpreter as stock

    from tandem.backends.cuda.interpreter import elementwise, matrix, reductions

    for name, method in (elementwise.corrections() | matrix.corrections()).items():
        yield stock.InterpreterBuilder, name, method
    yield stock.ReduceOps, "apply_impl", reductions.reduce
    yield stock.ScanOps, "apply_impl", reductions.scan
    yield stock, "_implicit_cvt", _argument(stock)
    yield stock, "_get_np_dtype", _remembered(stock._get_np_dtype)
    yield stock.InterpretedFunction, "run", _alone(stock.InterpretedFunction.run)
    yield stock.GridExecutor, "__call__", _quiet(stock.GridExecutor.__call__)
    # The arguments are the host's own memory, so there is nothing to bring back.
    yield stock.GridExecutor, "_restore_args_dev", lambda self, *_: None
    # The checks are computed and thrown away unless a kernel is compiled for debugging.
    options = stock.InterpreterOptions(sanitize_overflow=False)
    yield stock.interpreter_builder, "options", options


def _argument(stock: Any) -> Callable[[Any], Any]:
    """Scalars as a kernel gets them: a float is float32."""
    convert = stock._implicit_cvt

    def converted(value: Any) -> Any:
        if isinstance(value, float):
            kind = stock.tl.float32
            return stock.tl.tensor(stock.TensorHandle(np.array([value], np.float32), kind), kind)
        return convert(value)

    return converted


def _remembered(storage: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The numpy type that holds a type; the stock function makes a table of all types for each answer."""
    known: dict[str, Any] = {}

    def remembered(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = storage(dtype)
        return known[name]

    return remembered


def _quiet(call: Callable[..., None]) -> Callable[..., None]:
    """Overflow, NaN and division by zero are results, not warnings."""

    def quiet(self: Any, *args: Any, **kwargs: Any) -> None:
        with np.errstate(all="ignore"):
            call(self, *args, **kwargs)

    return quiet


def _alone(run: Callable[..., None]) -> Callable[..., None]:
    """The place in the grid, and much else, is the interpreter's and not a launch's."""

    def alone(self: Any, *args: Any, **kwargs: Any) -> None:
        with ONE_AT_A_TIME:
            run(self, *args, **kwargs)

    return alone


def _open_language() -> None:
    """Let Triton's language interpret for the rest of the process.

    The stock interpreter changes some hundred names for each call of a jitted function, and changes them back.
    """
    from triton.runtime import interpreter as stock

    scope = stock._LangPatchScope()
    for language in (stock.tl, stock.tl.core):
        namespace = type("functions", (), {"__globals__": {"language": language}})
        stock._patch_lang(namespace)
    scope.set_attr(stock.tl.tensor, "__bool__", _condition)
    stock._patch_lang = lambda function: stock._LangPatchScope()


def _condition(self: Any) -> bool:
    """A scalar as a condition; a block has none, but Triton's own code asks by it whether there is a tensor."""
    data = self.handle.data
    if data.size == 1:
        return bool(data.item())
    if sys._getframe(1).f_globals.get("__name__") == "triton.language.semantic":
        return True
    raise TypeError("a block of elements is no condition: use & and | and ~, not 'and', 'or', 'not' and 'if'")
