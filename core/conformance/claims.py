"""What a backend claims for each op, and whether there is a case for all of it."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from tandem.contract.backend import Backend
from tandem.contract.cases import CacheInput, PartlyUsed, WeightInput
from tandem.contract.opspec import OP_TABLE
from tandem.contract.types import MoEBatch, QFormat, QTensor

# Formats that the contract allows, by op and attribute.  What a backend claims is this, its own `formats`, and what
# its record of the op leaves of it.
_MATRIX = ("bf16", "f32", "fp8_block32", "mxfp4")
_QUANTISED = ("mxfp8", "mxfp4", "nvfp4")
_EXPERTS = ("mxfp4", "fp8_block32")
FORMATS: dict[str, dict[str, tuple[str, ...]]] = {
    "attn_block": {"main": ("nvfp4",), "window": ("mxfp8",)},
    "dequantize": {"fmt": _QUANTISED},
    "embed": {"w": ("bf16",)},
    "group_linear": {"x": ("mxfp8",), "w": ("fp8_block32",)},
    "grouped_linear": {"x": ("mxfp8",), "w": _EXPERTS},
    "head_sample": {"x": ("bf16",), "w": ("bf16", "fp8_block32")},
    "index_scores": {"fmt": ("mxfp4",)},
    "index_scores_at": {"fmt": ("mxfp4",)},
    "kv_load": {"fmt": _QUANTISED},
    "kv_store": {"fmt": _QUANTISED},
    "kv_write": {"fmt": _QUANTISED},
    "linear": {"x": ("bf16", "mxfp8"), "w": _MATRIX, "out": ("bf16", "f32")},
    "moe_block": {"x": ("mxfp8",), "w": _EXPERTS, "shared_w": ("fp8_block32",)},
    "moe_experts": {"x": ("mxfp8",), "w": _EXPERTS},
    "quantize": {"fmt": _QUANTISED},
    "sparse_attn": {"main": ("nvfp4",), "window": ("mxfp8",)},
}
# Arguments that come and go together; flags that are host hints are checked by `rows`.
_TOGETHER = {"override_index": "override", "main_slots": "main"}

Combination = tuple[tuple[str, str], ...]


def attributes(op: str, data: dict[str, Any]) -> dict[str, str]:
    """Formats of a case, by the names that call sites state."""
    found: dict[str, str] = {}
    for name in FORMATS.get(op, {}):
        value = _source(op, name, data)
        if value is not None:
            found[name] = _format(value)
    return found


def _source(op: str, attribute: str, data: dict[str, Any]) -> Any:
    """The argument that an attribute tells of."""
    weights: Any = data.get("weights")
    if attribute == "x":
        batch: MoEBatch | None = data.get("batch")
        return batch.x if batch is not None else data.get("xq", data.get("x"))
    if attribute == "w":
        named = (data.get(name) for name in ("weight", "table", "w1", "head"))
        return weights.w1 if op == "moe_block" else next(value for value in named if value is not None)
    if attribute == "shared_w":
        return weights.shared_w1
    if attribute == "out":
        return data["out_dtype"]
    if attribute == "fmt":
        return data.get("fmt", data["cache"] if "cache" in data else data.get("q"))
    return data[attribute]


def _format(value: Any) -> str:
    if isinstance(value, QFormat):
        return value.value
    if isinstance(value, CacheInput):
        return value.layout.fmt.value
    if isinstance(value, WeightInput):
        return value.weight.fmt.value
    if isinstance(value, QTensor):
        return value.fmt.value
    if isinstance(value, PartlyUsed):
        value = value.value
    dtype = value if isinstance(value, torch.dtype) else value.dtype
    return {torch.bfloat16: "bf16", torch.float32: "f32"}[dtype]


def optional(op: str) -> list[str]:
    """Arguments that may be None, and flags."""
    names = []
    for parameter in inspect.signature(OP_TABLE[op].reference).parameters.values():
        kind = str(parameter.annotation)
        if parameter.name not in _TOGETHER and ("None" in kind or kind == "bool"):
            names.append(parameter.name)
    return names


def options(op: str, data: dict[str, Any]) -> dict[str, str]:
    """How a case sets the optional arguments: ``given`` or ``none``, or a flag's value."""
    found = {}
    for name in optional(op):
        value = data.get(name)
        found[name] = str(value).lower() if isinstance(value, bool) else "none" if value is None else "given"
    for name, parameter in inspect.signature(OP_TABLE[op].reference).parameters.items():
        if name in found and found[name] == "none" and parameter.annotation == "bool":
            found[name] = str(parameter.default).lower()
    return found


def claimed(backend: Backend, op: str) -> list[Combination]:
    """Every combination of formats and optional arguments that the backend claims for an op."""
    cap = backend.caps.ops.get(op)
    if cap is not None and cap.impl == "absent":
        return []
    allows = {} if cap is None else cap.allows
    axes: dict[str, list[str]] = {}
    for name, formats in FORMATS.get(op, {}).items():
        usable = [f for f in formats if f in backend.caps.formats or name == "out"]
        axes[name] = [f for f in usable if name not in allows or f in allows[name]]
    parameters = inspect.signature(OP_TABLE[op].reference).parameters
    for name in optional(op):
        axes[f"{name}?"] = ["false", "true"] if parameters[name].annotation == "bool" else ["none", "given"]
    every = (tuple(zip(axes, chosen, strict=True)) for chosen in itertools.product(*axes.values()))
    return list(dict.fromkeys(_without_absent(combination) for combination in every))


def _without_absent(combination: Combination) -> Combination:
    """Without the format of an argument that is not there."""
    return tuple(pair for pair in combination if (f"{pair[0]}?", "none") not in combination)


def held(op: str, data: dict[str, Any]) -> Combination:
    """The combination that a case tests."""
    chosen = options(op, data)
    named = {name: f for name, f in attributes(op, data).items() if chosen.get(name) != "none"}
    return tuple((named | {f"{name}?": value for name, value in chosen.items()}).items())


def missing(backend: Backend, op: str) -> Iterator[str]:
    """Combinations that the backend claims for an op and no case tests: an error of the kit."""
    tested = {frozenset(held(op, case.build(0))) for case in OP_TABLE[op].cases}
    for combination in claimed(backend, op):
        if frozenset(combination) not in tested:
            yield ", ".join(f"{name}={value}" for name, value in combination) or "the plain call"
