"""Judging one recorded call: the truth in float64, the noise floor of the data, the distance of the outputs."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.conformance.calls import leaves
from tandem.conformance.compare import Accumulated, Mismatch
from tandem.conformance.derive.base import (
    Check,
    View,
    backward_dot,
    exact_dot,
    forward_dot,
    legal_orders,
    load_all,
    pairwise_dot,
    wide_dot,
)
from tandem.conformance.derive.moe import affinity, choose
from tandem.conformance.dtypes import wrong_dtype
from tandem.conformance.formats import ulp
from tandem.contract.cases import CacheInput
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend
from tandem.contract.types import QTensor
from tandem.parity.measure import LeafError, broken, measure
from tandem.parity.records import Call

Array = npt.NDArray[Any]

POISON = 0xFF  # where nothing was recorded nothing may be read: there it is NaN
ORDERS = (forward_dot, backward_dot, pairwise_dot, wide_dot)


@functools.cache
def host_plan() -> Plan:
    """Ops on the processor of this machine, to run calls again in other legal ways."""
    return Plan(open_backend("cpu"))


def judge(op: str, call: Call) -> list[LeafError]:
    """Errors of the recorded outputs, one for each output.

    The truth comes from `tandem.conformance.derive`, which knows nothing of the references; the floor of class A is
    what summing forward, backward, in halves, and in a wider type differ by on this very data.
    """
    outputs = whole_outputs(call)
    for name, value in leaves(outputs).items():
        wrong = wrong_dtype(op, name, value, call.inputs)
        if wrong is not None:
            return [broken(name, wrong)]
    try:
        with np.errstate(all="ignore"), legal_orders(*ORDERS):
            errors = _measured(load_all()[op](View(call.inputs), outputs), outputs)
            if op == "moe_block" and errors[0].outside:
                errors = [_other_experts(call, errors[0])]
    except (Mismatch, ValueError, IndexError, KeyError) as refusal:  # a derivation says in words what is wrong
        return [broken("", str(refusal))]
    return errors


def whole_outputs(call: Call) -> dict[str, Any]:
    """Outputs as derivations want them: a cache with its whole image, of which the call wrote a part."""
    outputs = dict(call.outputs)
    for name, value in outputs.items():
        if isinstance(value, CacheInput):
            image = call.inputs[name].image(POISON)
            image[list(value.held)] = value.data
            outputs[name] = torch.from_numpy(image)
    return outputs


def _measured(checks: dict[str, Check], outputs: dict[str, Any]) -> list[LeafError]:
    tensors = leaves(outputs)
    whole = {name: value for name, value in outputs.items() if isinstance(value, QTensor)}
    missing = [name for name in checks if name not in whole and name not in tensors]
    found = [measure(check, whole.get(name, tensors.get(name)), name) for name, check in checks.items()
             if name not in missing]  # fmt: skip
    return found + [broken(name, "the output is missing") for name in missing]


def _other_experts(call: Call, error: LeafError) -> LeafError:
    """Judge rows of `moe_block` with the other choice of experts too, where that choice is a tie.

    A row whose k-th and next expert are nearer than 2 floors may be served by either.  The truth for the other one is
    the same derivation with the selection bias moved, which changes the choice and no weight.
    """
    weights, arguments = call.inputs["weights"], View(call.inputs)
    routing = route(arguments)
    rows = error.rows.copy()
    for t in np.flatnonzero(rows > error.threshold):
        name = "bias_vl" if arguments["roles"][t] else "bias"
        order = choose(routing.scores[t], np.zeros(routing.scores.shape[1]), weights.k + 1)
        gap = routing.scores[t, order[-2]] - routing.scores[t, order[-1]]
        if len(order) <= weights.k or gap > 2 * routing.floor[t]:
            continue
        bias = getattr(weights, name).clone()
        bias[order[-1]] += float(gap) + 1e-3
        moved = call.inputs | {"weights": dataclasses.replace(weights, **{name: bias})}
        checks = load_all()["moe_block"](View(moved), call.outputs)
        rows[t] = min(rows[t], _measured(checks, call.outputs)[0].rows[t])
    if (rows > error.threshold).any():
        return error
    return dataclasses.replace(error, rows=rows, outside=False, note="a tie of experts was settled the other way")


@dataclass(frozen=True)
class Routing:
    """Selection scores of experts f64 [T, E], bias included, and the noise floor of each row f64 [T]."""

    scores: Array
    floor: Array


def route(arguments: View) -> Routing:
    """Scores that `moe_route` or `moe_block` chooses by, from their arguments."""
    held = arguments.raw.get("weights")
    gate, bias, bias_vl = (
        arguments.of(arguments.raw[name] if held is None else getattr(held, name))
        for name in ("gate", "bias", "bias_vl")
    )
    x = arguments["x"]
    exact = affinity(exact_dot(x, gate))
    floor = np.max([np.abs(affinity(dot(x, gate)) - exact).max(axis=1) for dot in ORDERS], axis=0)
    return Routing(exact + np.where(arguments["roles"][:, None] != 0, bias_vl, bias), floor)


def noise(op: str, call: Call, leaf: str) -> Array:
    """Noise floor of each row of a class A output, rounding of the output included, f64 [rows]; else zeros."""
    derivation, outputs = load_all().get(op), whole_outputs(call)
    value = leaves(outputs)[leaf]
    nothing = np.zeros(len(value))
    if derivation is None:
        return nothing
    with np.errstate(all="ignore"), legal_orders(*ORDERS):
        check = derivation(View(call.inputs), outputs).get(leaf)
    if not isinstance(check, Accumulated):
        return nothing
    peak = np.max(np.where(np.isfinite(check.value), np.abs(check.value), 0.0), axis=-1, initial=0.0)
    dtype = "bf16" if value.dtype is torch.bfloat16 else "f32"
    result: Array = check.floor[..., 0] + ulp(peak, dtype) / 2
    return result
