"""The types of values that a trace holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from tandem.contract.cases import CacheInput, WeightInput
from tandem.contract.types import HcMix, HcWeights, MoEBatch, MoEWeights, QFormat, QTensor, Rows

Tensor = torch.Tensor

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "bool": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Types whose fields are values themselves.
GROUPS: dict[str, type] = {t.__name__: t for t in (Rows, MoEBatch, HcWeights, HcMix, MoEWeights)}
_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor,),
    "QTensor": (QTensor,),
    "PackedWeight": (WeightInput,),
    "KVCache": (CacheInput,),
    "QFormat": (QFormat,),
    "torch.dtype": (torch.dtype,),
    "float": (float, int),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
} | {name: (kind,) for name, kind in GROUPS.items()}


def fits(value: Any, annotation: str) -> bool:
    """Whether a host value is of the annotated type of an op's argument, or of a field of a group."""
    for name in annotation.split(" | "):
        if name == "bool" and isinstance(value, bool):
            return True
        if name == "tuple[int, int]":
            if isinstance(value, tuple) and len(value) == 2 and all(type(n) is int for n in value):
                return True
        elif isinstance(value, _TYPES.get(name, ())) and not isinstance(value, bool):
            return True
    return False


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of the fields of a group."""
    if hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    else:
        yield from ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
