"""Replays a trace on another backend: each call on its recorded inputs, or all calls on their own results.

`Replayer` is the engine of both, and of swaps: `Replayer.run` computes a record, `Replayer.put` takes its outputs from
elsewhere, and in free mode later records read whichever of the two happened.  No checkpoint is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from tandem.contract.backend import Backend
from tandem.contract.cases import CacheInput, WeightInput, materialise, upload
from tandem.contract.plan import Plan
from tandem.contract.types import KVCache, KVLayout, PackedWeight, QTensor
from tandem.errors import TandemError, TraceError
from tandem.parity import cacheio, guard
from tandem.parity.record import describe
from tandem.parity.records import Record, View, record_tree
from tandem.parity.spool import references
from tandem.parity.trace import Trace
from tandem.parity.values import encode, units
from tandem.parity.watch import has_scratch, host_output, host_value, named_results
from tandem.parity.writer import TraceWriter

Tensor = torch.Tensor
LOCAL, FREE = "local", "free"
MODES = (LOCAL, FREE)
_POISON = 0xFF  # of cache entries that a call must not read


class Replayer:
    """Runs records of one trace on one backend, in the order of their numbers.

    Args:
        trace: the recorded trace.
        backend: an open backend.
        mode: ``local`` gives every call its recorded inputs; ``free`` gives it what earlier records gave here, where
            the trace says that an input is their output, and what stands in its own caches.
    Attributes:
        anchored: inputs and cache entries that free mode took from the trace because their source is not in it.
    """

    def __init__(self, trace: Trace, backend: Backend, mode: str) -> None:
        self.trace, self.backend, self.mode = trace, backend, mode
        self.plan = Plan(backend)
        self.anchored = {"inputs": 0, "entries": 0}
        self._made: dict[tuple[int, str], Any] = {}  # by record and path: an output on the backend
        self._last_use = _last_uses(trace)
        self._weights: dict[tuple[str, ...], PackedWeight] = {}
        self._caches: dict[tuple[str, KVLayout, int], _Shadow] = {}

    def run(self, record: Record) -> dict[str, Any]:
        """The outputs of a record on this backend, on the host, as the trace holds those of the other.

        Raises:
            OpUnsupported: the backend cannot run it.
            TandemError: the call failed.
        """
        try:
            host = self.trace.inputs(record)
            guard.check(record.op, host, f"record {record.id}")
            args = self.arguments(record, host)
            function = self.plan.bind(record.op, record.site, **bound_attrs(record, args))
            with torch.inference_mode():
                return self._collect(record, args, named_results(record.op, args, function(**args)))
        except TandemError:
            raise
        except Exception as error:  # a trace may hold any values, and ops may answer them in any way
            raise TraceError(
                f"'{record.op}' failed",
                where=f"record {record.id}, {record.site}, backend '{self.backend.name}'",
                why=f"{type(error).__name__}: {error}"[:500],
                fix="check the backend by `tandem conformance`, and the trace by recording it again",
            ) from error

    def put(self, record: Record, outputs: Mapping[str, Any]) -> None:
        """Let later records read these outputs, given on the host as the trace holds them, instead of running."""
        host = self.trace.inputs(record)
        args = self.arguments(record, host)
        for name, value in outputs.items():
            if isinstance(value, CacheInput):
                self._cache(record, name, value).take(value, record.id)
            elif has_scratch(record.op, name):
                upload(value, self.backend, args[name])
                self._keep(record, name, args[name])
            elif name in args and isinstance(value, Tensor):
                self._keep(record, name, self._upload(value))
            else:
                self._keep(record, name, materialise(value, self.backend, 0))

    def arguments(self, record: Record, host: Mapping[str, Any]) -> dict[str, Any]:
        """Call arguments on the backend."""
        writers = self.trace.writers(record)
        args = {}
        for name, value in host.items():
            if isinstance(value, CacheInput):
                args[name] = self._filled(record, name, value, writers[name])
            else:
                args[name] = self._argument(record, name, value)
        return args

    def _argument(self, record: Record, path: str, value: Any) -> Any:
        if self.mode == FREE and path in record.sources:
            made = self._made.get(record.sources[path])
            if made is not None:
                return self._seen(made, value, record.views.get(path))
            self.anchored["inputs"] += 1
        if isinstance(value, WeightInput):
            return self._weight(value, self.trace.tree(record)["inputs"], path)
        if isinstance(value, Tensor | QTensor):
            return materialise(value, self.backend, 0)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = zip(value._fields, value, strict=True)
            return type(value)(*(self._argument(record, f"{path}.{name}", item) for name, item in items))
        if hasattr(value, "__dataclass_fields__"):
            names = value.__dataclass_fields__
            return type(value)(**{n: self._argument(record, f"{path}.{n}", getattr(value, n)) for n in names})
        return value

    def _seen(self, made: Any, recorded: Any, view: View | None) -> Any:
        """An output as an input sees it."""
        if view is None:
            return made
        if view.offset == 0 and made.is_contiguous() and made.numel() == recorded.numel() and _row_major(view):
            return made.view(view.shape)
        whole = host_value(self.backend, made).contiguous()
        return self._upload(torch.as_strided(whole, view.shape, view.stride, view.offset))

    def _upload(self, value: Tensor) -> Any:
        return materialise(value, self.backend, 0)

    def _weight(self, value: WeightInput, trees: dict[str, Any], path: str) -> PackedWeight:
        tree: Any = trees
        first, *rest = path.split(".")
        tree = tree[first]
        for name in rest:
            tree = tree["fields"][name]
        key = (value.kind.value, *references(tree))
        if key not in self._weights:
            self._weights[key] = self.backend.pack_weight(value.kind, value.weight, value.shape)
        return self._weights[key]

    def _cache(self, record: Record, name: str, value: CacheInput) -> _Shadow:
        key = record.caches.get(name, ""), value.layout, value.num_blocks
        if key not in self._caches:
            self._caches[key] = _Shadow(self.backend, value.layout, value.num_blocks)
        return self._caches[key]

    def _filled(self, record: Record, name: str, value: CacheInput, writers: Tensor) -> KVCache:
        """The cache with the entries that the call reads."""
        shadow = self._cache(record, name, value)
        if self.mode == LOCAL:
            shadow.replace(value)
        else:
            self.anchored["entries"] += shadow.anchor(value, writers.numpy())
        return shadow.cache

    def _collect(self, record: Record, args: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        for name, value in named.items():
            if isinstance(value, KVCache):
                slots = cacheio.slots_written(record.op, {"slots": host_value(self.backend, args["slots"])})
                outputs[name] = cacheio.read_entries(self.backend, value, slots)
                self._cache(record, name, outputs[name]).wrote(slots, record.id)
            else:
                outputs[name] = host_output(self.backend, record.op, name, value)
                self._keep(record, name, value)
        return outputs

    def _keep(self, record: Record, name: str, value: Any) -> None:
        if self.mode == FREE:
            for path, unit in units(value, name):
                if self._last_use.get((record.id, path), -1) > record.id:
                    self._made[record.id, path] = unit
            for key in [key for key in self._made if self._last_use[key] <= record.id]:
                del self._made[key]


class _Shadow:
    """A cache on this backend, and which record wrote each of its entries here."""

    def __init__(self, backend: Backend, layout: KVLayout, num_blocks: int) -> None:
        self._backend = backend
        self.cache = backend.kv_alloc(layout, num_blocks)
        self._writers = np.full(num_blocks * layout.block_entries, -1, dtype=np.int64)

    def replace(self, value: CacheInput) -> None:
        """Hold these entries; others of their blocks are poison."""
        layout, slots = value.layout, np.array(value.held, dtype=np.int64)
        if not len(slots):
            return
        blocks = np.unique(slots // layout.block_entries)
        pages = np.full((len(blocks), layout.block_entries, layout.entry_bytes), _POISON, dtype=np.uint8)
        pages[np.searchsorted(blocks, slots // layout.block_entries), slots % layout.block_entries] = value.data
        self._backend.kv_import(self.cache, blocks, pages.reshape(len(blocks), -1))

    def anchor(self, value: CacheInput, writers: Any) -> int:
        """Take recorded entries where the record that wrote them has not run here; gives their number."""
        slots = np.array(value.held, dtype=np.int64)
        foreign = (self._writers[slots] != writers) | (writers < 0)
        if foreign.any():
            cacheio.write_entries(self._backend, self.cache, slots[foreign], value.data[foreign])
            self._writers[slots[foreign]] = writers[foreign]
        return int(foreign.sum())

    def take(self, value: CacheInput, record: int) -> None:
        """Hold entries as if the record had written them."""
        slots = np.array(value.held, dtype=np.int64)
        cacheio.write_entries(self._backend, self.cache, slots, value.data)
        self.wrote(slots, record)

    def wrote(self, slots: Any, record: int) -> None:
        """A record wrote these slots."""
        self._writers[slots] = record


def _row_major(view: View) -> bool:
    expected = 1
    for size, step in zip(reversed(view.shape), reversed(view.stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _last_uses(trace: Trace) -> dict[tuple[int, str], int]:
    """For each output that is read again, the last record that reads it."""
    return {source: record.id for record in trace.records for source in record.sources.values()}


def bound_attrs(record: Record, args: Mapping[str, Any]) -> dict[str, Any]:
    """What the call site stated, with this backend's layouts in the place of the recording one's."""
    weights = args.get("weights")
    arguments = [args.get(name) for name in ("weight", "w1", "cache", "window")]
    owners = {
        "layout": [getattr(weights, "w1", None), *arguments],
        "main_layout": [args.get("main"), args.get("window")],
        "shared_layout": [getattr(weights, "shared_w1", None)],
    }
    attrs = dict(record.attrs)
    for name in attrs.keys() & owners.keys():
        owner = next((item for item in owners[name] if isinstance(item, PackedWeight | KVCache)), None)
        if owner is not None:
            attrs[name] = owner.memory_layout if isinstance(owner, KVCache) else owner.layout
    return attrs


def replay(
    trace: Trace,
    backend: Backend,
    mode: str,
    out: Path,
    chosen: Callable[[Record], bool] = lambda record: True,
    show_progress: bool | None = None,
) -> dict[str, Any]:
    """Replay a trace and write what came out as a trace of the same record numbers.

    Inputs are referred to in the first trace, not stored again.  What the backend cannot run is an error of that
    record; later records that need it are anchored on the recorded values.

    Args:
        chosen: which records to run; in free mode those that the others need should be among them.
    Returns:
        counts: ``records``, ``errors``, and ``anchored``.
    Raises:
        TraceError: ``out`` is not empty, or the trace holds pages.
    """
    trace.require_calls()
    replayer = Replayer(trace, backend, mode)
    told = {key: trace.header[key] for key in ("prompts", "requests", "steps", "model", "flags") if key in trace.header}
    own = describe(backend) | {"replay_of": trace.digest, "mode": mode, "composite": sorted(replayer.plan.composite)}
    writer = TraceWriter(out, told | own, trace)
    records, errors = [record for record in trace.records if chosen(record)], 0
    for record in tqdm(records, desc=f"{mode} replay", disable=None if show_progress is None else not show_progress):
        outputs: dict[str, Any] = {}
        failed: dict[str, str] | None = None
        try:
            outputs = replayer.run(record)
        except TandemError as error:
            failed, errors = error.to_dict(), errors + 1
        tree = record_tree(replace(record, error=failed))
        tree |= {name: trace.tree(record)[name] for name in ("inputs", "writers")}
        writer.add_tree(tree | {"outputs": {name: encode(value, writer.put) for name, value in outputs.items()}})
    counts = {"records": len(records), "errors": errors, "anchored": replayer.anchored}
    digest = writer.close(replayed=counts)
    return counts | {"digest": digest}
