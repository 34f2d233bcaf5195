"""`linear`: x [T, K] times a packed weight [N, K], transposed.

Args: x[T,N] bf16 or mxfp8, weight[N',N], out_dtype -> [T,N'] bf16 or f32

Reads x bf16 or mxfp8 [T, K] with a bf16, f32, fp8_block32 or mxfp4 weight; out_dtype bf16 or f32.  A backend that
takes fewer says so in its record.
Returns [T, N], f32 accumulation, rounded once.  Class A.  Row bits do not depend on T.
A NaN in a row of x makes that row NaN only.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import PackedWeight, QFormat, QTensor, WeightKind
from tandem.ops.numerics import decode_rows, decode_weight, fixed_matmul

Tensor = torch.Tensor


@op("linear", classes={"y": "A"}, parts=("unpack_weight", "to_canonical"), attrs=("x", "w", "out", "shape", "layout"))
def linear(parts: Any, x: Tensor | QTensor, weight: PackedWeight, out_dtype: torch.dtype) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    values = activation_values(parts, x)
    return fixed_matmul(values, decode_weight(parts.unpack_weight(weight))).to(out_dtype)


def activation_values(parts: Any, x: Tensor | QTensor) -> Tensor:
    """bf16 or quantised rows -> f32 values."""
    if isinstance(x, QTensor):
        plain = parts.to_canonical(x)
        return decode_rows(plain.data, plain.scale, plain.fmt)
    return x.to(torch.float32)


@case("linear", "fp8", ROWS)
def _fp8(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    weight = draw.weight(WeightKind.LINEAR, QFormat.FP8_BLOCK32, 72, 96)
    return {"x": draw.quantised(QFormat.MXFP8, rows, 96), "weight": weight, "out_dtype": torch.bfloat16}


@case("linear", "bf16-to-f32", ROWS)
def _wide(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    weight = draw.weight(WeightKind.LINEAR, QFormat.BF16, 37, 100)
    return {"x": draw.bf16(rows, 100), "weight": weight, "out_dtype": torch.float32}


@case("linear", "bf16", FEW_ROWS)
def _bf16(seed: int, rows: int) -> dict[str, Any]:
    return _wide(seed, rows) | {"out_dtype": torch.bfloat16}


@case("linear", "one-output")
def _narrow(seed: int) -> dict[str, Any]:
    draw = Draw(seed)
    weight = draw.weight(WeightKind.LINEAR, QFormat.BF16, 1, 64)
    return {"x": draw.bf16(5, 64), "weight": weight, "out_dtype": torch.float32}


@case("linear", "zero-row-and-nan-row")
def _special(seed: int) -> dict[str, Any]:
    arguments = _wide(seed, 19)
    arguments["x"][1] = 0.0
    arguments["x"][3, 40] = float("nan")
    return arguments


def _formats(seed: int, x: str, w: str, out: torch.dtype) -> dict[str, Any]:
    draw = Draw(seed)
    values = draw.bf16(5, 64) if x == "bf16" else draw.quantised(QFormat.MXFP8, 5, 64)
    return {"x": values, "weight": draw.weight(WeightKind.LINEAR, QFormat(w), 40, 64), "out_dtype": out}


for _x, _w, _out in itertools.product(
    ("bf16", "mxfp8"), ("bf16", "f32", "fp8_block32", "mxfp4"), (torch.bfloat16, torch.float32)
):
    case("linear", f"{_x}-times-{_w}-to-{'bf16' if _out is torch.bfloat16 else 'f32'}")(
        functools.partial(_formats, x=_x, w=_w, out=_out)
    )


@case("linear", "many-terms")
def _deep(seed: int) -> dict[str, Any]:
    """More terms than one tile of a sum holds, and outputs of several tiles."""
    draw = Draw(seed)
    weight = draw.weight(WeightKind.LINEAR, QFormat.FP8_BLOCK32, 160, 1056)
    return {"x": draw.quantised(QFormat.MXFP8, 3, 1056), "weight": weight, "out_dtype": torch.float32}
