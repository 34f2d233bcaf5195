"""A row's bits depend on the row alone: not on how many rows there are, on its place or on its neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from conformance.cases_rows import ROW_ARGUMENTS, SLOT_ARGUMENTS, row_count, take, take_call
from support.runner import arguments, call, each_case, find_case, implementations

from tandem.conformance.calls import bits, leaves, meaningful
from tandem.contract.opspec import OP_TABLE, Case, OpSpec

CASES = [
    pytest.param(spec, case, id=f"{spec.name}-{case.name}")
    for spec, case in each_case()
    if spec.name in ROW_ARGUMENTS and not case.name.endswith(("-T1", "-T2", "-T15", "-T16"))
]
WRITES_CACHE = {"kv_store", "kv_write"}  # their rows are cache entries


def selections(count: int) -> Iterator[torch.Tensor]:
    """Single rows, row counts around tiles, another order, and one row between copies of itself."""
    order = torch.arange(count)
    singles = sorted({0, 1, count // 2, count - 2, count - 1} & set(range(count)))
    yield from (order[i : i + 1] for i in singles)
    for size in (2, 7, 8, 9, 15, 16, 17):
        if size < count:
            yield order[-size:]
    yield order.flip(0)
    yield order.roll(3)
    yield torch.full((5,), count - 1)
    yield torch.cat((order, order, order))


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize(("spec", "case"), CASES)
def test_rows_alone_in_batches_and_reordered(spec: OpSpec, case: Case, implementation: str) -> None:
    op = spec.name
    args = arguments(case, implementation)
    whole = leaves(call(op, implementation, args))
    for index in selections(row_count(op, args)):
        if op in WRITES_CACHE and len(set(index.tolist())) < len(index):
            continue  # slots of one call are distinct
        fresh = take_call(op, arguments(case, implementation), index)
        part = leaves(call(op, implementation, fresh))
        for name, have in part.items():
            if name == "cache":
                slots = [int(s) for s in fresh["slots"] if s >= 0]
                want, have = whole[name][slots], have[slots]
            else:
                want, have = meaningful(op, name, fresh, take(whole[name], index)), meaningful(op, name, fresh, have)
            assert torch.equal(bits(have), bits(want)), f"{op} {name}, rows {index.tolist()}"


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize("op", sorted(SLOT_ARGUMENTS))
def test_rows_between_padding(op: str, implementation: str) -> None:
    for case in OP_TABLE[op].cases:
        args, slot = arguments(case, implementation), SLOT_ARGUMENTS[op]
        whole = leaves(call(op, implementation, args))
        padded = arguments(case, implementation)
        padded[slot][1::2] = -1
        part = leaves(call(op, implementation, padded))
        for name, have in part.items():
            assert torch.equal(bits(have[0::2]), bits(whole[name][0::2])), f"{op} {case.name} {name}"


@pytest.mark.parametrize("implementation", implementations())
def test_a_wider_score_array_changes_no_score(implementation: str) -> None:
    case = find_case("index_scores", "three-requests-T17")
    narrow = call("index_scores", implementation, arguments(case, implementation))["scores"]
    wide = call("index_scores", implementation, arguments(case, implementation) | {"width": 32})["scores"]
    assert torch.equal(bits(wide[:, :24]), bits(narrow))
    assert bool((wide[:, 24:] == float("-inf")).all())


@pytest.mark.parametrize("implementation", implementations())
def test_the_hint_changes_no_bit(implementation: str) -> None:
    for op in ("sparse_attn", "attn_block"):
        for case in OP_TABLE[op].cases:
            both = [
                leaves(call(op, implementation, arguments(case, implementation) | {"hint": hint}))
                for hint in ("prefill", "decode")
            ]
            assert all(torch.equal(bits(both[0][name]), bits(both[1][name])) for name in both[0])


def test_every_op_is_tested_for_invariance() -> None:
    """The other ops move integers or copies, or have their own test in test_invariance_chunks.py."""
    elsewhere = {"compress_update", "engram_context", "grouped_linear", "moe_experts"}
    copies = {"moe_dispatch", "scatter_rows", "aux.commit"}
    tested = set(ROW_ARGUMENTS) | elsewhere | copies
    assert tested == {spec.name for spec, _ in each_case()}
