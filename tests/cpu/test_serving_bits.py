"""Routing, sampling and bookkeeping on the CPU: the same bits whatever they are computed with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.cpu_sets import SETS, using
from support.wrong_arguments import check

import tandem.ops  # noqa: F401  (declares every op)
from tandem.backends.cpu.backend import CpuBackend
from tandem.conformance.calls import collect, difference
from tandem.contract.cases import Draw, materialise
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.contract.types import QFormat, WeightKind
from tandem.ops.head_sample import numbers
from tandem.ops.sample import normal_logits
from tandem.ops.spec_verify import verify_arguments

Tensor = torch.Tensor
ROWS = (1, 2, 3, 15, 16, 17, 64)
VOCAB = 20_011  # several parts of a row, the last one no whole block
OPS = (
    *("moe_route", "moe_dispatch", "moe_combine", "gather_rows", "scatter_rows", "aux.take", "aux.commit"),
    *("aux.step_inputs", "aux.accept", "aux.verify_rows", "aux.draft_commit", "aux.draft_rows", "adjust_logits"),
    *("penalize_logits", "process_logits", "mask_logits", "sample", "top_logprobs", "spec_verify", "draft_sample"),
    *("draft_heads", "head_sample"),
)
DRAWING = ("sample", "process_logits", "draft_sample", "spec_verify")


def sampled(op: str, rows: int) -> dict[str, Any]:
    """Rows of a large vocabulary, each with numbers of its own."""
    given = verify_arguments(3, rows, VOCAB)
    turn = torch.arange(rows) % 9
    given["logits"] = (normal_logits(5, rows, VOCAB) * 16).round() / 16
    given["logits"][turn == 8, 77] = float("nan")
    given["temperature"] = torch.where(turn == 3, 0.0, 0.5 + 0.25 * turn)
    given["top_p"] = torch.where(turn % 3 == 1, 0.9, 1.0)
    given["top_k"] = torch.where(turn % 4 == 2, 5000, torch.where(turn == 5, 40, -1)).to(torch.int32)
    given["min_p"] = torch.where(turn % 5 == 4, 0.02, 0.0)
    given["filtered"] = True
    wanted: tuple[str, ...] = (
        "logits",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "position",
        "coupled",
        "filtered",
    )
    if op in ("sample", "process_logits"):
        wanted = tuple(n for n in wanted if n != "coupled" and (op == "sample" or n not in ("seed", "position")))
    return {name: given[name] for name in wanted} if op != "spec_verify" else given


def routed(rows: int) -> dict[str, Any]:
    draw = Draw(4)
    gate = draw.weight(WeightKind.LINEAR, QFormat.BF16, 390, 1040)
    bias = {"bias": draw.f32(390), "bias_vl": draw.f32(390)}
    return {"x": draw.bf16(rows, 1040), "gate": gate, **bias, "roles": draw.i32(0, 2, rows), "k": 8, "scaling": 1.5}


def headed(rows: int) -> dict[str, Any]:
    draw = Draw(6)
    matrices = {
        "embedding": draw.weight(WeightKind.EMBED, QFormat.BF16, 4003, 72),
        "head": draw.weight(WeightKind.LINEAR, QFormat.BF16, 4003, 72),
    }
    given = {"base": draw.f32(rows, 4003), "hidden": draw.bf16(rows, 264), "previous": draw.i32(-1, 4003, rows)}
    return given | matrices | {"proj": draw.f32(336, scale=0.2), "temperature": 1.5}


def greedy(rows: int) -> dict[str, Any]:
    """A head whose tokens the threads share; one row is zero, so that it takes the whole head."""
    draw = Draw(7)
    given = {"x": draw.bf16(rows, 72), "head": draw.weight(WeightKind.HEAD, QFormat.BF16, VOCAB, 72)}
    given["x"][rows // 2] = 0.0
    return given | numbers(7, rows, greedy=True)


def calls(op: str) -> Iterator[dict[str, Any]]:
    """Every conformance case, and larger rows."""
    yield from (case.build(0) for case in OP_TABLE[op].cases)
    if op in DRAWING:
        yield from (sampled(op, rows) for rows in (1, 9))
    if op == "top_logprobs":
        yield from ({"values": sampled("sample", 9)["logits"], "n": n} for n in (1, 20, 3000))
    if op in ("moe_route", "draft_heads"):
        yield (routed if op == "moe_route" else headed)(70)
    if op == "head_sample":
        yield from (greedy(rows) for rows in (3, 9))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(CpuBackend(True))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads; what it was comes back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def run(plan: Plan, op: str, given: dict[str, Any]) -> dict[str, Any]:
    args = copy.copy(given)
    args |= {name: value.clone() for name, value in given.items() if isinstance(value, Tensor)}
    with torch.inference_mode():
        result = plan.bind(op, "test")(**args)
    return collect(plan.backend, op, args, result)


@pytest.mark.parametrize("op", OPS)
def test_threads_and_instruction_sets_change_no_bit(op: str, plan: Plan, threads: Callable[[int], None]) -> None:
    assert plan.backend.implementation(op) is not None
    for data in calls(op):
        given = materialise(data, plan.backend, 0xFF)
        threads(1)
        one = run(plan, op, given)
        threads(2)
        assert difference(op, given, one, run(plan, op, given)) is None
        for name in SETS:
            with using(name):
                assert difference(op, given, one, run(plan, op, given)) is None


@pytest.mark.parametrize("op", OPS)
def test_a_recorded_call_gives_the_same(op: str, plan: Plan) -> None:
    for data in calls(op):
        given = materialise(data, plan.backend, 0xFF)
        wanted = run(plan, op, given)
        args = {name: v.clone() if isinstance(v, Tensor) else v for name, v in given.items()}
        made: list[Any] = []

        def step(args: dict[str, Any] = args, made: list[Any] = made) -> None:
            made.append(plan.bind(op, "test")(**args))

        with torch.inference_mode():
            recorded = plan.backend.capture(step)
        recorded.replay()
        assert difference(op, given, wanted, collect(plan.backend, op, args, made[0])) is None


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("op", ["moe_route", "draft_heads", "sample", "draft_sample", "spec_verify"])
def test_a_row_alone(op: str, rows: int, plan: Plan) -> None:
    if op in DRAWING:
        given = sampled(op, rows) | {"logits": normal_logits(7, rows, 1201)}
        given |= {"proposal": given["proposal"][:, :1201].contiguous()} if "proposal" in given else {}
        given |= {"drafts": given["drafts"] % 1201} if "drafts" in given else {}
    else:
        given = materialise((routed if op == "moe_route" else headed)(rows), plan.backend, 0xFF)
    together = run(plan, op, given)
    for t in {0, rows // 2, rows - 1}:
        kept = {n: v[t : t + 1] for n, v in given.items() if isinstance(v, Tensor) and v.shape[0] == rows}
        kept = {n: v for n, v in kept.items() if n not in ("bias", "bias_vl", "proj", "drafts", "proposal")}
        alone = run(plan, op, given | kept)
        assert difference(op, given, {n: v[t : t + 1] for n, v in together.items()}, alone) is None


@pytest.mark.parametrize("op", OPS)
def test_arrays_where_they_do_not_belong(op: str, plan: Plan) -> None:
    check(plan, op)


@pytest.mark.parametrize("op", DRAWING)
def test_rows_that_stand_apart(op: str, plan: Plan) -> None:
    given = sampled(op, 5)
    wide = torch.full((5, VOCAB + 3), float("nan"))
    view = wide[:, :VOCAB].copy_(given["logits"])
    assert not view.is_contiguous()
    with torch.inference_mode():
        apart = plan.bind(op, "test")(**given | {"logits": view})
    found = collect(plan.backend, op, given, apart)
    assert difference(op, given, run(plan, op, given), found) is None
    assert bool(wide[:, VOCAB:].isnan().all())
