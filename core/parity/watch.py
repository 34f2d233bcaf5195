"""Watches the bound ops of an engine: every outermost call with its values and where they came from."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tandem.conformance.calls import SCRATCH, read, read_quantised
from tandem.contract.backend import Backend
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.contract.plan import Plan
from tandem.contract.types import KVCache, MoEBatch, PackedWeight, QTensor, ShardSpec
from tandem.parity import cacheio, margins
from tandem.parity.flow import Flow
from tandem.parity.records import Record, record_tree
from tandem.parity.spool import Spool
from tandem.parity.values import encode, units
from tandem.parity.weights import UsedWeight, UsedWeights, gate_values

Tensor = torch.Tensor
_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(slots=True)
class Observed:
    """One call: its line of the index, and what decides whether it stays in a small trace."""

    tree: dict[str, Any]
    weights: list[UsedWeight]
    margin: float
    outlier: float


class WatchedPlan(Plan):
    """A plan whose bound functions report to a watcher."""

    def __init__(self, backend: Backend, shard: ShardSpec, watcher: Watcher) -> None:
        super().__init__(backend, shard)
        self._watcher = watcher

    @property
    def graphs(self) -> bool:
        """The watcher must see every call."""
        return False

    def bind(self, op: str, site: str, **attrs: Any) -> OpFunction:
        """As `Plan.bind`."""
        function = super().bind(op, site, **attrs)
        route = super().bind("moe_route", site) if op == "moe_block" else None
        return self._watcher.watched(op, site, attrs, function, route)


def parameters(op: str) -> list[str]:
    """Argument names of an op, in order."""
    return [name for name in inspect.signature(OP_TABLE[op].reference).parameters if name != "parts"]


def named_results(op: str, args: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """Outputs on the backend by the names of the op's classes, written arguments included."""
    names = list(OP_TABLE[op].classes)
    parts = [] if result is None else list(result) if isinstance(result, tuple) else [result]
    written = {name: args[name] for name in names[len(parts) :]}
    found = dict(zip(names, parts, strict=False)) | written
    return {name: value for name, value in found.items() if value is not None}


def has_scratch(op: str, name: str) -> bool:
    """Whether an output is an array by request slot, which lasts from step to step and ends with a scratch row."""
    return name in SCRATCH or op == "scatter_rows"


def host_output(backend: Backend, op: str, name: str, value: Any) -> Any:
    """One output on the host in canonical form, without what no one may read; caches are not read here."""
    if isinstance(value, MoEBatch):
        batch = host_value(backend, value)
        used = int(batch.ends[-1])
        x = QTensor(batch.x.data[:used], batch.x.scale[:used], batch.x.fmt, (used, *batch.x.shape[1:]))
        return MoEBatch(x, batch.weight[:used], batch.ends, batch.source)
    plain = host_value(backend, value)
    return plain[:-1] if has_scratch(op, name) else plain


