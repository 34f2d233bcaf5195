"""Reductions and scans of Triton's interpreter over whole arrays at once.

The stock interpreter takes unknown combine functions element by element, and sums floats as numpy finds best for the
memory layout at hand.  Here a reduction is a balanced tree over the axis, in one of the orders that a device may take
and the same for every row; a maximum and a minimum pass over NaN where a number is there, as the device's do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl

Array = npt.NDArray[Any]
Pair = tuple[Array, ...]
_standard = tl.standard


def _best(wins: Callable[[Array, Array], Array], left_of_ties: bool) -> Callable[[Pair, Pair], Pair]:
    """Combine (value, index) pairs as Triton's argmax and argmin do."""

    def combine(first: Pair, second: Pair) -> Pair:
        (v1, i1), (v2, i2) = first, second
        take = wins(v1, v2)
        if left_of_ties:
            take = take | ((v1 == v2) & (i1 < i2))
        return np.where(take, v1, v2), np.where(take, i1, i2)

    return combine


_INDEXED = {
    _standard._argmax_combine_tie_break_left: _best(np.greater, True),
    _standard._argmax_combine_tie_break_fast: _best(np.greater, False),
    _standard._argmin_combine_tie_break_left: _best(np.less, True),
    _standard._argmin_combine_tie_break_fast: _best(np.less, False),
}
_EXTREMES = {_standard._elementwise_max: (np.fmax, np.maximum), _standard._elementwise_min: (np.fmin, np.minimum)}


def _native(dtype: Any) -> bool:
    """Whether numpy computes with the data as they are held."""
    return bool(dtype.is_int() or dtype in (tl.float16, tl.float32, tl.float64))


def _combiner(operation: Any, dtypes: list[Any]) -> Callable[[Pair, Pair], Pair]:
    """The kernel's own combine function on arrays."""

    def combine(first: Pair, second: Pair) -> Pair:
        arguments = [operation.to_tensor(x, dtype) for x, dtype in zip(first + second, dtypes * 2, strict=True)]
        found = operation.combine_fn.fn(*arguments)
        return tuple(t.handle.data for t in (found if isinstance(found, (tuple, tl.core.tuple)) else (found,)))

    return combine


def _sum(x: Array) -> Array:
    """Over the last axis: integers wrap, floats as a tree of halves."""
    if x.dtype.kind != "f":
        whole: Array = np.add.reduce(x, axis=-1, dtype=x.dtype)
        return whole
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def _reduced(operation: Any, data: Pair, dtypes: list[Any]) -> Pair:
    """Over the last axis of each array."""
    function = operation.combine_fn
    if function is _standard._sum_combine and _native(dtypes[0]) and data[0].dtype != np.bool_:
        return (_sum(data[0]),)
    if function in _EXTREMES and _native(dtypes[0]):
        floating, whole = _EXTREMES[function]
        return ((floating if data[0].dtype.kind == "f" else whole).reduce(data[0], axis=-1),)
    combine = _INDEXED.get(function) or _combiner(operation, dtypes)
    while data[0].shape[-1] > 1:
        data = combine(tuple(x[..., 0::2] for x in data), tuple(x[..., 1::2] for x in data))
    return tuple(x[..., 0] for x in data)


def reduce(self: Any, inputs: Any) -> list[Any]:
    """`ReduceOps.apply_impl`: tensors reduced along ``self.axis``, or over all elements."""
    dtypes = [t.dtype for t in inputs]
    arrays = [t.handle.data for t in inputs]
    rank = arrays[0].ndim
    if self.axis is None:
        data = tuple(x.reshape(-1) for x in arrays)
    else:
        data = tuple(np.moveaxis(x, self.axis, -1) for x in arrays)
    found = _reduced(self, data, dtypes)
    if self.keep_dims:
        found = tuple(x.reshape((1,) * rank) if self.axis is None else np.expand_dims(x, self.axis) for x in found)
    return [self.to_tensor(x if x.ndim else x[()], dtype) for x, dtype in zip(found, dtypes, strict=True)]


def scan(self: Any, inputs: Any) -> list[Any]:
    """`ScanOps.apply_impl`: inclusive scans along ``self.axis``."""
    dtypes = [t.dtype for t in inputs]
    data = tuple(np.moveaxis(t.handle.data, self.axis, -1) for t in inputs)
    if self.reverse:
        data = tuple(x[..., ::-1] for x in data)
    if self.combine_fn is _standard._sum_combine and _native(dtypes[0]) and data[0].dtype != np.bool_:
        data = (np.cumsum(data[0], axis=-1, dtype=data[0].dtype),)
    else:
        data = _scanned(_combiner(self, dtypes), data)
    if self.reverse:
        data = tuple(x[..., ::-1] for x in data)
    ordered = (np.ascontiguousarray(np.moveaxis(x, -1, self.axis)) for x in data)
    return [self.to_tensor(x, dtype) for x, dtype in zip(ordered, dtypes, strict=True)]


def _scanned(combine: Callable[[Pair, Pair], Pair], data: Pair) -> Pair:
    """Each step doubles how many elements up to its own an element stands for."""
    place = np.arange(data[0].shape[-1])
    step = 1
    while step < place.size:
        earlier = tuple(np.roll(x, step, axis=-1) for x in data)
        joined = combine(earlier, data)
        data = tuple(np.where(place >= step, new, old) for new, old in zip(joined, data, strict=True))
        step *= 2
    return data
