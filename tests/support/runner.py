"""Runs conformance cases on the implementations under test."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

import torch

from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.native import native_status
from tandem.contract.capabilities import Capabilities
from tandem.contract.cases import materialise
from tandem.contract.opspec import OP_TABLE, Case, OpFunction, OpSpec
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend
from tandem.contract.types import KVCache, MoEBatch, QTensor

Tensor = torch.Tensor

# A registered backend (name or name:index) to run instead of the CPU's variants.
CHOICE = "TANDEM_CONFORMANCE_BACKEND"

# Arrays by request slot whose last row is scratch.
SCRATCH = {"state", "history", "last_token", "length"}
# These have conformance tests of their own, with the law of the draw.
SAMPLING = {"sample", "process_logits", "top_logprobs", "adjust_logits", "mask_logits"}


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
    """Every case of every op, the sampling ops left out."""
    for name in sorted(set(OP_TABLE) - SAMPLING):
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
    """Run an op; its outputs, what it wrote included, by the names of the op's classes."""
    plan = plan_of(implementation)
    with torch.no_grad():
        result = plan.bind(op, "conformance")(**args)
    names = list(OP_TABLE[op].classes)
    parts = [] if result is None else list(result) if isinstance(result, tuple) else [result]
    outputs = dict(zip(names, parts, strict=False))
    written = {name: args[name] for name in names[len(parts) :]}
    found = {name: value for name, value in (outputs | written).items() if value is not None}
    return {name: _plain(op, name, value, plan) for name, value in found.items()}


def _plain(op: str, name: str, value: Any, plan: Plan) -> Any:
    """Canonical form, without what no one may read."""
    if isinstance(value, QTensor):
        return plan.backend.to_canonical(value)
    if isinstance(value, KVCache):
        return value.data[:-1]
    if isinstance(value, MoEBatch):
        used = int(value.ends[-1])
        x = plan.backend.to_canonical(value.x)
        rows = QTensor(x.data[:used], x.scale[:used], x.fmt, (used, *x.shape[1:]))
        return MoEBatch(rows, value.weight[:used], value.ends, value.source)
    return value[:-1] if name in SCRATCH or op == "scatter_rows" else value


def leaves(outputs: Any, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of (nested) outputs by dotted name."""
    if isinstance(outputs, Tensor):
        return {prefix: outputs}
    if isinstance(outputs, dict):
        items = outputs
    elif isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        items = outputs._asdict()
    elif dataclasses.is_dataclass(outputs):
        items = {f.name: getattr(outputs, f.name) for f in dataclasses.fields(outputs)}
    else:
        return {}
    found: dict[str, Tensor] = {}
    for name, item in items.items():
        found |= leaves(item, f"{prefix}.{name}" if prefix else str(name))
    return found


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers, so that NaN and the two zeros compare as they are."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()]) if tensor.dtype is not torch.bool else tensor


def meaningful(op: str, name: str, args: dict[str, Any], value: Tensor) -> Tensor:
    """The rows of an output that the op defines; others may hold anything."""
    if (op, name) == ("kv_write", "normed"):
        return value[args["slots"] >= 0]
    if (op, name) == ("compress_update", "latent"):
        rows = args["rows"]
        return value[(rows.slot >= 0) & ((rows.positions + 1) % args["ratio"] == 0)]
    return value


def same_bits(op: str, args: dict[str, Any], one: dict[str, Any], two: dict[str, Any], label: str) -> None:
    """Equal bits in every defined output."""
    left, right = leaves(one), leaves(two)
    assert left.keys() == right.keys(), label
    for name in left:
        a, b = (meaningful(op, name, args, side[name]) for side in (left, right))
        assert a.shape == b.shape and a.dtype == b.dtype, f"{label}: {name}"
        different = bits(a) != bits(b)
        assert not bool(different.any()), f"{label}: {name} differs in {int(different.sum())} of {a.numel()}"
