"""What a call was given in a free replay: its trace refers to the recording's inputs, and the truth lies in sources.

An input that is an earlier call's output was, in the replay, that call's output there; a cache entry was what the call
that wrote it wrote there.  Everything else was taken from the recording.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tandem.contract.cases import CacheInput
from tandem.contract.types import QTensor
from tandem.parity.records import Record
from tandem.parity.trace import Trace
from tandem.parity.values import units

Tensor = torch.Tensor
Outputs = Callable[[int], "Mapping[str, Any] | None"]  # of a call of the replay; None where it made none


def fed(trace: Trace, record: Record, known: Mapping[int, Record]) -> list[Any]:
    """References to what reaches a call from earlier ones of its own run; equal lists mean equal bits.

    Args:
        known: the calls that made outputs, by number.
    """
    found: list[Any] = []
    for path, (source, leaf) in sorted(record.sources.items()):
        if source in known:
            found.append([path, _node(trace.tree(known[source])["outputs"], leaf)])
    for path, writers in sorted(trace.writers(record).items()):
        for writer in writers.unique().tolist():
            if writer in known:
                outputs = trace.tree(known[writer])["outputs"].values()
                found.append([path, [item for item in outputs if "cache" in item]])
    return found


def _node(trees: Mapping[str, Any], leaf: str) -> Any:
    first, *rest = leaf.split(".")
    node = trees[first]
    for name in rest:
        node = node["fields"][name] if "fields" in node else node["tuple"][int(name)]
    return node


def rebuild(trace: Trace, record: Record, outputs: Outputs) -> dict[str, Any]:
    """Inputs of a call as the free replay gave them.

    Args:
        trace: the replay or the recording: both tell where inputs come from and what the recording gave.
        outputs: outputs of earlier calls of the replay.
    """
    writers = trace.writers(record)
    found = {}
    for name, value in trace.inputs(record).items():
        if isinstance(value, CacheInput):
            found[name] = _entries(value, writers[name].tolist(), outputs)
        else:
            found[name] = _value(record, name, value, outputs)
    return found


def _value(record: Record, path: str, value: Any, outputs: Outputs) -> Any:
    if path in record.sources:
        source, leaf = record.sources[path]
        made = outputs(source)
        if made is not None:
            return _seen(record, path, dict(units(made[leaf.partition(".")[0]], leaf.partition(".")[0]))[leaf], value)
    if isinstance(value, Tensor | QTensor | str):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        items = zip(value._fields, value, strict=True)
        return type(value)(*(_value(record, f"{path}.{name}", item, outputs) for name, item in items))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return type(value)(**{n: _value(record, f"{path}.{n}", getattr(value, n), outputs) for n in names})
    return value


def _seen(record: Record, path: str, made: Any, recorded: Any) -> Any:
    """An output as the input saw it: a part of it, or with the scratch row that outputs leave out."""
    view = record.views.get(path)
    if view is not None:
        flat = made.contiguous().view(-1)
        end = view.offset + sum((size - 1) * step for size, step in zip(view.shape, view.stride, strict=True)) + 1
        if end > len(flat):  # the view has the scratch row
            whole = flat.new_empty(end)
            torch.as_strided(whole, view.shape, view.stride, view.offset).copy_(recorded)
            whole[: len(flat)] = flat
            flat = whole
        return torch.as_strided(flat, view.shape, view.stride, view.offset)
    if isinstance(made, Tensor) and made.dim() and len(made) + 1 == len(recorded):
        return torch.cat((made, recorded[-1:]))
    return made


def _entries(value: CacheInput, writers: list[int], outputs: Outputs) -> CacheInput:
    data = value.data.copy()
    written: dict[int, dict[int, Any]] = {}
    for row, (slot, writer) in enumerate(zip(value.held, writers, strict=True)):
        if writer >= 0 and writer not in written:
            made = outputs(writer) or {}
            caches = [item for item in made.values() if isinstance(item, CacheInput)]
            written[writer] = {s: entry for cache in caches for s, entry in zip(cache.held, cache.data, strict=True)}
        entry = written.get(writer, {}).get(slot)
        if entry is not None:
            data[row] = entry
    return dataclasses.replace(value, data=data)
