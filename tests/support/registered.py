"""Backends registered as if packages had brought them."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from collections.abc import Mapping
from typing import Any

import pytest

from tandem.backends.cpu.backend import CpuBackend
from tandem.contract import registry
from tandem.contract.capabilities import Probe


class Toy(CpuBackend):
    """An accelerator from another package."""

    name = "toy"

    @classmethod
    def probe(cls) -> Probe:
        return Probe(True, "a toy on the desk", {"spring": "wound", "toykit": "3.1"})

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> CpuBackend:
        return cls(use_native=False)


def register(monkeypatch: pytest.MonkeyPatch, **backends: Any) -> None:
    """Make entry points; a value that is no class is a module that cannot be imported."""
    entries = []
    for name, backend in backends.items():
        module = types.ModuleType(f"package_of_{name}")
        if isinstance(backend, type):
            module.BACKEND = backend  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, module.__name__, module)
        target = f"{module.__name__}:BACKEND"
        entries.append(importlib.metadata.EntryPoint(name, target, registry.ENTRY_POINTS))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
