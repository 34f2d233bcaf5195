"""What a golden case says of each output: class, value and tolerance, as tensors and JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tandem.conformance.calls import leaves
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
)
from tandem.conformance.derive.base import Check, Derivation, View
from tandem.conformance.formats import round_bf16

Tensor = torch.Tensor

# (op, output): the output it is made from, whose legal roundings differ from device to device.
AFTER = {
    ("rms_norm", "yq"): "y",
    ("hc_enter", "xq"): "x",
    ("hc_step", "x"): "trunk",
    ("hc_step", "xq"): "x",
    ("hc_step", "mix.pre"): "trunk",
    ("hc_step", "mix.post"): "trunk",
    ("hc_step", "mix.comb"): "trunk",
    ("kv_write", "cache"): "normed",
    ("moe_route", "weights"): "experts",
}
DTYPES = {torch.bfloat16: "bf16", torch.float32: "f32", torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8"}


def describe(
    op: str, data: View, got: dict[str, Any], derivation: Derivation
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(JSON by output, tensors) of what a call must give.

    Args:
        got: outputs of the reference, as `run_call` gives them; what is made from a rounded one starts from its bits.
    """
    tensors: dict[str, Tensor] = {}
    described: dict[str, Any] = {}
    checks, found = derivation(data, got), leaves(got)
    for name, check in checks.items():
        about, parts = _output(check, got.get(name), found, name)
        after = AFTER.get((op, name))
        if after is not None:
            about["after"] = after
            tensors[f"want/{after}/bits"] = found[after]
            if isinstance(check, Entries):
                parts["source"] = torch.from_numpy(np.flatnonzero(data["slots"] >= 0).astype(np.int32))
            elif not isinstance(check, Quantised):
                parts["slack"] = torch.from_numpy(_slack(op, name, after, data, got, derivation))
        about["tensors"] = sorted(parts)
        described[name] = about
        tensors |= {f"want/{name}/{part}": tensor for part, tensor in parts.items()}
    return described, tensors


def _output(check: Check, whole: Any, found: dict[str, Tensor], name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if isinstance(check, Quantised):
        data = found[f"{name}.data"]
        about = {"class": "Q", "fmt": check.fmt, "data": f"{name}.data", "scale": f"{name}.scale"}
        parts = {"codes": torch.from_numpy(check.codes), "scales": torch.from_numpy(check.scales)}
        return about | _form(data), parts
    if isinstance(check, AccumulatedCodes):
        data, (low, high) = found[f"{name}.data"], check.scales()
        about = {"class": "A", "data": f"{name}.data", "scale": f"{name}.scale"}
        parts = {"low": torch.from_numpy(low), "high": torch.from_numpy(high)}
        return about | _form(data), parts | {"value": _f64(check.wanted()), "limit": _f32(check.n * check.unit)}
    tensor = found[name]
    return {**_class(check), **_form(tensor)}, _parts(check, tensor)


def _form(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": DTYPES[tensor.dtype], "itemsize": tensor.element_size(), "shape": list(tensor.shape)}


def _class(check: Check) -> dict[str, Any]:
    if isinstance(check, Ulps):
        return {"class": "U", "ulps": check.n}
    if isinstance(check, Accumulated):
        return {"class": "A", "ulps": check.n}
    if isinstance(check, Entries):
        return {"class": "Q", "fmt": check.fmt, "split": check.split}
    return {"class": "S" if isinstance(check, Selected) else "X"}


def _parts(check: Check, tensor: Tensor) -> dict[str, Tensor]:
    if isinstance(check, Drawn) and any(len(legal) > 1 for legal in check.legal):
        raise ValueError("a golden case draws next to an edge of the distribution, where two tokens are right")
    if isinstance(check, (Exact, Drawn)):
        return {"bits": _exact(check.value, tensor)}
    if isinstance(check, Ulps):
        rows = {} if check.rows is None else {"rows": torch.from_numpy(np.flatnonzero(check.rows).astype(np.int32))}
        return {"value": _f64(check.value), "limit": _f32(_ulps(check, DTYPES[tensor.dtype])), **rows}
    if isinstance(check, Accumulated):
        return {"value": _f64(check.value), "limit": _f32(4 * check.unit(DTYPES[tensor.dtype]))}
    if isinstance(check, Selected):
        return {"bits": _exact(check.ids, tensor), "scores": _f64(check.scores), "slack": _f64(check.slack)}
    if isinstance(check, Entries):
        codes, scales = np.split(check.image[check.written], [check.split], axis=1)
        arrays = {"bits": check.image, "codes": codes, "scales": scales, "rows": check.written.astype(np.int32)}
        return {part: torch.from_numpy(array) for part, array in arrays.items()}
    raise TypeError(type(check))


def _ulps(check: Ulps, dtype: str) -> Array:
    """What the class allows each element around the value rounded once."""
    rounded = round_bf16(check.value) if dtype == "bf16" else check.value.astype(np.float32).astype(np.float64)
    return check.n * check.unit(rounded, "bf16" if dtype == "bf16" else "f32")  # integers as the f32 they were


def _f64(value: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(value, dtype=np.float64))


def _f32(value: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(value, dtype=np.float32))


def _exact(value: Array, like: Tensor) -> Tensor:
    """The value in the output's dtype, which holds it exactly."""
    bits = torch.from_numpy(np.ascontiguousarray(value)).to(like.dtype).view(like.shape)
    back = bits.to(torch.float64).numpy()
    if not np.array_equal(back, np.asarray(value, dtype=np.float64).reshape(back.shape), equal_nan=True):
        raise ValueError("an exact value does not fit the dtype of its output")
    return bits


def _slack(op: str, name: str, after: str, data: View, got: dict[str, Any], derivation: Derivation) -> Array:
    """How far each row moves if every element of the output it is made from moves by a last place.

    A row made from other ids than the reference's cannot be judged.
    """
    base, rows = _value(derivation(data, got)[name]), len(leaves(got)[after])
    if not got[after].dtype.is_floating_point:
        return np.full(rows, np.inf)
    moved = np.zeros(rows)
    for seed in range(4):
        other = derivation(data, got | {after: _shaken(got[after], seed)})[name]
        moved = np.maximum(moved, np.abs(_value(other) - base).reshape(rows, -1).max(axis=1, initial=0.0))
    return 4 * moved


def _value(check: Check) -> Array:
    if isinstance(check, (Ulps, Accumulated)):
        return check.value
    raise TypeError(type(check))


def _shaken(tensor: Tensor, seed: int) -> Tensor:
    """A bf16 tensor with every element a place up or down."""
    way = torch.from_numpy(np.random.default_rng(seed).integers(0, 2, tensor.shape).astype(np.int16)) * 2 - 1
    return torch.where(tensor == 0, tensor, (tensor.view(torch.int16) + way).view(torch.bfloat16))
