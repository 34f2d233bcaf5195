"""Ops that look at neighbouring rows or sort rows: how a sequence is cut and who else is there changes no bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from support.runner import arguments, call, find_case, implementations

from tandem.conformance.calls import bits
from tandem.contract.cases import Draw, step_rows
from tandem.contract.types import MoEBatch, Rows

Tensor = torch.Tensor
LENGTH = 23
CUTS = ([1] * LENGTH, [LENGTH], [7, 7, 7, 2], [1, 16, 2, 4], [22, 1], [2, 3] * 4 + [3])
OTHERS = ([], [(0, 4, 3), (-1, 0, 2)])  # chunks of other requests that stand before, in the same step


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize("others", OTHERS, ids=("alone", "among-others"))
@pytest.mark.parametrize(("ratio", "ring"), [(2, 2), (2, 5), (4, 4)])
def test_compress_update_for_any_chunks(
    implementation: str, others: list[tuple[int, int, int]], ratio: int, ring: int
) -> None:
    draw = Draw(3)
    gate, value = draw.f32(LENGTH, 24, scale=3.0), draw.f32(LENGTH, 24)
    results = []
    for cut in CUTS:
        state, latents = torch.full((3, ring, 2, 24), float("nan")), []
        for first, count in _starts(cut):
            rows, lead = _rows(others, first, count)
            arrays = [torch.cat((torch.ones(lead, 24), x[first : first + count])) for x in (value, gate)]
            args = {"value": arrays[0], "gate": arrays[1], "state": state, "rows": rows, "ratio": ratio}
            latents.append(call("compress_update", implementation, args)["latent"][lead:])
        complete = torch.cat(latents)[ratio - 1 :: ratio]
        results.append((complete, state[1]))
    _assert_equal(results)


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize("others", OTHERS, ids=("alone", "among-others"))
@pytest.mark.parametrize("ring", [4, 9])
def test_engram_context_for_any_chunks(implementation: str, others: list[tuple[int, int, int]], ring: int) -> None:
    draw = Draw(4)
    ids, vocabulary = draw.i32(0, 30, LENGTH), draw.i32(0, 20, 30)
    roles = draw.i32(0, 6, LENGTH).eq(0).to(torch.int32)
    results = []
    for cut in CUTS:
        history, contexts = torch.full((3, ring), 19, dtype=torch.int32), []
        for first, count in _starts(cut):
            rows, lead = _rows(others, first, count)
            zeros = torch.zeros(lead, dtype=torch.int32)
            part = slice(first, first + count)
            rows = dataclasses.replace(rows, ids=torch.cat((zeros, ids[part])), roles=torch.cat((zeros, roles[part])))
            args = {"rows": rows, "vocabulary": vocabulary, "history": history, "pad": 7, "n": 4}
            contexts.append(call("engram_context", implementation, args)["context"][lead:])
        results.append((torch.cat(contexts), history[1]))
    _assert_equal(results)


def _starts(cut: list[int]) -> list[tuple[int, int]]:
    assert sum(cut) == LENGTH
    return [(sum(cut[:i]), count) for i, count in enumerate(cut)]


def _rows(others: list[tuple[int, int, int]], first: int, count: int) -> tuple[Rows, int]:
    return step_rows([*others, (1, first, count)]), sum(chunk[2] for chunk in others)


def _assert_equal(results: list[tuple[Tensor, Tensor]]) -> None:
    for cut, (rows, kept) in zip(CUTS, results, strict=True):
        assert torch.equal(bits(rows), bits(results[0][0])), f"rows, chunks {cut}"
        assert torch.equal(bits(kept), bits(results[0][1])), f"state, chunks {cut}"


@pytest.mark.parametrize("implementation", implementations())
def test_expert_rows_alone(implementation: str) -> None:
    args = arguments(find_case("grouped_linear", "fp4-T33"), implementation)
    whole = call("grouped_linear", implementation, args)["y"]
    for row, owner in _owners(args["ends"]):
        alone = {"x": args["x"].take_rows(torch.tensor([row])), "ends": _single(owner, len(args["ends"]))}
        one = call("grouped_linear", implementation, args | alone)["y"]
        assert torch.equal(bits(one[0]), bits(whole[row])), f"row {row}"


@pytest.mark.parametrize("implementation", implementations())
def test_dispatched_rows_alone(implementation: str) -> None:
    args = arguments(find_case("moe_experts", "fp4-T33"), implementation)
    whole = call("moe_experts", implementation, args)["y"]
    batch: MoEBatch = args["batch"]
    for row, owner in _owners(batch.ends):
        index = torch.tensor([row])
        alone: dict[str, Any] = {
            "batch": MoEBatch(
                batch.x.take_rows(index),
                batch.weight[index],
                _single(owner, len(batch.ends)),
                torch.zeros((1, 1), dtype=torch.int32),
            )
        }
        one = call("moe_experts", implementation, args | alone)["y"]
        assert torch.equal(bits(one[0]), bits(whole[row])), f"row {row}"


def _owners(ends: Tensor) -> list[tuple[int, int]]:
    """(row, expert) of some rows."""
    starts = [0, *ends.tolist()]
    pairs = [(row, e) for e, end in enumerate(ends.tolist()) for row in range(starts[e], end)]
    assert len(pairs) > 20
    return pairs[::4]


def _single(owner: int, experts: int) -> Tensor:
    """`ends` of one row that belongs to this expert."""
    return torch.tensor([int(e >= owner) for e in range(experts)], dtype=torch.int32)
