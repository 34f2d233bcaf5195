"""The CPU backend with a meter around its ops: time of each, and what each must read and multiply at least."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.cpu.costs import cost_of, weight_label
from benchmarks.cpu.floors import floor_seconds
from tandem.backends.cpu.backend import CpuBackend
from tandem.contract.capabilities import Capabilities
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.contract.types import MoEWeights
from tandem.ops.numerics import decode_weight, softplus


@dataclass(slots=True)
class OpRow:
    """Totals of one kind of call: seconds without those of metered calls inside; bytes and FLOPs of each."""

    calls: int = 0
    seconds: float = 0.0
    costs: list[tuple[float, float]] = field(default_factory=list)

    def cost(self, bandwidth: float, peak: float) -> dict[str, float]:
        """Bytes, FLOPs and least seconds of all calls; each is bound by the one or the other."""
        return {
            "nbytes": sum(nbytes for nbytes, _ in self.costs),
            "flops": sum(flops for _, flops in self.costs),
            "floor_s": sum(floor_seconds(nbytes, flops, bandwidth, peak) for nbytes, flops in self.costs),
        }


@dataclass(slots=True)
class Meter:
    """Where calls are noted."""

    mode: str = "off"  # off, time or count
    rows: dict[str, OpRow] = field(default_factory=dict)
    experts: list[int] = field(default_factory=list)  # distinct experts of each MoE call, while counting
    outermost_s: float = 0.0
    calls: int = 0
    _inner: list[float] = field(default_factory=list)

    def start(self, mode: str) -> None:
        """Forget everything, and note calls from now on."""
        self.mode, self.rows, self.experts, self.outermost_s, self.calls = mode, {}, [], 0.0, 0

    def timed(self, op: str, function: OpFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call and note its seconds."""
        row = self._row(op, args)
        inner = self._inner
        inner.append(0.0)
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            took = time.perf_counter() - started
            row.calls += 1
            row.seconds += took - inner.pop()
            self.calls += 1
            if inner:
                inner[-1] += took
            else:
                self.outermost_s += took

    def counted(self, backend: CpuBackend, op: str, function: OpFunction, bound: Bound) -> Any:
        """Run a call and note its bytes and FLOPs, if it is no composite of other metered calls."""
        if op == "moe_block":
            self.experts.append(_distinct_experts(backend, bound))
        before = self.calls
        result = function(*bound.args, **bound.kwargs)
        leaf, self.calls = self.calls == before, self.calls + 1
        row = self._row(op, bound.args)
        row.calls += 1
        if leaf:
            distinct = self.experts[-1] if op == "moe_block" else 0
            row.costs.append(cost_of(op, bound.arguments(op), result, distinct))
        return result

    def _row(self, op: str, args: tuple[Any, ...]) -> OpRow:
        label = weight_label(args)
        return self.rows.setdefault(f"{op} {label}" if label else op, OpRow())


@dataclass(frozen=True, slots=True)
class Bound:
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def arguments(self, op: str) -> dict[str, Any]:
        """By the names of the contract."""
        names = [name for name in inspect.signature(OP_TABLE[op].reference).parameters if name != "parts"]
        return dict(zip(names, self.args, strict=False)) | self.kwargs


class MeteredBackend(CpuBackend):
    """The CPU backend, eager, each op metered; made by `open_metered`."""

    _meter: Meter

    @property
    def caps(self) -> Capabilities:
        """Those of the backend, but nothing is captured: a replay has no calls to meter."""
        return dataclasses.replace(super().caps, graphs=False)

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        """A call that the meter sees."""

        def metered(*args: Any, **kwargs: Any) -> Any:
            meter = self._meter
            if meter.mode == "time":
                return meter.timed(op, function, args, kwargs)
            if meter.mode == "count":
                return meter.counted(self, op, function, Bound(args, kwargs))
            return function(*args, **kwargs)

        return metered


def open_metered() -> tuple[CpuBackend, Meter]:
    """A backend and its meter, which is off."""
    backend, meter = MeteredBackend.open(0, {}), Meter()
    backend._meter = meter  # type: ignore[attr-defined]
    return backend, meter


def overhead_s(meter: Meter, calls: int = 20_000) -> float:
    """Seconds that metering a call costs outside of what it notes for it."""
    meter.start("time")
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    tensors = (torch.zeros(1),) * 3
    started = time.perf_counter()
    for _ in range(calls):
        meter.timed("nothing", nothing, tensors, {})
    took = time.perf_counter() - started
    spent = (took - meter.outermost_s) / calls
    meter.start("off")
    return spent


def _distinct_experts(backend: CpuBackend, bound: Bound) -> int:
    """Experts that the rows of an MoE call go to, by the contract's rule (text rows)."""
    arguments = bound.arguments("moe_block")
    weights: MoEWeights = arguments["weights"]
    gate = decode_weight(backend.unpack_weight(weights.gate))
    rows = arguments["x"][arguments["row_slot"] >= 0].to(torch.float32)
    scores = torch.sqrt(softplus(rows @ gate.t())) + weights.bias
    chosen = torch.topk(scores, weights.k, dim=-1).indices
    return int(torch.unique(chosen).numel())
