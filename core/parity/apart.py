"""Recorded arguments and outputs as plain numbers, by dotted name."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.conformance.calls import children
from tandem.conformance.compare import host
from tandem.conformance.formats import decode
from tandem.contract.cases import CacheInput, PartlyUsed, WeightInput
from tandem.contract.types import QTensor
from tandem.parity.measure import relative

Array = npt.NDArray[Any]


def numbers(value: Any, prefix: str = "") -> dict[str, Array]:
    """Arrays of (nested) arguments or outputs: quantised tensors and caches by their values, weights left out."""
    if isinstance(value, torch.Tensor):
        return {prefix: host(value)}
    if isinstance(value, np.ndarray):
        return {prefix: value}
    if isinstance(value, PartlyUsed):
        return {prefix: np.where(host(value.used), host(value.value), 0.0)}
    if isinstance(value, QTensor):
        return {prefix: decode(value.data.numpy(), value.scale.numpy(), value.fmt.value)}
    if isinstance(value, CacheInput):
        split, fmt = value.layout.data_bytes, value.layout.fmt.value
        return {prefix: decode(value.data[:, :split], value.data[:, split:], fmt)}
    if isinstance(value, WeightInput):
        return {}
    return {name: array for path, item in children(value, prefix) for name, array in numbers(item, path).items()}


@dataclasses.dataclass(frozen=True)
class Apart:
    """How far two sets of numbers are from each other.

    Args:
        greatest: greatest relative difference of a row, over all floating-point arrays.
        integers: names of integer arrays that differ.
        shapes: names that only one side has, or in another shape.
    """

    greatest: float
    integers: tuple[str, ...]
    shapes: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.greatest == 0.0 and not self.integers and not self.shapes


def apart(one: Any, two: Any) -> Apart:
    """Compare arguments with arguments, or outputs with outputs; `one` gives the scale."""
    left, right = numbers(one), numbers(two)
    greatest, integers, shapes = 0.0, [], sorted(left.keys() ^ right.keys())
    for name in sorted(left.keys() & right.keys()):
        a, b = left[name], right[name]
        if a.shape != b.shape:
            shapes.append(name)
        elif a.dtype.kind == "f":
            greatest = max(greatest, relative(b, a))
        elif not np.array_equal(a, b):
            integers.append(name)
    return Apart(greatest, tuple(integers), tuple(shapes))
