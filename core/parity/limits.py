"""Bounds on what is read from a trace, and the error every violation raises."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tandem.errors import TraceError

MAX_HEADER = 16 << 20  # bytes of header.json
MAX_INDEX = 256 << 20  # bytes of index.jsonl
MAX_LINE = 1 << 20  # bytes of one record
MAX_RECORDS = 1 << 20
MAX_SHARDS = 4096
MAX_SHARD = 8 << 30  # bytes of one shard
MAX_SHARD_HEADER = 64 << 20
MAX_TENSOR = 2 << 30  # bytes of one tensor, and of a weight or cache rebuilt from a part of it
MAX_DIMS = 8
MAX_DEPTH = 24  # nesting of JSON values
MAX_STRING = 1 << 16  # characters of one string of a record
MAX_INTEGER = 1 << 63
MAX_NUMBER = 1 << 31  # size of an integer argument
MAX_SIZE = 1 << 20  # of one that says how much there is of something, such as a width, a block or a window
MAX_COUNT = 1 << 12  # iterations and choices of an op

_RECORD_AGAIN = "copy the trace again, or record it again"


def refuse(where: str, why: str, fix: str = _RECORD_AGAIN) -> NoReturn:
    """Raise the `TraceError` of a trace that cannot be read."""
    raise TraceError("a trace cannot be read", where=where, why=why, fix=fix)


def require(condition: bool, where: str, why: str) -> None:
    """Refuse unless the condition holds."""
    if not condition:
        refuse(where, why)


def parse_json(text: bytes, where: str) -> Any:
    """A JSON value without NaN, infinity, deep nesting or huge numbers.

    Raises:
        TraceError: it is not that.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        refuse(where, f"it is not JSON: {error}"[:300])
    _bounded(value, where, 0)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _bounded(value: Any, where: str, depth: int) -> None:
    require(depth <= MAX_DEPTH, where, f"values are nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        for item in value.values():
            _bounded(item, where, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _bounded(item, where, depth + 1)
    elif isinstance(value, int):
        require(-MAX_INTEGER <= value < MAX_INTEGER, where, "an integer does not fit 64 bits")
    elif isinstance(value, float):
        require(value - value == 0.0, where, "a number is not finite")


def integer(value: Any, where: str, low: int = 0, high: int = MAX_INTEGER) -> int:
    """An integer of [low, high), no bool."""
    if type(value) is not int or not low <= value < high:
        refuse(where, f"expected an integer from {low} to {high - 1}, found {value!r}"[:300])
    return int(value)


def text(value: Any, where: str, longest: int = MAX_STRING) -> str:
    """A string of bounded length."""
    if not isinstance(value, str) or len(value) > longest:
        refuse(where, f"expected a text of at most {longest} characters")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        refuse(where, f"expected an object, found {type(value).__name__}")
    return value


def sequence(value: Any, where: str, longest: int = MAX_RECORDS) -> list[Any]:
    """A JSON array of bounded length."""
    if not isinstance(value, list) or len(value) > longest:
        refuse(where, f"expected a list of at most {longest} items")
    return value


def keys(value: dict[str, Any], needed: set[str], allowed: set[str], where: str) -> None:
    """All needed keys and none that is not known."""
    missing, unknown = sorted(needed - value.keys()), sorted(value.keys() - needed - allowed)
    require(not missing, where, f"it lacks {', '.join(missing)}")
    require(not unknown, where, f"it has {', '.join(unknown)[:200]}, which the format does not know")
