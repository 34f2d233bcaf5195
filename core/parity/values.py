"""Arguments and results of op calls as JSON with references to stored tensors.

Host values only: tensors and the types of `tandem.contract.cases` and `tandem.contract.types` in canonical form.
A tensor is ``{"t": sha256 of its bytes, "d": dtype, "s": shape}``; everything else is a small tagged object.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from tandem.contract.cases import CacheInput, PartlyUsed, WeightInput
from tandem.contract.types import (
    CacheKind,
    CanonicalWeight,
    HcMix,
    HcWeights,
    KVLayout,
    MoEBatch,
    MoEWeights,
    QFormat,
    QTensor,
    Rows,
    WeightKind,
)
from tandem.errors import LayoutError
from tandem.parity import limits
from tandem.parity.kinds import DTYPE_NAMES, DTYPES, GROUPS, fields_of, fits
from tandem.parity.limits import integer, keys, mapping, refuse, require, sequence, text

Tensor = torch.Tensor
Kind = TypeVar("Kind", QFormat, WeightKind, CacheKind)
Put = Callable[[Tensor], str]  # stores a contiguous tensor's bytes and returns their sha256
Fetch = Callable[[str, torch.dtype, tuple[int, ...]], Tensor]

# Bytes (data, scale) of rows that were left out, so that using one is loud: NaN; of expert weights, which no backend
# needs to take with NaN in them, the largest code times 2^100, the largest scale that the CPU's kernels take.
_FILL = {QFormat.MXFP4: (0x77, 0xE3), QFormat.FP8_BLOCK32: (0x7E, 0xE3)}
_NAN = (0xFF, 0xFF)


@dataclass(frozen=True, slots=True)
class PartOfWeight:
    """A weight of which only ``rows`` (int64, ascending, of the first axis) are stored; it is read back whole.

    Rows left out come back as NaN, or in expert weights as values near 10^31: using one shows.
    """

    kept: WeightInput  # data and scale of the kept rows, with the shape of the whole
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Deferred:
    """A value whose tree is filled in later: what of a weight is stored is known when the run has ended."""

    tree: dict[str, Any]


def raw_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a host tensor, uint8 [n]."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.uint8)
    flat = tensor.detach().contiguous().flatten()
    return flat.to(torch.uint8) if flat.dtype is torch.bool else flat.view(torch.uint8)


def digest(tensor: Tensor) -> str:
    """SHA-256 of the bytes of a host tensor."""
    return hashlib.sha256(raw_bytes(tensor).numpy().data).hexdigest()


def encode(value: Any, put: Put) -> Any:
    """A host value as JSON.

    Raises:
        TypeError: it is of a type that traces do not hold.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        finite = isinstance(value, int) or math.isfinite(value)
        return value if finite else {"float": repr(float(value))}
    if isinstance(value, Tensor):
        return {"t": put(value), "d": DTYPE_NAMES[value.dtype], "s": list(value.shape)}
    if isinstance(value, torch.dtype):
        return {"dtype": DTYPE_NAMES[value]}
    if isinstance(value, QFormat):
        return {"format": value.value}
    if isinstance(value, QTensor):
        parts = {"data": encode(value.data, put), "scale": encode(value.scale, put)}
        return {"q": parts | {"fmt": value.fmt.value, "shape": list(value.shape)}}
    if isinstance(value, WeightInput | PartOfWeight):
        return {"weight": _encode_weight(value, put)}
    if isinstance(value, CacheInput):
        return {"cache": _encode_cache(value, put)}
    if isinstance(value, Deferred):
        return value.tree
    if isinstance(value, PartlyUsed):
        return encode(value.value, put)
    name = type(value).__name__
    if name in GROUPS and isinstance(value, GROUPS[name]):
        return {"group": name, "fields": {key: encode(item, put) for key, item in fields_of(value)}}
    if isinstance(value, tuple):
        return {"tuple": [encode(item, put) for item in value]}
    raise TypeError(f"a trace holds no {name}")


