"""Kernel files of a backend: one an op, each with its launchers in ``OPS``; and the records of what they take."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from tandem.contract.capabilities import OpCap
from tandem.contract.opspec import OpFunction

Allows = dict[str, frozenset[Any]]


def kernel_files(package: ModuleType) -> list[ModuleType]:
    """The modules of a package that have launchers; those whose names begin with ``_`` have none."""
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


def launchers(package: ModuleType) -> dict[str, OpFunction]:
    """The launchers of every kernel file of a package by op name."""
    return {op: launcher for module in kernel_files(package) for op, launcher in module.OPS.items()}


def allows(**attributes: Iterable[Any]) -> Allows:
    """For each attribute of an op, the values that work."""
    return {name: frozenset(values) for name, values in attributes.items()}


def records(own: Iterable[str], restricted: Mapping[str, Allows], notes: Mapping[str, str]) -> dict[str, OpCap]:
    """A record for each op that the open device brings.

    Args:
        own: the ops.
        restricted: what they take, where that is not everything.
        notes: what stands beside them in tables.
    """
    return {op: OpCap("fused", dict(restricted.get(op, {})), notes.get(op, "")) for op in own}
