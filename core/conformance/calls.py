"""Runs ops on any backend and compares what they gave, bit by bit.

Everything here that is not an argument of the op lies in host memory: results leave the backend by `to_host`,
`to_canonical` and `kv_export` alone, so a backend whose memory the host cannot read works like any other.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from tandem.contract.backend import Backend
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.contract.types import CanonicalWeight, KVCache, MoEBatch, PackedWeight, QTensor

Tensor = torch.Tensor

# Arrays by request slot whose last row is scratch; of scatter_rows, what it writes.
SCRATCH = frozenset({"state", "history", "last_token", "length", "drafts", "proposal", "rates"})


def read(backend: Backend, tensor: Tensor) -> Tensor:
    """A device array as a host tensor of the same dtype and bits."""
    if tensor.dtype is torch.bfloat16:  # to_host would widen it
        return torch.from_numpy(backend.to_host(tensor.view(torch.int16)).result()).view(torch.bfloat16)
    return torch.from_numpy(backend.to_host(tensor).result())


def read_quantised(backend: Backend, q: QTensor) -> QTensor:
    """A quantised activation in canonical layout on the host."""
    plain = backend.to_canonical(q)
    return QTensor(read(backend, plain.data), read(backend, plain.scale), plain.fmt, plain.shape)


def read_cache(backend: Backend, cache: KVCache) -> Tensor:
    """Canonical bytes uint8 [num_blocks * block_entries, entry_bytes] of a cache, its scratch entry left out."""
    blocks = backend.kv_export(cache, np.arange(cache.num_blocks))
    return torch.from_numpy(blocks).view(-1, cache.layout.entry_bytes)


def read_weight(backend: Backend, weight: PackedWeight) -> CanonicalWeight:
    """The stored bits of a packed weight on the host."""
    plain = backend.unpack_weight(weight)
    codes = (plain.data, plain.scale)
    data, scale = (None if t is None else read(backend, t.view(torch.uint8) if plain.fmt.group else t) for t in codes)
    if data is None:
        raise ValueError(f"{weight!r} unpacks to nothing")
    return CanonicalWeight(data, scale, plain.fmt)


def read_argument(backend: Backend, value: Any) -> Any:
    """An argument or output on the host: canonical where it is quantised, packed or a cache."""
    if isinstance(value, Tensor):
        return read(backend, value)
    if isinstance(value, QTensor):
        return read_quantised(backend, value)
    if isinstance(value, KVCache):
        return read_cache(backend, value)
    if isinstance(value, PackedWeight):
        return read_weight(backend, value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(read_argument(backend, item) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: read_argument(backend, getattr(value, f.name)) for f in dataclasses.fields(value)}
        return type(value)(**parts)
    return value


def run_call(plan: Plan, op: str, args: dict[str, Any]) -> dict[str, Any]:
    """Run an op on arguments of the plan's backend.

    Returns:
        Its outputs, what it wrote included, by the names of the op's classes: canonical, on the host, without what
        no one may read (scratch rows, unused rows of a batch).  Outputs that are None are left out.
    """
    with torch.no_grad():
        result = plan.bind(op, "conformance")(**args)
    return collect(plan.backend, op, args, result)


def collect(backend: Backend, op: str, args: dict[str, Any], result: Any) -> dict[str, Any]:
    """What `run_call` returns, of a call that was made: its arguments after it, and what it returned."""
    names = list(OP_TABLE[op].classes)
    parts = [] if result is None else list(result) if isinstance(result, tuple) else [result]
    outputs = dict(zip(names, parts, strict=False))
    written = {name: args[name] for name in names[len(parts) :]}
    found = {name: value for name, value in (outputs | written).items() if value is not None}
    return {name: _plain(op, name, value, backend) for name, value in found.items()}


def _plain(op: str, name: str, value: Any, backend: Backend) -> Any:
    if isinstance(value, MoEBatch):
        batch: MoEBatch = read_argument(backend, value)
        used, x = int(batch.ends[-1]), batch.x
        rows = QTensor(x.data[:used], x.scale[:used], x.fmt, (used, *x.shape[1:]))
        return MoEBatch(rows, batch.weight[:used], batch.ends, batch.source)
    plain = read_argument(backend, value)
    return plain[:-1] if name in SCRATCH or op == "scatter_rows" else plain


def leaves(outputs: Any, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of (nested) outputs by dotted name."""
    if isinstance(outputs, Tensor):
        return {prefix: outputs}
    return {name: leaf for path, item in children(outputs, prefix) for name, leaf in leaves(item, path).items()}


def children(value: Any, prefix: str) -> list[tuple[str, Any]]:
    """Dotted name and value of each part of a dict, named tuple or dataclass; none of anything else."""
    items: dict[str, Any] = {}
    if isinstance(value, dict):
        items = value
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = dict(zip(value._fields, value, strict=True))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return [(f"{prefix}.{name}" if prefix else str(name), item) for name, item in items.items()]


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers, so that NaN and the two zeros compare as they are."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()]) if tensor.dtype is not torch.bool else tensor


def meaningful(op: str, name: str, args: dict[str, Any], value: Tensor) -> Tensor:
    """The rows of an output that the op defines; others may hold anything.

    Args:
        args: the call's data, on the host.
    """
    if (op, name) == ("kv_write", "normed"):
        return value[args["slots"] >= 0]
    if (op, name) == ("compress_update", "latent"):
        rows = args["rows"]
        return value[(rows.slot >= 0) & ((rows.positions + 1) % args["ratio"] == 0)]
    return value


def difference(op: str, args: dict[str, Any], one: dict[str, Any], two: dict[str, Any]) -> str | None:
    """The first defined output whose bits differ, and where; None where there is none.

    Args:
        args: the call's data, on the host; it says which rows are defined.
        one, two: outputs as `run_call` gives them.
    """
    left, right = leaves(one), leaves(two)
    if left.keys() != right.keys():
        return f"outputs {', '.join(left)} and {', '.join(right)}"
    for name in left:
        a, b = (meaningful(op, name, args, side[name]) for side in (left, right))
        found = unequal(name, a, b)
        if found is not None:
            return found
    return None


def unequal(name: str, a: Tensor, b: Tensor) -> str | None:
    """Where two host tensors differ in shape, dtype or a bit; None where they are the same."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{name} is {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}"
    different = bits(a) != bits(b)
    if not bool(different.any()):
        return None
    place = tuple(different.nonzero()[0].tolist())
    return f"{name} differs in {int(different.sum())} of {a.numel()}, first at {place}: {a[place]} and {b[place]}"
