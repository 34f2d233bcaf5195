"""Faults put into the engine one at a time, to see that a check notices them.

A fault is an edit of a function's source, of what the loader reads, of the configuration, or a wrap of an
op.  An edit whose text is no longer found fails loudly, so no fault can silently become none.
"""

from __future__ import annotations
import __future__

import dataclasses
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import pytest
import torch
from support.teacher import WatchingBackend, Wrap

from tandem.contract.opspec import OP_TABLE
from tandem.engine.assembly import ProgressSource
from tandem.model.config import ModelConfig

Tensor = torch.Tensor


@dataclass(frozen=True)
class Edit:
    """Replace ``old``, which occurs once, in the source of ``name`` (or ``Class.method``) of a module of tandem."""

    module: str
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        pitfall: its number in docs/ORACLE.md.
        name: what is wrong, in a few words.
        edits: source edits.
        text: changed fields of the text configuration, after the checkpoint's has been read.
        read: (name, tensor) -> the tensor the loader gets.
        rename: name -> the name whose tensor the loader gets.
        wraps: op name -> wrap of the bound op.
        prepare: anything else, done with a monkeypatch; may return more wraps.
        stops: the error that the engine itself ends in, before there is anything to compare.
        variant: much like another fault; tried by the slow tests.
    """

    pitfall: int
    name: str
    edits: tuple[Edit, ...] = ()
    text: dict[str, Any] = field(default_factory=dict)
    read: Callable[[str, Tensor], Tensor] | None = None
    rename: Callable[[str], str] | None = None
    wraps: dict[str, Wrap] = field(default_factory=dict)
    prepare: Callable[[pytest.MonkeyPatch], dict[str, Wrap] | None] | None = None
    stops: type[Exception] | None = None
    variant: bool = False

    def __str__(self) -> str:
        return f"{self.pitfall}-{self.name.replace(' ', '-')}"


def edit(pitfall: int, name: str, module: str, function: str, old: str, new: str, **more: Any) -> Fault:
    """A fault of one edit."""
    return Fault(pitfall, name, (Edit(module, function, old, new),), **more)


@contextmanager
def planted(fault: Fault | None) -> Iterator[WatchingBackend]:
    """A backend for a model to be loaded on while the fault is in place."""
    with pytest.MonkeyPatch.context() as patch:
        if fault is None:
            yield WatchingBackend()
            return
        composites = [op for one in fault.edits for op in _apply(one, patch)]
        if fault.text:
            _configure(fault.text, patch)
        if fault.read or fault.rename:
            _intercept(fault, patch)
        more = fault.prepare(patch) if fault.prepare else None
        yield WatchingBackend(wraps=fault.wraps | (more or {}), composites=composites)


def _apply(one: Edit, patch: pytest.MonkeyPatch) -> list[str]:
    """Put an edit in; the ops whose references use it, which native kernels do again by themselves."""
    module = importlib.import_module(f"tandem.{one.module}")
    owner_name, _, attribute = one.name.rpartition(".")
    owner = getattr(module, owner_name) if owner_name else module
    original = getattr(owner, attribute)
    ops = [name for name, spec in OP_TABLE.items() if _uses(spec.reference, original, set())]
    if one.module.startswith("ops.") and not ops:
        raise AssertionError(f"no op uses {one.module}.{one.name}: the fault would be none")
    changed = _recompiled(original, one)
    if owner_name:
        patch.setattr(owner, attribute, changed)
        return ops
    for name, holder in list(sys.modules.items()):
        if name.split(".")[0] == "tandem":
            for alias in [key for key, value in vars(holder).items() if value is original]:
                patch.setattr(holder, alias, changed)
    for name in [name for name, spec in OP_TABLE.items() if spec.reference is original]:
        patch.setitem(OP_TABLE, name, dataclasses.replace(OP_TABLE[name], reference=changed))
    return ops


def _uses(user: Any, wanted: Any, seen: set[Any]) -> bool:
    """Whether a function or class of tandem is ``wanted``, or names one that is, by itself or through a module."""
    if user is wanted:
        return True
    if user in seen or not getattr(user, "__module__", "").startswith("tandem."):
        return False
    seen.add(user)
    if inspect.isclass(user):
        members = [getattr(member, "__func__", member) for member in vars(user).values()]
        return any(_uses(member, wanted, seen) for member in members if inspect.isfunction(member))
    names, space = set(_names(user.__code__)), user.__globals__
    named = [space[name] for name in names if name in space]
    for module in [value for value in named if inspect.ismodule(value) and value.__name__.startswith("tandem.")]:
        named += [vars(module)[name] for name in names if name in vars(module)]
    return any(_uses(one, wanted, seen) for one in named if inspect.isfunction(one) or inspect.isclass(one))


def _names(code: CodeType) -> Iterator[str]:
    """Global names and attributes in a function and in those defined inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _recompiled(original: Any, one: Edit) -> Any:
    source = getattr(original, "edited_source", None) or textwrap.dedent(inspect.getsource(original))
    source = source[source.index("def ") :]
    if source.count(one.old) != 1:
        raise AssertionError(f"{one.module}.{one.name} holds {one.old!r} {source.count(one.old)} times, not once")
    flags = __future__.annotations.compiler_flag
    source = source.replace(one.old, one.new)
    found: dict[str, Any] = {}
    exec(compile(source, f"<{one.name}, edited>", "exec", flags, dont_inherit=True), original.__globals__, found)
    changed = found[original.__name__]
    changed.edited_source = source
    return changed


def _configure(changes: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    original = ModelConfig.from_dict

    def from_dict(raw: Any) -> ModelConfig:
        config = original(raw)
        return dataclasses.replace(config, text=dataclasses.replace(config.text, **changes))

    patch.setattr(ModelConfig, "from_dict", from_dict)


def _intercept(fault: Fault, patch: pytest.MonkeyPatch) -> None:
    original = ProgressSource.read

    def read(self: ProgressSource, name: str, rows: slice | None = None) -> Tensor:
        tensor = original(self, fault.rename(name) if fault.rename else name, rows)
        return fault.read(name, tensor) if fault.read else tensor

    patch.setattr(ProgressSource, "read", read)
