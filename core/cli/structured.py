"""Flags for structured output."""

from __future__ import annotations

import argparse
from pathlib import Path

from tandem.errors import RequestError
from tandem.structured.spec import MAX_SOURCE_BYTES, StructuredSpec


def add_structured_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each kind of `StructuredSpec`; they exclude one another."""
    group = parser.add_argument_group("form of the output", "at most one of these")
    kinds = group.add_mutually_exclusive_group()
    kinds.add_argument("--json-schema", metavar="FILE|TEXT", help="JSON that obeys a schema; text begins with '{'")
    kinds.add_argument("--any-json", action="store_true", help="any JSON value")
    kinds.add_argument("--regex", metavar="PATTERN", help="text that the pattern matches as a whole")
    kinds.add_argument("--ebnf", metavar="FILE", help="text of an EBNF grammar with a rule named root")
    kinds.add_argument("--lark", metavar="FILE", help="text of a Lark grammar with a rule named start")
    kinds.add_argument("--choice", metavar="TEXT", action="append", help="one of several texts; repeat for each")


def structured_of(arguments: argparse.Namespace) -> StructuredSpec | None:
    """What the flags ask for; None without one.

    Raises:
        RequestError: a file cannot be read, or the schema or grammar cannot be used.
    """
    if arguments.json_schema is not None:
        text = arguments.json_schema
        is_text = text.lstrip().startswith("{")
        return StructuredSpec("json", text if is_text else _read("--json-schema", text))
    if arguments.any_json:
        return StructuredSpec("json_object")
    if arguments.regex is not None:
        return StructuredSpec("regex", arguments.regex)
    if arguments.ebnf is not None:
        return StructuredSpec("ebnf", _read("--ebnf", arguments.ebnf))
    if arguments.lark is not None:
        return StructuredSpec("lark", _read("--lark", arguments.lark))
    return None if arguments.choice is None else StructuredSpec("choice", tuple(arguments.choice))


def _read(flag: str, name: str) -> str:
    """The text of a file; of a longer one only so much that it is refused."""
    try:
        with Path(name).open(encoding="utf-8") as file:
            return file.read(MAX_SOURCE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise RequestError(
            "a file cannot be read", where=f"{flag} {name}", why=str(error), fix="give a UTF-8 text file"
        ) from error