def host_value(backend: Backend, value: Any, weight: Callable[[PackedWeight], Any] = lambda w: w) -> Any:
    """A value on the host in canonical form; packed weights become what ``weight`` makes of them."""
    if isinstance(value, Tensor):
        return read(backend, value)
    if isinstance(value, QTensor):
        return read_quantised(backend, value)
    if isinstance(value, PackedWeight):
        return weight(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(host_value(backend, item, weight) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not isinstance(value, KVCache):
        parts = {f.name: host_value(backend, getattr(value, f.name), weight) for f in dataclasses.fields(value)}
        return type(value)(**parts)
    return value


class Watcher:
    """Collects the calls of one engine.

    Args:
        spool: keeps their tensors.
    Attributes:
        on: whether calls are collected; step: number of the engine step they belong to.
    """

    def __init__(self, spool: Spool) -> None:
        self.on, self.step = False, 0
        self.observed: list[Observed] = []
        self.weights = UsedWeights()
        self._spool, self._flow = spool, Flow()
        self._caches: dict[int, tuple[str, KVCache, Any]] = {}  # by identity: name, the cache, writers of its entries
        self._gates: dict[int, tuple[PackedWeight, Tensor | None]] = {}
        self._calls = self._first = 0

    def name_caches(self, caches: Mapping[str, KVCache]) -> None:
        """Say what caches are called in the trace."""
        for name, cache in caches.items():
            writers = np.full(cache.num_blocks * cache.layout.block_entries, -1, dtype=np.int32)
            self._caches[id(cache)] = name, cache, writers

    def watched(
        self, op: str, site: str, attrs: dict[str, Any], function: OpFunction, route: OpFunction | None
    ) -> OpFunction:
        """The function, reporting; ``route`` runs the routing that a mixture of experts decides inside."""
        names = parameters(op)

        def run(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return function(*args, **kwargs)
            given = dict(zip(names, args, strict=False)) | kwargs
            experts = None if route is None else self._routed(site, route, given)
            return self._observe(op, site, attrs, function, given, experts, None)[0]

        return run

    def end_step(self) -> None:
        """The calls so far are a step: give those between layers the layer they lead to."""
        layer = None
        for seen in reversed(self.observed[self._first :]):
            if seen.tree["layer"] is not None:
                layer = seen.tree["layer"]
            elif seen.tree["op"].startswith("hc_") and seen.tree["op"] != "hc_expand":
                seen.tree["layer"] = layer
        self._first, self._calls = len(self.observed), 0
        self.step += 1
        self._flow.end_step()

    def _routed(self, site: str, route: OpFunction, block: dict[str, Any]) -> Tensor:
        """Record the routing of a block, which has the number after its own; gives the experts on the host."""
        weights = block["weights"]
        given = {"x": block["x"], "gate": weights.gate, "bias": weights.bias, "bias_vl": weights.bias_vl}
        given |= {"roles": block["roles"], "k": weights.k, "scaling": weights.scaling}
        _, outputs = self._observe("moe_route", f"{site}.gate", {}, route, given, None, len(self.observed) + 1)
        experts: Tensor = outputs["experts"]
        return experts

    def _observe(
        self,
        op: str,
        site: str,
        attrs: dict[str, Any],
        function: OpFunction,
        args: dict[str, Any],
        experts: Tensor | None,
        part_of: int | None,
    ) -> tuple[Any, dict[str, Any]]:
        number = len(self.observed)
        host = {name: self._host(value) for name, value in args.items() if not isinstance(value, KVCache)}
        used = self.weights.note(op, args, host, experts)
        caches, writers = self._read_caches(op, args, host)
        found = self._sources(args, host)
        gap = margins.margin(op, host, self._gate(args["gate"]) if op == "moe_route" else None)
        trees = {name: encode((host | caches)[name], self._spool.put) for name in args}
        result = function(**args)
        outputs = self._outputs(op, number, host, named_results(op, args, result))
        first = next((unit for name, value in outputs.items() for _, unit in units(value, name)), None)
        layer = _LAYER.search(site + ".")
        record = Record(
            id=number,
            step=self.step,
            call=self._calls,
            op=op,
            site=site,
            layer=None if layer is None else int(layer[1]),
            rows=0 if first is None else first.shape[0],
            attrs=attrs,
            sources={path: (source, leaf) for path, (source, leaf, _) in found.items()},
            views={path: view for path, (_, _, view) in found.items() if view is not None},
            caches={name: self._caches[id(value)][0] for name, value in args.items() if isinstance(value, KVCache)},
            parent=part_of,
        )
        tree = record_tree(record) | {
            "writers": {name: encode(tensor, self._spool.put) for name, tensor in writers.items()},
            "inputs": trees,
            "outputs": {name: encode(value, self._spool.put) for name, value in outputs.items()},
        }
        self.observed.append(Observed(tree, used, gap, margins.outlier(outputs)))
        self._calls += 1
        return result, outputs

    def _host(self, value: Any) -> Any:
        return host_value(self._backend, value, lambda weight: self.weights.of(weight).value)

    def _gate(self, weight: PackedWeight) -> Tensor | None:
        if id(weight) not in self._gates:
            self._gates[id(weight)] = weight, gate_values(self._backend, weight)
        return self._gates[id(weight)][1]

    def attach(self, backend: Backend) -> None:
        """The backend whose plan is watched."""
        self._backend = backend

    def _read_caches(
        self, op: str, args: dict[str, Any], host: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Entries that the call reads, and who wrote them."""
        caches, writers = {}, {}
        for name, value in args.items():
            if isinstance(value, KVCache):
                slots = cacheio.slots_read(op, name, value, host)
                caches[name] = cacheio.read_entries(self._backend, value, slots)
                writers[name] = torch.from_numpy(self._caches[id(value)][2][slots])
        return caches, writers

    def _sources(self, args: dict[str, Any], host: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, value in args.items():
            if isinstance(value, KVCache):
                continue
            plain = dict(units(host[name], name))
            for path, unit in units(value, name):
                source = self._flow.find(unit, plain[path])
                if source is not None:
                    found[path] = source
        return found

    def _outputs(self, op: str, number: int, host: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        for name, value in named.items():
            if isinstance(value, KVCache):
                slots = cacheio.slots_written(op, host)
                outputs[name] = cacheio.read_entries(self._backend, value, slots)
                self._caches[id(value)][2][slots] = number
                continue
            outputs[name] = host_output(self._backend, op, name, value)
            plain = dict(units(outputs[name], name))
            for path, unit in units(value, name):
                self._flow.made(number, path, unit, plain[path], has_scratch(op, name))
        return outputs
