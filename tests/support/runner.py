"""The implementations under test, and how to run a case on one."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.loading import native_status
from tandem.conformance.calls import difference, run_call
from tandem.contract.capabilities import Capabilities
from tandem.contract.cases import materialise
from tandem.contract.opspec import OP_TABLE, Case, OpFunction, OpSpec
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend

# A registered backend (name or name:index) to run instead of the CPU's variants.
CHOICE = "TANDEM_CONFORMANCE_BACKEND"


class CompositeBackend(CpuBackend):
    """The CPU backend without any implementation of its own: every op is the composite of core/ops."""

    @property
    def caps(self) -> Capabilities:
        return dataclasses.replace(super().caps, ops={}, notes="composites only")

    def implementation(self, op: str) -> OpFunction | None:
        return None


def implementations() -> list[str]:
    """Names of the implementations to run: the chosen backend, else the CPU's variants that can run here."""
    chosen = os.environ.get(CHOICE)
    if chosen:
        return [chosen]
    native = ["cpu-native"] if native_status().available else []
    return ["composite", "cpu-plain", *native]


@functools.cache
def plan_of(implementation: str) -> Plan:
    """A plan on a backend that lives as long as the test run."""
    if implementation == "composite":
        return Plan(CompositeBackend(use_native=False))
    if implementation.startswith("cpu-"):
        return Plan(CpuBackend(use_native=implementation == "cpu-native"))
    return Plan(open_backend(implementation))


def each_case() -> Iterator[tuple[OpSpec, Case]]:
    """Every case of every op."""
    for name in sorted(OP_TABLE):
        for case in OP_TABLE[name].cases:
            yield OP_TABLE[name], case


def find_case(op: str, name: str) -> Case:
    """A case by op and name."""
    return next(case for case in OP_TABLE[op].cases if case.name == name)


def arguments(case: Case, implementation: str, seed: int = 0, poison: int = 0xFF) -> dict[str, Any]:
    """Fresh call arguments; the same for the same numbers."""
    made: dict[str, Any] = materialise(case.build(seed), plan_of(implementation).backend, poison)
    return made


def call(op: str, implementation: str, args: dict[str, Any]) -> dict[str, Any]:
    """Run an op; its outputs as `run_call` gives them."""
    return run_call(plan_of(implementation), op, args)


def same_bits(op: str, args: dict[str, Any], one: dict[str, Any], two: dict[str, Any], label: str) -> None:
    """Equal bits in every defined output."""
    found = difference(op, args, one, two)
    assert found is None, f"{label}: {found}"
