"""Reads JSON objects into frozen dataclasses, checking every known field.

A wrong ``config.json`` otherwise shows up much later as a shape error or, worse, as quietly wrong
text.  Fields that no dataclass names are left alone: model files carry many that do not matter here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tandem.errors import ConfigError

T = TypeVar("T")

_JSON_NAMES = {int: "an integer", float: "a finite number", str: "a string", bool: "true or false"}


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """What a field may hold, attached to its type with ``Annotated``.

    Args:
        only: the supported values; for list fields, of the elements.
        minimum: smallest value allowed; for list fields, of the elements.
        maximum: largest value allowed, where it is less than what any model has (2^31, or 1e9 for numbers that are
            not integers).
        above: the value must be greater than this.
        multiple: an integer must be a multiple of this.
        length: number of elements of a list field.
        key: name in the JSON object, when it differs from the field name.
    """

    only: tuple[object, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    multiple: int | None = None
    length: int | None = None
    key: str | None = None


_ANYTHING = Rule()
# No model has larger numbers; larger ones would overflow far from here.
LARGEST_INTEGER = 1 << 31
LARGEST_FLOAT = 1e9


def refuse(path: str, value: object, allowed: str) -> ConfigError:
    """The error for a field whose value is of a wrong type or not supported."""
    shown = repr(value)
    return ConfigError(
        "the model configuration has a value that cannot be used",
        where=path,
        why=f"it is {shown if len(shown) <= 120 else shown[:117] + '...'}; allowed: {allowed}",
        fix="correct this field, or use a checkpoint of a supported model",
    )


def read_dataclass(cls: type[T], raw: object, path: str) -> T:
    """Build ``cls`` from a JSON object.

    Args:
        cls: a frozen dataclass; fields may carry a :class:`Rule`.
        raw: the parsed JSON value.
        path: dotted name of the object, used in errors.

    Raises:
        ConfigError: a field is missing, has a wrong type or an unsupported value.
    """
    if not isinstance(raw, Mapping):
        raise refuse(path or "config.json", raw, "an object")
    hints = typing.get_type_hints(cls, include_extras=True)
    values: dict[str, object] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        hint, rule = _split(hints[field.name])
        key = rule.key or field.name
        where = f"{path}.{key}" if path else key
        if key in raw:
            values[field.name] = _read_value(hint, raw[key], where, rule)
        elif field.default is dataclasses.MISSING:
            raise _missing(where, key, [str(name) for name in raw], hint)
    return cls(**values)


def write_dataclass(instance: object) -> dict[str, Any]:
    """The JSON object that :func:`read_dataclass` reads back into an equal instance; None is left out."""
    out: dict[str, Any] = {}
    hints = typing.get_type_hints(type(instance), include_extras=True)
    for field in dataclasses.fields(instance):  # type: ignore[arg-type]
        value = getattr(instance, field.name)
        if value is None:
            continue
        if dataclasses.is_dataclass(value):
            value = write_dataclass(value)
        out[_split(hints[field.name])[1].key or field.name] = (
            list(value) if isinstance(value, tuple) else value
        )
    return out


def _split(hint: Any) -> tuple[Any, Rule]:
    if typing.get_origin(hint) is typing.Annotated:
        plain, rule = typing.get_args(hint)
        return plain, rule
    return hint, _ANYTHING


def _missing(where: str, name: str, present: Sequence[str], hint: object) -> ConfigError:
    close = difflib.get_close_matches(name, present, n=1)
    similar = f"; the similar field '{close[0]}' is present" if close else ""
    return ConfigError(
        "the model configuration lacks a required field",
        where=where,
        why=f"no such key{similar}; expected {_describe(hint)}",
        fix="add the field, or use a complete config.json",
    )


def _describe(hint: object) -> str:
    if isinstance(hint, type) and hint in _JSON_NAMES:
        return _JSON_NAMES[hint]
    if typing.get_origin(hint) is tuple:
        return "a list, each element " + _describe(typing.get_args(hint)[0])
    if isinstance(hint, types.UnionType):
        return " or ".join(
            "null" if part is type(None) else _describe(part) for part in typing.get_args(hint)
        )
    return "an object"


def _read_value(hint: Any, value: object, path: str, rule: Rule) -> object:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if dataclasses.is_dataclass(hint):
        return read_dataclass(typing.cast(type, hint), value, path)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise refuse(path, value, _describe(hint))
        if rule.length is not None and len(value) != rule.length:
            raise refuse(path, value, f"a list of length {rule.length}")
        element = typing.get_args(hint)[0]
        return tuple(_read_value(element, item, f"{path}[{i}]", rule) for i, item in enumerate(value))
    return _read_scalar(hint, value, path, rule)


def _read_scalar(hint: type, value: object, path: str, rule: Rule) -> object:
    # bool is a subclass of int in Python, but `true` is not a layer count.
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_FLOAT:
        value = float(value)
    if type(value) is not hint or (isinstance(value, float) and not math.isfinite(value)):
        raise refuse(path, value, _JSON_NAMES[hint])
    if rule.only is not None and value not in rule.only:
        raise refuse(path, value, " or ".join(repr(item) for item in rule.only))
    if isinstance(value, int | float):
        if rule.minimum is not None and value < rule.minimum:
            raise refuse(path, value, f"{rule.minimum} or more")
        largest = rule.maximum or (LARGEST_INTEGER if hint is int else LARGEST_FLOAT)
        if value > largest:
            raise refuse(path, value, f"at most {largest:g}")
        if rule.above is not None and value <= rule.above:
            raise refuse(path, value, f"more than {rule.above}")
        if rule.multiple is not None and value % rule.multiple:
            raise refuse(path, value, f"a multiple of {rule.multiple}")
    return value