def _encode_weight(value: WeightInput | PartOfWeight, put: Put) -> dict[str, Any]:
    whole = value.kept if isinstance(value, PartOfWeight) else value
    data, scale, fmt = whole.weight
    coded = data if fmt in (QFormat.F32, QFormat.BF16) else data.view(torch.uint8)
    return {
        "kind": whole.kind.value,
        "fmt": fmt.value,
        "shape": list(whole.shape),
        "data": encode(coded, put),
        "scale": None if scale is None else encode(scale.view(torch.uint8), put),
        "rows": encode(value.rows, put) if isinstance(value, PartOfWeight) else None,
    }


def _encode_cache(value: CacheInput, put: Put) -> dict[str, Any]:
    layout = value.layout
    return {
        "kind": layout.kind.value,
        "fmt": layout.fmt.value,
        "dim": layout.dim,
        "block_entries": layout.block_entries,
        "num_blocks": value.num_blocks,
        "slots": encode(torch.tensor(value.held, dtype=torch.int32), put),
        "data": encode(torch.from_numpy(value.data), put),
    }


def decode(tree: Any, fetch: Fetch, where: str) -> Any:
    """The value of a JSON tree.

    Args:
        tree: what `encode` gave, parsed again; anything may be in it.
        fetch: gives a stored tensor by hash, dtype and shape.
        where: named in errors.
    Raises:
        TraceError: the tree is no value, or its parts do not fit each other.
    """
    if tree is None or isinstance(tree, bool | int | float):
        return tree
    if isinstance(tree, str):
        return text(tree, where)
    if not isinstance(tree, dict) or not tree:
        refuse(where, f"expected a value, found {type(tree).__name__}")
    tag = next(iter(tree))
    reader = _READERS.get(tag)
    if reader is None:
        refuse(where, f"there is no value of kind '{tag[:40]}'")
    return reader(tree, fetch, where)


def reference(tree: Any, where: str) -> tuple[str, torch.dtype, tuple[int, ...]]:
    """Hash, dtype and shape of a stored tensor, checked.

    Raises:
        TraceError: it is no reference, or of a tensor beyond the bounds.
    """
    keys(mapping(tree, where), {"t", "d", "s"}, set(), where)
    name, dtype = text(tree["t"], where), tree["d"]
    require(len(name) == 64 and set(name) <= set("0123456789abcdef"), where, "a tensor's name is no SHA-256")
    require(isinstance(dtype, str) and dtype in DTYPES, where, f"dtype {dtype!r} is none of {', '.join(DTYPES)}"[:300])
    shape = _shape(tree["s"], where)
    require(math.prod(shape) * DTYPES[dtype].itemsize <= limits.MAX_TENSOR, where, f"a tensor {shape} is too large")
    return name, DTYPES[dtype], shape


def _shape(value: Any, where: str) -> tuple[int, ...]:
    return tuple(integer(n, where, 0, 1 << 40) for n in sequence(value, where, limits.MAX_DIMS))


def _tensor(tree: dict[str, Any], fetch: Fetch, where: str) -> Tensor:
    return fetch(*reference(tree, where))


def _float(tree: dict[str, Any], fetch: Fetch, where: str) -> float:
    keys(tree, {"float"}, set(), where)
    require(tree["float"] in ("inf", "-inf", "nan"), where, "a number is neither finite nor infinite nor NaN")
    return float(tree["float"])


def _dtype(tree: dict[str, Any], fetch: Fetch, where: str) -> torch.dtype:
    keys(tree, {"dtype"}, set(), where)
    name = text(tree["dtype"], where)
    require(name in DTYPES, where, f"found dtype {name[:40]!r}")
    return DTYPES[name]


def _format(tree: dict[str, Any], fetch: Fetch, where: str) -> QFormat:
    keys(tree, {"format"}, set(), where)
    return _member(QFormat, tree["format"], where)


def _tuple(tree: dict[str, Any], fetch: Fetch, where: str) -> tuple[Any, ...]:
    keys(tree, {"tuple"}, set(), where)
    return tuple(decode(item, fetch, where) for item in sequence(tree["tuple"], where, 64))


