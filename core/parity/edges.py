"""How near a decision by random number was to another outcome, and what logit noise moves that border by.

Both in probability: the distance of what was compared, and its derivative by a logit at the border.  None for a greedy
row, which has no border: its margin is one of logits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tandem.conformance.compare import host
from tandem.ops._distribution import GREEDY_BELOW, distribution
from tandem.ops._residual import DRAFT_STREAM
from tandem.parity.records import Call
from tandem.sampling.rng import SEED_LIMIT, uniform

Array = npt.NDArray[Any]
NEVER = (float("inf"), 1.0)  # the row had no other outcome


class Edge(NamedTuple):
    """Distance to the border, and how far a unit of noise in a logit moves it."""

    distance: float
    unit: float


def drawn(call: Call, row: int, other: int) -> Edge | None:
    """Of `sample`, and of a row that draws afresh: the uniform number against the border of the token drawn."""
    inputs = call.inputs
    weight = _law(call, row)
    if weight is None:
        return None
    seed, position = int(inputs["seed"][row]), int(inputs["position"][row])
    return _between(call, row, weight, other, uniform(seed % SEED_LIMIT, position))


def drafted(call: Call, row: int, other: int) -> Edge | None:
    """Of `draft_sample`: as `drawn`, with the random numbers of drafts."""
    inputs = call.inputs
    weight = _law(call, row)
    if weight is None:
        return None
    seed = int(inputs["seed"][row]) + (0 if inputs["coupled"] else DRAFT_STREAM)
    return _between(call, row, weight, other, uniform(seed % SEED_LIMIT, int(inputs["position"][row])))


def accepted(call: Call, row: int) -> Edge | None:
    """Of `spec_verify`, whether a draft was taken: u times its mass P against its mass Q in the target."""
    inputs = call.inputs
    draft, target = draft_of(call, row), _law(call, row)
    if target is None:
        return None
    if draft < 0:
        return Edge(*NEVER)
    seed, position = int(inputs["seed"][row]) % SEED_LIMIT, int(inputs["position"][row])
    if inputs["coupled"]:
        inclusive = np.cumsum(target)
        low, high, at = inclusive[draft] - target[draft], inclusive[draft], uniform(seed, position)
        border = float(min((low, high), key=lambda end: abs(end - at)))
        return Edge(abs(border - at), border * (1.0 - border) / _temperature(call, row))
    mass, offered = float(target[draft]), float(_proposal(call, row)[draft])
    unit = mass * (1.0 - mass) / _temperature(call, row)
    return Edge(abs(uniform(seed, position, 2) * offered - mass), unit)


def verified(call: Call, row: int, other: int) -> Edge | None:
    """Of `spec_verify`, the token of a row: where the draft was taken or might have been, that; else what was drawn."""
    inputs = call.inputs
    if int(inputs["forced"][row]) >= 0:
        return Edge(*NEVER)
    draft = draft_of(call, row)
    if draft < 0 or inputs["coupled"]:
        return drawn(call, row, other)
    if bool(call.outputs["accepted"][row]) or other == draft:
        return accepted(call, row)
    target = _law(call, row)
    if target is None:
        return None
    left = np.maximum(target - _proposal(call, row), 0.0)
    share = float(left.sum())
    if share <= 0.0:
        return drawn(call, row, other)
    seed, position = int(inputs["seed"][row]) % SEED_LIMIT, int(inputs["position"][row])
    edge = _between(call, row, left / share, other, uniform(seed, position, 1))
    # A logit moves the target's mass where something is left, and what is left is a part of one.
    return edge._replace(unit=float(target[left > 0].sum()) / share / _temperature(call, row))


def draft_of(call: Call, row: int) -> int:
    """The draft that a row of `spec_verify` judges by chance, -1 for none."""
    at = int(call.inputs["draft_row"][row])
    return -1 if at < 0 or int(call.inputs["forced"][row]) >= 0 else int(call.inputs["drafts"][at])


def _temperature(call: Call, row: int) -> float:
    return float(call.inputs["temperature"][row])


def _law(call: Call, row: int) -> Array | None:
    """Probabilities f64 [V] of the kept tokens; None for a greedy row."""
    if _temperature(call, row) < GREEDY_BELOW:
        return None
    inputs, one = call.inputs, slice(row, row + 1)
    min_p = inputs.get("min_p")
    logits, temperature, top_p, top_k = (inputs[name][one] for name in ("logits", "temperature", "top_p", "top_k"))
    kept = None if min_p is None else min_p[one]
    whole = distribution(logits, temperature, top_p, top_k, inputs["filtered"], kept)
    weight = host(whole.weight[0]).astype(np.float64)
    found: Array = weight / max(weight.sum(), 1.0)
    return found


def _proposal(call: Call, row: int) -> Array:
    """Probabilities f64 [V] that the row's draft was drawn by."""
    weight = host(call.inputs["proposal"][int(call.inputs["draft_row"][row])]).astype(np.float64)
    found: Array = weight / max(weight.sum(), 1.0)
    return found


def _between(call: Call, row: int, law: Array, other: int, at: float) -> Edge:
    """A uniform number against the border of the token drawn, on the other's side."""
    mine = int(call.outputs["token"][row])
    if mine < 0:
        return Edge(*NEVER)
    inclusive = np.cumsum(law)
    border = float(inclusive[mine] if other > mine else inclusive[mine] - law[mine])
    return Edge(abs(border - at), border * (1.0 - border) / _temperature(call, row))
