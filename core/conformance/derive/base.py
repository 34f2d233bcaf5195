"""Registry of independent derivations, and what they share.

A derivation maps the data a call was made from to what its outputs must be, in numpy float64 or plain Python loops.
No backend takes part.  It also sees the outputs, as `calls.run_call` gives them, for the steps that start from a
rounded intermediate result.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from tandem.conformance.compare import (
    Accumulated,
    AccumulatedCodes,
    Array,
    Drawn,
    Entries,
    Exact,
    Quantised,
    Selected,
    Ulps,
    host,
)
from tandem.conformance.formats import decode, decode_blocks
from tandem.contract.cases import CacheInput, PartlyUsed, WeightInput
from tandem.contract.types import QFormat, QTensor

Check = Exact | Ulps | Accumulated | AccumulatedCodes | Quantised | Selected | Entries | Drawn
Derivation = Callable[["View", dict[str, Any]], dict[str, Check]]
Dot = Callable[[Array, Array], Array]

DERIVATIONS: dict[str, Derivation] = {}
FAMILIES = (
    *("plain", "hyper", "attention", "moe", "engram"),
    *("bookkeeping", "sampling", "verify", "segments", "drafting"),
)


def derives(op: str) -> Callable[[Derivation], Derivation]:
    """Register the derivation of an op."""

    def register(function: Derivation) -> Derivation:
        DERIVATIONS[op] = function
        return function

    return register


def load_all() -> dict[str, Derivation]:
    """All derivations by op."""
    for name in FAMILIES:
        importlib.import_module(f"tandem.conformance.derive.{name}")
    return DERIVATIONS


class View:
    """Data of a case, as numpy arrays of values.

    Args:
        data: arguments by name, as data of `tandem.contract.cases`.
        poison: the byte that stands where the case leaves memory open.
    """

    def __init__(self, data: dict[str, Any], poison: int = 0xFF) -> None:
        self.raw, self.poison = data, poison

    def __getitem__(self, name: str) -> Array:
        return self.of(self.raw[name])

    def of(self, value: Any) -> Array:
        """Values of a tensor, quantised tensor, weight or cache (its entries [slots, dim])."""
        if isinstance(value, torch.Tensor):
            return host(value)
        if isinstance(value, PartlyUsed):
            return host(value.filled(self.poison))
        if isinstance(value, QTensor):
            return decode(value.data.numpy(), value.scale.numpy(), value.fmt.value)
        if isinstance(value, WeightInput):
            return _weight_values(value)
        if isinstance(value, CacheInput):
            entries, split = value.image(self.poison), value.layout.data_bytes
            return decode(entries[:, :split], entries[:, split:], value.layout.fmt.value)
        raise TypeError(type(value))


def _weight_values(given: WeightInput) -> Array:
    weight = given.weight
    if weight.scale is None:
        return host(weight.data)
    codes, scales = (t.view(torch.uint8).numpy() for t in (weight.data, weight.scale))
    blocks = weight.fmt is QFormat.FP8_BLOCK32
    return decode_blocks(codes, scales) if blocks else decode(codes, scales, weight.fmt.value)


def exact_dot(x: Array, w: Array) -> Array:
    """x [T, K] times w [N, K] transposed, in float64."""
    product: Array = x @ w.T
    return product


def forward_dot(x: Array, w: Array) -> Array:
    """The same with products and sums in f32, first term first."""
    products = x.astype(np.float32)[:, None, :] * w.astype(np.float32)[None]
    last: Array = np.cumsum(products, axis=-1, dtype=np.float32)[..., -1].astype(np.float64)
    return last


def backward_dot(x: Array, w: Array) -> Array:
    """The same, last term first."""
    return forward_dot(x[:, ::-1], w[:, ::-1])


def pairwise_dot(x: Array, w: Array) -> Array:
    """The same, halves added to halves; terms are padded with zeros to a power of two."""
    products = x.astype(np.float32)[:, None, :] * w.astype(np.float32)[None]
    depth = products.shape[-1]
    products = np.pad(products, ((0, 0), (0, 0), (0, (1 << max(depth - 1, 0).bit_length()) - depth)))
    while products.shape[-1] > 1:
        half = products.shape[-1] // 2
        products = products[..., :half] + products[..., half:]
    total: Array = products[..., 0].astype(np.float64)
    return total


def wide_dot(x: Array, w: Array) -> Array:
    """Products in f32, summed in float64 and rounded once to f32."""
    products = x.astype(np.float32)[:, None, :] * w.astype(np.float32)[None]
    total: Array = products.sum(axis=-1, dtype=np.float64).astype(np.float32).astype(np.float64)
    return total


_ORDERS: ContextVar[tuple[Dot, ...]] = ContextVar("orders", default=(forward_dot, backward_dot))


@contextmanager
def legal_orders(*dots: Dot) -> Iterator[None]:
    """While active, noise floors are what these ways to sum differ by; default: f32, forward and backward."""
    token = _ORDERS.set(dots)
    try:
        yield
    finally:
        _ORDERS.reset(token)


def accumulated(compute: Callable[[Dot], Array], n: int = 1, others: Sequence[Array] = ()) -> Accumulated:
    """Class A for a computation that takes its dot product as an argument; the floor is what f32 orders differ by.

    Args:
        n: last places of the row maximum that the class allows too.
        others: results of other legal ways, which count for the floor like another order.
    """
    value = compute(exact_dot)
    error = [np.abs(other - value) for other in (*(compute(dot) for dot in _ORDERS.get()), *others)]
    floor = np.max(np.nan_to_num(np.maximum.reduce(error)), axis=-1, keepdims=True, initial=0.0)
    return Accumulated(value, floor, n)


def mean_square(x: Array) -> Array:
    """Mean of the squares of each row, [..., 1]."""
    mean: Array = np.mean(x * x, axis=-1, keepdims=True)
    return mean


def short_sum(terms: Array, axis: int) -> tuple[Array, Array]:
    """A sum in float64, and what f32 may lose in it: half an ulp of the terms' magnitudes for each of its roundings.

    One rounding for each product, one for each addition: no order of m terms loses more than m * 2^-24 * sum |term|.
    """
    value: Array = terms.sum(axis=axis)
    lost: Array = terms.shape[axis] * 2.0**-24 * np.abs(terms).sum(axis=axis)
    return value, lost


def rotation_loss(x: Array, cos_sin: Array) -> Array:
    """What f32 may lose in `rotate`, whose pairs are sums of two products, of its shape."""
    turn = np.abs(cos_sin)
    half, lost = turn.shape[-1] // 2, np.zeros(x.shape)
    cos, sin = turn[:, None, :half], turn[:, None, half:]
    keep = x.shape[-1] - 2 * half
    one, two = np.abs(x[..., keep::2]), np.abs(x[..., keep + 1 :: 2])
    lost[..., keep::2], lost[..., keep + 1 :: 2] = one * cos + two * sin, one * sin + two * cos
    return 2 * 2.0**-24 * lost


def rotate(x: Array, cos_sin: Array, inverse: bool = False) -> Array:
    """Rotate pairs of the last dims of x [T, h, d] as complex numbers, not rounded."""
    half = cos_sin.shape[-1] // 2
    turn = cos_sin[:, None, :half] + 1j * cos_sin[:, None, half:]
    keep = x.shape[-1] - 2 * half
    pairs = x[..., keep::2] + 1j * x[..., keep + 1 :: 2]
    pairs = pairs * (np.conj(turn) if inverse else turn)
    result = x.copy()
    result[..., keep::2], result[..., keep + 1 :: 2] = pairs.real, pairs.imag
    return result


def normalise(x: Array, weight: Array | None, eps: float) -> Array:
    """Root-mean-square normalisation, not rounded."""
    scaled: Array = x / np.sqrt(mean_square(x) + eps)
    return scaled if weight is None else scaled * weight


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):
        result: Array = 1.0 / (1.0 + np.exp(-x))
    return result