def _q(tree: dict[str, Any], fetch: Fetch, where: str) -> QTensor:
    keys(tree, {"q"}, set(), where)
    parts = mapping(tree["q"], where)
    keys(parts, {"data", "scale", "fmt", "shape"}, set(), where)
    fmt, shape = _member(QFormat, parts["fmt"], where), _shape(parts["shape"], where)
    require(fmt.group > 0 and fmt is not QFormat.FP8_BLOCK32, where, f"{fmt.value} is no format of activations")
    require(len(shape) == 2, where, f"a quantised activation has shape {shape}")
    data, scale = (fetch(*reference(parts[name], where)) for name in ("data", "scale"))
    _is(data, torch.uint8, (shape[0], shape[1] * fmt.bits // 8), f"{where}.data")
    _is(scale, torch.uint8, (shape[0], shape[1] // fmt.group), f"{where}.scale")
    return QTensor(data, scale, fmt, shape)


def _weight(tree: dict[str, Any], fetch: Fetch, where: str) -> WeightInput:
    keys(tree, {"weight"}, set(), where)
    parts = mapping(tree["weight"], where)
    keys(parts, {"kind", "fmt", "shape", "data", "scale", "rows"}, set(), where)
    kind, fmt = _member(WeightKind, parts["kind"], where), _member(QFormat, parts["fmt"], where)
    shape = _shape(parts["shape"], where)
    require(2 <= len(shape) <= 3, where, f"a weight has shape {shape}")
    data = fetch(*reference(parts["data"], where))
    scale = None if parts["scale"] is None else fetch(*reference(parts["scale"], where))
    rows = None if parts["rows"] is None else fetch(*reference(parts["rows"], where))
    count = shape[0]
    if rows is not None:
        require(rows.dtype is torch.int64 and rows.dim() == 1, where, "the rows of a weight are no int64 list")
        splits = fmt is not QFormat.FP8_BLOCK32 or len(shape) == 3
        require(splits, where, "rows of a weight with blocks of rows cannot be stored alone")
        count = rows.shape[0]
    _check_weight(fmt, (count, *shape[1:]), data, scale, where)
    if rows is not None:
        fill = _FILL.get(fmt, _NAN)
        data = _spread(data, rows, shape[0], fill[0], where)
        scale = None if scale is None else _spread(scale, rows, shape[0], fill[1], where)
    return WeightInput(kind, CanonicalWeight(data, scale, fmt), shape)


def _check_weight(fmt: QFormat, shape: tuple[int, ...], data: Tensor, scale: Tensor | None, where: str) -> None:
    *leading, height, width = shape
    dtype = {QFormat.F32: torch.float32, QFormat.BF16: torch.bfloat16}.get(fmt, torch.uint8)
    _is(data, dtype, (*leading, height, -(-width * fmt.bits // 8) if fmt.group else width), f"{where}.data")
    require((scale is None) == (fmt.group == 0), where, f"a weight of format {fmt.value} has a wrong number of scales")
    if scale is not None:
        blocks = -(-height // 32) if fmt is QFormat.FP8_BLOCK32 else height
        _is(scale, torch.uint8, (*leading, blocks, -(-width // fmt.group)), f"{where}.scale")


def _spread(kept: Tensor, rows: Tensor, count: int, fill: int, where: str) -> Tensor:
    """Kept rows in a whole of ``count`` rows."""
    nbytes = count * math.prod(kept.shape[1:]) * kept.element_size()
    require(nbytes <= limits.MAX_TENSOR, where, f"the whole weight would take {nbytes} bytes")
    if kept.is_meta:
        return kept.new_empty((count, *kept.shape[1:]))
    ordered = bool((rows[1:] > rows[:-1]).all()) if rows.numel() else True
    inside = not rows.numel() or (int(rows[0]) >= 0 and int(rows[-1]) < count)
    require(ordered and inside, where, "the rows of a weight are not ascending, or outside it")
    whole = torch.full((nbytes,), fill, dtype=torch.uint8).view(kept.dtype).view(count, *kept.shape[1:])
    whole[rows] = kept
    return whole


def _cache(tree: dict[str, Any], fetch: Fetch, where: str) -> CacheInput:
    keys(tree, {"cache"}, set(), where)
    parts = mapping(tree["cache"], where)
    keys(parts, {"kind", "fmt", "dim", "block_entries", "num_blocks", "slots", "data"}, set(), where)
    kind, fmt = _member(CacheKind, parts["kind"], where), _member(QFormat, parts["fmt"], where)
    dim, entries = (integer(parts[name], where, 1, 1 << 24) for name in ("dim", "block_entries"))
    blocks = integer(parts["num_blocks"], where, 1, 1 << 31)
    try:
        layout = KVLayout(kind, fmt, dim, entries)
    except LayoutError as error:
        refuse(where, error.why)
    require(blocks * layout.block_bytes <= limits.MAX_TENSOR, where, f"a cache of {blocks} blocks is too large")
    slots, data = (fetch(*reference(parts[name], where)) for name in ("slots", "data"))
    count = slots.shape[0] if slots.dim() else 0
    _is(slots, torch.int32, (count,), f"{where}.slots")
    _is(data, torch.uint8, (count, layout.entry_bytes), f"{where}.data")
    if slots.is_meta:
        return CacheInput(layout, blocks, (), np.empty((0, layout.entry_bytes), dtype=np.uint8))
    held = tuple(slots.tolist())
    inside = not held or (min(held) >= 0 and max(held) < blocks * entries)
    require(inside and len(set(held)) == count, where, "slots of a cache repeat, or are outside it")
    return CacheInput(layout, blocks, held, data.numpy())


def _group(tree: dict[str, Any], fetch: Fetch, where: str) -> Any:
    keys(tree, {"group", "fields"}, set(), where)
    kind = GROUPS.get(text(tree["group"], where))
    if kind is None:
        refuse(where, "a group of values is of no known type")
    parts = mapping(tree["fields"], where)
    names = kind._fields if hasattr(kind, "_fields") else tuple(f.name for f in dataclasses.fields(kind))
    keys(parts, set(names), set(), where)
    values = {name: decode(parts[name], fetch, f"{where}.{name}") for name in names}
    for name, item in values.items():
        annotation = kind.__annotations__[name]
        told = str(getattr(annotation, "__forward_arg__", annotation))  # a NamedTuple wraps the text
        require(fits(item, told), f"{where}.{name}", f"it is {type(item).__name__}, not {told}")
        require(type(item) is not int or 0 <= item < limits.MAX_COUNT, f"{where}.{name}", f"it is {item}")
    return kind(**values)


def _is(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], where: str) -> None:
    found = f"{tensor.dtype} {tuple(tensor.shape)}"
    require(tensor.dtype is dtype and tuple(tensor.shape) == shape, where, f"found {found}; expected {dtype} {shape}")


def _member(kind: type[Kind], value: Any, where: str) -> Kind:
    try:
        return kind(value)
    except ValueError:
        refuse(where, f"{str(value)[:40]!r} is no {kind.__name__}")


_READERS: dict[str, Callable[[dict[str, Any], Fetch, str], Any]] = {
    "t": _tensor,
    "float": _float,
    "dtype": _dtype,
    "format": _format,
    "tuple": _tuple,
    "q": _q,
    "weight": _weight,
    "cache": _cache,
    "group": _group,
}


def units(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """What can flow from call to call, by dotted path: tensors and quantised tensors, each as a whole."""
    if isinstance(value, Tensor | QTensor):
        yield prefix, value
    elif isinstance(value, Rows | MoEBatch | HcWeights | HcMix | MoEWeights):
        for name, item in fields_of(value):
            yield from units(item, f"{prefix}.{name}")
    elif type(value) is tuple:
        for i, item in enumerate(value):
            yield from units(item, f"{prefix}.{i}")


def leaves(outputs: dict[str, Any]) -> dict[str, Tensor]:
    """All tensors of outputs by dotted path; a quantised tensor gives ``.data`` and ``.scale``, a cache its entries."""
    found: dict[str, Tensor] = {}
    for name, value in outputs.items():
        if isinstance(value, CacheInput):
            found[name] = torch.from_numpy(value.data)
        for path, unit in units(value, name):
            if isinstance(unit, QTensor):
                found |= {f"{path}.data": unit.data, f"{path}.scale": unit.scale}
            else:
                found[path] = unit
    return found
