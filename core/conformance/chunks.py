"""Ops that look at neighbouring rows or sort rows: how a sequence is cut and who else is there changes no bit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from tandem.conformance.calls import leaves, read, run_call, unequal
from tandem.conformance.compare import Mismatch
from tandem.contract.cases import Draw, materialise, step_rows, upload
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.contract.types import MoEBatch, Rows

Tensor = torch.Tensor
LENGTH = 23
CUTS = ([1] * LENGTH, [LENGTH], [7, 7, 7, 2], [1, 16, 2, 4], [22, 1], [2, 3] * 4 + [3])
OTHERS: tuple[list[tuple[int, int, int]], ...] = ([], [(0, 4, 3), (-1, 0, 2)])  # stand before, in the same step
SLOT = 1  # of the request under test

Step = Callable[[Rows, Tensor, int, int, int], Tensor]


def compress(plan: Plan, ratio: int, ring: int) -> None:
    """Latents and state of `compress_update` for any cuts."""
    draw = Draw(3)
    gate, value = draw.f32(LENGTH, 24, scale=3.0), draw.f32(LENGTH, 24)

    def step(rows: Rows, state: Tensor, lead: int, first: int, count: int) -> Tensor:
        arrays = [torch.cat((torch.ones(lead, 24), x[first : first + count])) for x in (value, gate)]
        made = materialise({"value": arrays[0], "gate": arrays[1], "rows": rows}, plan.backend, 0)
        args = made | {"state": state, "ratio": ratio}
        latent: Tensor = run_call(plan, "compress_update", args)["latent"][lead:]
        return latent[[t for t in range(count) if (first + t + 1) % ratio == 0]]

    _any_cuts(plan, torch.full((3, ring, 2, 24), float("nan")), step)


def context(plan: Plan, ring: int) -> None:
    """Contexts and history of `engram_context` for any cuts."""
    draw = Draw(4)
    ids, vocabulary = draw.i32(0, 30, LENGTH), draw.i32(0, 20, 30)
    roles = draw.i32(0, 6, LENGTH).eq(0).to(torch.int32)

    def step(rows: Rows, history: Tensor, lead: int, first: int, count: int) -> Tensor:
        zeros, part = torch.zeros(lead, dtype=torch.int32), slice(first, first + count)
        named = dataclasses.replace(rows, ids=torch.cat((zeros, ids[part])), roles=torch.cat((zeros, roles[part])))
        made = materialise({"rows": named, "vocabulary": vocabulary}, plan.backend, 0)
        args = made | {"history": history, "pad": 7, "n": 4}
        found: Tensor = run_call(plan, "engram_context", args)["context"][lead:]
        return found

    _any_cuts(plan, torch.full((3, ring), 19, dtype=torch.int32), step)


def _any_cuts(plan: Plan, start: Tensor, step: Step) -> None:
    results = []
    for others in OTHERS:
        for lengths in CUTS:
            state, parts, first = upload(start, plan.backend), [], 0
            for count in lengths:
                rows = step_rows([*others, (SLOT, first, count)])
                parts.append(step(rows, state, sum(chunk[2] for chunk in others), first, count))
                first += count
            results.append((lengths, others, torch.cat(parts), read(plan.backend, state)[SLOT]))
    for lengths, others, rows_, kept in results[1:]:
        found = unequal("the result", rows_, results[0][2]) or unequal("the state", kept, results[0][3])
        if found is not None:
            where = "behind others" if others else "alone"
            raise Mismatch(f"chunks of {lengths}, {where}, give other bits than single rows alone: {found}")


def grouped(plan: Plan) -> None:
    """Rows of `grouped_linear` alone."""
    data = _data("grouped_linear", "fp4-T33")
    args = materialise(data, plan.backend, 0)
    whole = run_call(plan, "grouped_linear", args)["y"]
    for row, owner in _owners(data["ends"]):
        alone = {"x": data["x"].take_rows(torch.tensor([row])), "ends": _single(owner, len(data["ends"]))}
        _same_row(plan, "grouped_linear", args | materialise(alone, plan.backend, 0), row, whole)


def experts(plan: Plan) -> None:
    """Rows of `moe_experts` alone."""
    data = _data("moe_experts", "fp4-T33")
    args = materialise(data, plan.backend, 0)
    whole = run_call(plan, "moe_experts", args)["y"]
    batch: MoEBatch = data["batch"]
    for row, owner in _owners(batch.ends):
        index = torch.tensor([row])
        source, ends = torch.zeros((1, 1), dtype=torch.int32), _single(owner, len(batch.ends))
        alone = {"batch": MoEBatch(batch.x.take_rows(index), batch.weight[index], ends, source)}
        _same_row(plan, "moe_experts", args | materialise(alone, plan.backend, 0), row, whole)


def _same_row(plan: Plan, op: str, args: dict[str, Any], row: int, whole: Tensor) -> None:
    one = leaves(run_call(plan, op, args))["y"]
    found = unequal("y", one[0], whole[row])
    if found is not None:
        raise Mismatch(f"row {row} alone gives other bits than in the batch: {found}")


def _data(op: str, name: str) -> dict[str, Any]:
    return next(case for case in OP_TABLE[op].cases if case.name == name).build(0)


def _owners(ends: Tensor) -> list[tuple[int, int]]:
    """(row, expert) of every fourth row."""
    starts = [0, *ends.tolist()]
    return [(row, e) for e, end in enumerate(ends.tolist()) for row in range(starts[e], end)][::4]


def _single(owner: int, count: int) -> Tensor:
    """`ends` of one row that belongs to this expert."""
    return torch.tensor([int(e >= owner) for e in range(count)], dtype=torch.int32)


# Op, case name, check.
CHUNKS: list[tuple[str, str, Callable[[Plan], None]]] = [
    *(
        ("compress_update", f"chunks-ratio-{ratio}-ring-{ring}", functools.partial(compress, ratio=ratio, ring=ring))
        for ratio, ring in ((2, 2), (2, 5), (4, 4))
    ),
    *(("engram_context", f"chunks-ring-{ring}", functools.partial(context, ring=ring)) for ring in (4, 9)),
    ("grouped_linear", "rows-alone", grouped),
    ("moe_experts", "rows-alone", experts),
]
