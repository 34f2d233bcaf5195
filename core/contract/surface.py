"""What a backend class may define, checked when the class is made.

A misspelt method would otherwise be a method that core never calls, and a changed signature an error in the
middle of a run.  Public names are those of `Backend` and no others, in the class and in every mixin it brings;
names that begin with ``_`` are the backend's own.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

from tandem.contract.opspec import CONTRACT_VERSION
from tandem.errors import SurfaceError

Version = tuple[int, int]


def check_subclass(cls: type, base: type) -> None:
    """Refuse a subclass of ``base`` whose public names are not on the surface of ``base``.

    Raises:
        SurfaceError: a TypeError that lists every unknown name and every member of a wrong form.
    """
    surface = _surface(base)
    known = {base, *base.__mro__}
    checked = (c for c in cls.__mro__ if c is cls or not (c in known or issubclass(c, base)))
    faults = [fault for owner in checked for fault in _faults(owner, surface)]
    if faults:
        raise SurfaceError(
            f"class '{cls.__qualname__}' does not fit the surface of contract {version_text(CONTRACT_VERSION)}",
            where=f"{cls.__module__}.{cls.__qualname__}",
            why="; ".join(faults),
            fix="take the names and parameters of tandem.contract.backend.Backend; begin your own names with '_'",
        )


def is_version(value: object) -> bool:
    """Whether ``value`` is a contract version: a pair of integers (major, minor), none negative."""
    return isinstance(value, tuple) and len(value) == 2 and all(type(n) is int and n >= 0 for n in value)


def version_text(version: Version) -> str:
    """(1, 0) as ``1.0``."""
    return f"{version[0]}.{version[1]}"


def _surface(base: type) -> dict[str, Any]:
    """Public members of ``base``; None for those that are only annotated."""
    members: dict[str, Any] = dict.fromkeys(base.__annotations__)
    return members | {name: member for name, member in vars(base).items() if not name.startswith("_")}


def _faults(owner: type, surface: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the public names that one class defines or annotates."""
    annotations: dict[str, Any] = vars(owner).get("__annotations__", {})
    names = dict.fromkeys([*vars(owner), *annotations])
    for name in names:
        if name.startswith("_"):
            continue
        if name not in surface:
            close = difflib.get_close_matches(name, surface, n=1)
            yield f"unknown public name '{name}'" + (f" (did you mean '{close[0]}'?)" if close else "")
        elif name in vars(owner):
            fault = _fault(name, vars(owner)[name], surface[name])
            if fault:
                yield fault


def _fault(name: str, found: Any, wanted: Any) -> str:
    """Why ``found`` cannot stand for the member ``wanted`` of the surface; empty if it can."""
    if wanted is None:
        return _data_fault(name, found)
    kind, form = _form(found), _form(wanted)
    if kind != form:
        return f"'{name}' is a {kind}, the surface has a {form}"
    if kind == "property":
        return ""
    own, theirs = (inspect.signature(getattr(member, "__func__", member)) for member in (found, wanted))
    return "" if _fits(own, theirs) else f"'{name}' takes {_shown(own)}, the surface has {_shown(theirs)}"


def _data_fault(name: str, found: Any) -> str:
    if name == "contract" and not is_version(found):
        return f"'contract' is {found!r}, the surface has a pair of integers (major, minor)"
    if name == "name" and not (isinstance(found, str) and found):
        return f"'name' is {found!r}, the surface has a name"
    return f"'{name}' is a function, the surface has a value" if inspect.isroutine(found) else ""


def _form(member: Any) -> str:
    if isinstance(member, (property, functools.cached_property)):
        return "property"
    for kind, word in ((classmethod, "class method"), (staticmethod, "static method")):
        if isinstance(member, kind):
            return word
    return "method" if inspect.isfunction(member) else f"value of type {type(member).__name__}"


def _fits(own: inspect.Signature, wanted: inspect.Signature) -> bool:
    """The same parameters in the same order; what core may leave out can be left out."""
    mine, theirs = list(own.parameters.values())[1:], list(wanted.parameters.values())[1:]
    return [(p.name, p.kind) for p in mine] == [(p.name, p.kind) for p in theirs] and all(
        a.default is not a.empty for a, b in zip(mine, theirs, strict=True) if b.default is not b.empty
    )


def _shown(signature: inspect.Signature) -> str:
    """Parameter names, with the marks of optional ones, without annotations."""
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(plain))
