"""What one call of an op must read and multiply at least.

Weights count as stored bytes, of experts only those with rows, of an output head that has a screen the screen and its
bounds where that suffices; caches by the entries that are visible; activations once in and once out.  Products are
2*M*N*K.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.cpu.floors import screen_bytes, stored_bytes
from tandem.backends.cpu import weights
from tandem.backends.cpu.kernels.head_sample import MOST_ROWS
from tandem.contract.types import HcWeights, KVCache, MoEBatch, MoEWeights, PackedWeight, QTensor, WeightKind

Tensor = torch.Tensor


def weight_label(args: tuple[Any, ...]) -> str:
    """Format of the weight among the arguments of a call; empty without one."""
    for arg in args:
        kind = type(arg)
        if kind is PackedWeight:
            return str(arg.fmt.value)
        if kind is HcWeights:
            return str(arg.fn.fmt.value)
        if kind is MoEWeights:
            return str(arg.w1.fmt.value)
    return ""


def cost_of(op: str, arguments: dict[str, Any], result: Any, distinct: int) -> tuple[float, float]:
    """Bytes and FLOPs of a call.

    Args:
        op: contract name.
        arguments: by the names of the contract.
        result: what the call gave.
        distinct: experts in use, of a call that routes by itself.
    """
    rows = _rows(result)
    nbytes = sum(_nbytes(part) for part in _parts(result))
    nbytes += sum(_nbytes(part) for part in _parts(list(arguments.values())) if _leading(part) == rows)
    weight_bytes, flops = _weights(op, arguments, rows, distinct)
    cache_bytes, cache_flops = _caches(op, arguments)
    return nbytes + weight_bytes + cache_bytes, flops + cache_flops


def _parts(value: Any) -> Iterator[Tensor]:
    """Tensors of rows in a value; caches and weights are counted elsewhere."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, QTensor):
        yield from (value.data, value.scale)
    elif isinstance(value, MoEBatch):
        yield from (value.x.data, value.x.scale, value.weight, value.source)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _parts(item)


def _leading(tensor: Tensor) -> int:
    return int(tensor.shape[0]) if tensor.ndim else 1


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _rows(result: Any) -> int:
    return next((_leading(part) for part in _parts(result)), 0)


def _weights(op: str, arguments: dict[str, Any], rows: int, distinct: int) -> tuple[float, float]:
    """Bytes and FLOPs of the products with packed weights, and of gathered rows."""
    ends = arguments.get("ends")
    batch = arguments.get("batch")
    ends = batch.ends if ends is None and isinstance(batch, MoEBatch) else ends
    sent = 0 if ends is None else int(ends[-1])
    if ends is not None:
        distinct = int((torch.diff(ends, prepend=ends.new_zeros(1)) > 0).sum())
    nbytes = flops = 0.0
    moe = arguments.get("weights") if op == "moe_block" else None
    for weight in _packed(list(arguments.values())):
        shape = weight.shape
        if weight.kind in weights.GATHERED:
            count = arguments["rows"].numel() if weight.kind is WeightKind.ENGRAM else rows
            nbytes += count * stored_bytes(weight.fmt, shape[-1])
        elif weight.kind is WeightKind.EXPERTS:
            used = rows * moe.k if isinstance(moe, MoEWeights) else sent
            nbytes += distinct * stored_bytes(weight.fmt, *shape[1:])
            flops += 2.0 * used * math.prod(shape[1:])
        else:
            greedy = op == "head_sample" and arguments["greedy"] and rows <= MOST_ROWS
            screened = greedy and weights.screen(weight) is not None
            nbytes += screen_bytes(*shape) if screened else stored_bytes(weight.fmt, *shape)
            flops += 2.0 * rows * math.prod(shape)
    return nbytes, flops


def _packed(values: list[Any]) -> Iterator[PackedWeight]:
    for value in values:
        if isinstance(value, PackedWeight):
            yield value
        elif isinstance(value, HcWeights | MoEWeights):
            yield from _packed([getattr(value, item.name) for item in dataclasses.fields(value)])


def _caches(op: str, arguments: dict[str, Any]) -> tuple[float, float]:
    """Bytes and FLOPs of reading cache entries: attention, and scores of index keys."""
    nbytes = flops = 0.0
    if op in ("attn_block", "sparse_attn"):
        heads_dim = math.prod(arguments["q"].shape[1:])
        for name in ("window", "main"):
            cache, slots = arguments.get(name), arguments.get(f"{name}_slots")
            if isinstance(cache, KVCache) and slots is not None:
                visible = slots[slots >= 0]
                nbytes += torch.unique(visible).numel() * cache.layout.entry_bytes
                flops += 4.0 * heads_dim * visible.numel()
    elif op in ("index_scores", "index_scores_at"):
        width = int(math.prod(arguments["q"].shape[1:]))
        entries, keys = _scored(arguments)
        nbytes += keys * arguments["cache"].layout.entry_bytes
        flops += 2.0 * width * entries
    return nbytes, flops


def _scored(arguments: dict[str, Any]) -> tuple[int, int]:
    """Pairs of row and entry that are scored, and distinct entries among them."""
    slots = arguments["row_slot"].to(torch.int64)
    live = slots >= 0
    if "lens" in arguments:
        lens = arguments["lens"][live].to(torch.int64)
        most = torch.zeros(int(slots.max().clamp_min(0)) + 1, dtype=torch.int64)
        most.scatter_reduce_(0, slots[live], lens, "amax")
        return int(lens.sum()), int(most.sum())
    entries = arguments["entries"].to(torch.int64)
    seen = (entries >= 0) & live.unsqueeze(-1)
    keyed = (slots.unsqueeze(-1) << 32) + entries
    return int(seen.sum()), int(torch.unique(keyed[seen]).numel())
