"""Faults put into one op of a backend, to see that the conformance kit catches and names them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tandem.backends.cpu.backend import CpuBackend
from tandem.conformance.calls import bits
from tandem.contract.backend import Backend
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.contract.types import QTensor

Tensor = torch.Tensor


@dataclass
class Call:
    """One call of the op that has the fault.

    Args:
        backend: where it runs.
        args: by name.
        function: the right implementation.
        number: calls before this one.
        rng: seeded by the fault, the same in every call.
    """

    backend: Backend
    args: dict[str, Any]
    function: OpFunction
    number: int
    rng: np.random.Generator

    def run(self, **changed: Any) -> Any:
        """The right result, of other arguments where given."""
        return self.function(**(self.args | changed))

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def pick(self, count: int) -> int:
        """A number below ``count``."""
        return int(self.rng.integers(count))


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        name: what is wrong.
        op: where.
        cases: part of the case strings that are run.
        must: checks that fail.
        may: other checks that may fail too.
        change: computes the wrong result.
    """

    name: str
    op: str
    cases: str
    must: tuple[str, ...]
    may: tuple[str, ...]
    change: Callable[[Call], Any]

    def __str__(self) -> str:
        return f"{self.op}-{self.name.replace(' ', '-')}"


FAULTS: list[Fault] = []


def fault(
    name: str, op: str, cases: str, *must: str, may: tuple[str, ...] = ()
) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Add a fault to the table; the decorated function is its `change`."""

    def register(change: Callable[[Call], Any]) -> Callable[[Call], Any]:
        FAULTS.append(Fault(name, op, f"{op}/{cases}", must, may, change))
        return change

    return register


class FaultyBackend(CpuBackend):
    """The CPU backend with one fault, or none."""

    name = "faulty"

    def __init__(self, wrong: Fault | None) -> None:
        super().__init__(use_native=False)
        self._wrong, self._calls = wrong, 0

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        wrong = self._wrong
        if wrong is None or op != wrong.op:
            return function
        signature = inspect.signature(OP_TABLE[op].reference)
        parameters = [p for p in signature.parameters.values() if p.name != "parts"]

        def changed(*args: Any, **named: Any) -> Any:
            given = signature.replace(parameters=parameters).bind(*args, **named)
            given.apply_defaults()
            call = Call(self, dict(given.arguments), function, self._calls, np.random.default_rng(7))
            self._calls += 1
            return wrong.change(call)

        return changed


def nudge(call: Call, tensor: Tensor, places: int) -> Tensor:
    """One element that is not zero or NaN, moved by some last places away from zero."""
    flat = bits(tensor).view(-1)
    usable = (torch.isfinite(tensor) & (tensor != 0)).flatten().nonzero().flatten()
    if len(usable):
        flat[usable[call.pick(len(usable))]] += places
    return tensor


def edited(call: Call, q: QTensor, **parts: Callable[[Tensor], Tensor]) -> QTensor:
    """A quantised tensor whose canonical codes (``data``) or ``scale`` are changed."""
    plain = call.backend.to_canonical(q)
    new = {name: change(getattr(plain, name).clone()) for name, change in parts.items()}
    return call.backend.from_canonical(dataclasses.replace(plain, **new))


def quantised(call: Call, fmt: Any, codes: np.ndarray, scales: np.ndarray, shape: tuple[int, ...]) -> QTensor:
    """A quantised tensor in the backend's layout."""
    parts = (torch.from_numpy(codes.astype(np.uint8)), torch.from_numpy(scales.astype(np.uint8)))
    return call.backend.from_canonical(QTensor(*parts, fmt, shape))
