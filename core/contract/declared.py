"""Op declarations read from their sources, without importing them: they import torch, and `tandem doctor` does not."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "tandem.ops"


class Declaration(NamedTuple):
    """What an ``@op`` and the function under it say: the fields of `OpSpec` that its signature covers."""

    name: str
    arguments: tuple[str, ...]
    attrs: tuple[str, ...]
    classes: dict[str, str]


@cache
def declarations() -> tuple[Declaration, ...]:
    """Those of every file of ``core/ops``, as they are on disk."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec is not None and spec.submodule_search_locations else ()
    files = sorted(file for folder in folders for file in Path(folder).glob("*.py"))
    return tuple(found for file in files for found in read(file.read_text(encoding="utf-8")))


def read(source: str) -> Iterator[Declaration]:
    """Those of one file.

    Raises:
        ValueError: a name, an attribute or a class is not written out where it is declared.
    """
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    for node in functions:
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "op":
                stated = {w.arg: _value(w.value) for w in call.keywords if w.arg in ("attrs", "classes")}
                arguments = _arguments(node.args)
                yield Declaration(_value(call.args[0]), arguments, stated.get("attrs", ()), stated["classes"])


def _value(node: ast.expr) -> Any:
    """A literal, or ``dict.fromkeys`` of literals."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict.fromkeys":
        return dict.fromkeys(*map(ast.literal_eval, node.args))
    return ast.literal_eval(node)


def _arguments(found: ast.arguments) -> tuple[str, ...]:
    """Names in the order of `inspect.signature`."""
    star, double = ([item] if item is not None else [] for item in (found.vararg, found.kwarg))
    return tuple(item.arg for item in (*found.posonlyargs, *found.args, *star, *found.kwonlyargs, *double))
