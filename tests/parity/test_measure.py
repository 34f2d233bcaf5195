"""Distances in units of the class, by hand, and in agreement with the gates of conformance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tandem.conformance.calls import leaves, run_call
from tandem.conformance.compare import Accumulated, AccumulatedCodes, Exact, Mismatch, Quantised, Selected, Ulps
from tandem.conformance.derive.base import View, backward_dot, exact_dot, forward_dot, load_all, pairwise_dot, wide_dot
from tandem.conformance.formats import encode
from tandem.contract.cases import materialise
from tandem.contract.opspec import OP_TABLE
from tandem.contract.types import QFormat, QTensor
from tandem.parity.judge import host_plan, judge, noise, route
from tandem.parity.measure import measure
from tandem.parity.records import Call


def test_ulps_of_bf16() -> None:
    # bf16 has 8 bits: in [1, 2) neighbours are 2^-7 apart.
    got = torch.tensor([[1.0, 1.0 + 3 * 2.0**-7], [1.5, 1.5]], dtype=torch.bfloat16)
    error = measure(Ulps(np.array([[1.0, 1.0], [1.5, 1.5]]), 1), got, "y")
    assert error.rows.tolist() == [3.0, 0.0]
    assert (error.value, error.mean, error.first, error.outside) == (3.0, 0.75, (0, 1), True)
    assert error.floor == 2.0**-7
    assert error.relative == 3 * 2.0**-7


@pytest.mark.parametrize("smaller", range(0, 15))
def test_codes_of_class_a(smaller: int) -> None:
    """A code is what rounds to it, of whatever size, and no more: the other sign is far from the value."""
    value = np.full((1, 32), 1.0)
    value[0, 7] = 2.0**-smaller
    check = AccumulatedCodes(value, np.full((1, 32), 2.0**-20))
    codes, scales = encode(value, "mxfp8")
    turned = codes.copy()
    turned[0, 7] ^= 0x80
    made = [QTensor(torch.from_numpy(c), torch.from_numpy(scales), QFormat.MXFP8, (1, 32)) for c in (codes, turned)]
    right, wrong = (measure(check, q, "q") for q in made)
    assert (right.value, right.outside) == (0.0, False)
    assert wrong.outside and wrong.first == (0, 7)
    assert 1.5 * 2.0**20 < wrong.value * 2.0**smaller <= 2.0 * 2.0**20
    check.check(made[0], "q")
    with pytest.raises(Mismatch):
        check.check(made[1], "q")


def cancelling(case: str) -> tuple[dict[str, Any], np.ndarray[Any, Any], float]:
    """Arguments of a case whose first row has terms +-1/3 and +-1/7 that cancel in element 5 but for one f32 place.

    With them the exact sum over the streams, f64 [T, H], and what f32 may lose in that element.
    """
    data = next(c for c in OP_TABLE[case].cases if c.name == "random-T2").build(0)
    trunk, pre = data["trunk"], data["pre_prev" if case == "hc_enter" else "pre"]
    third = torch.tensor(1 / 3)
    pre[0] = torch.stack((third, torch.nextafter(third, torch.tensor(1.0)), torch.tensor(1 / 7), torch.tensor(1 / 7)))
    trunk[0, :, 5] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    value = torch.einsum("tm,tmh->th", pre.double(), trunk.double()).numpy()
    assert value[0, 5] == -(2.0**-25), "the distance of neighbours of 1/3"
    return data, value, 4 * 2.0**-24 * float(pre[0].double().sum())


def test_terms_that_cancel_may_lose_what_f32_loses() -> None:
    data, value, lost = cancelling("hc_collapse")

    def error(moved: float) -> Any:
        x = torch.from_numpy(value.copy())
        x[0, 5] += moved
        return judge("hc_collapse", Call(data, {"x": x.bfloat16()}))[0]

    assert 0.8 < error(0.9 * lost).value < 1.0, "many places of what is left, but no more than f32 may lose"
    assert error(1.1 * lost).outside and error(1.1 * lost).first == (0, 5)


def test_the_norm_carries_what_cancelling_terms_lose() -> None:
    data, value, lost = cancelling("hc_enter")
    outputs = run_call(host_plan(), "hc_enter", materialise(data, host_plan().backend, 0xFF))
    eps, weight = data["weights"].norm_eps, data["norm_weight"].double()

    def error(moved: float) -> Any:
        x = torch.from_numpy(value.copy())
        x[0, 5] += moved
        x = x.bfloat16().double()
        x = x / torch.sqrt(x.square().mean(dim=1, keepdim=True) + eps) * weight
        return next(e for e in judge("hc_enter", Call(data, outputs | {"x": x.bfloat16()})) if e.leaf == "x")

    assert 1.5 < error(0.9 * lost).value < 2.0
    assert error(1.1 * lost).outside and error(1.1 * lost).first == (0, 5)


def test_a_rotation_may_cancel_too() -> None:
    # a cos - b sin of equal terms is 0; f32 may lose a place of each term: 2 * 2^-24 * (0.6 + 0.6).
    turn = torch.tensor([[0.8, 0.6]])
    x = torch.tensor([[[0.75, 1.0]]], dtype=torch.bfloat16)
    exact = 0.75 * float(turn[0, 0]) - float(turn[0, 1])
    for moved, outside in ((0.9, False), (1.1, True)):
        first = exact + moved * 2 * 2.0**-24 * 1.2
        y = torch.tensor([[[first, 0.75 * 0.6 + 0.8]]]).bfloat16()
        error = judge("rope", Call({"x": x, "cos_sin": turn}, {"y": y}))[0]
        assert error.outside == outside, (error.value, error.first)


def test_beyond_bf16_is_infinity() -> None:
    largest = (2 - 2.0**-7) * 2.0**127
    check = Ulps(np.array([largest * 1.001, 3.5e38, -1e39]), 1)
    assert not measure(check, torch.tensor([largest, torch.inf, -torch.inf], dtype=torch.bfloat16), "y").outside
    assert measure(check, torch.tensor([largest, torch.inf, largest], dtype=torch.bfloat16), "y").first == (2,)


def test_floors_count_the_rounding_of_the_output() -> None:
    # The gate is 4 floors and one f32 ulp of the row's greatest value, here 2^-23 * 2 of 3.0.
    floor, ulp = 1e-3, 2.0**-22
    check = Accumulated(np.array([[3.0, 1.0]]), np.array([[floor]]))
    inside = torch.tensor([[3.0, 1.0 + 3.9e-3]])
    outside = torch.tensor([[3.0, 1.0 + 4.1e-3]])
    assert measure(check, inside, "y").value == pytest.approx(3.9e-3 / (floor + ulp / 4), rel=1e-3)
    assert not measure(check, inside, "y").outside
    assert measure(check, outside, "y").first == (0, 1)
    assert measure(check, outside, "y").outside


def test_exact_counts_elements_and_sees_the_sign_of_zero() -> None:
    error = measure(Exact(np.array([1.0, 0.0, 2.0])), torch.tensor([1.0, -0.0, 5.0]), "x")
    assert (error.rows.tolist(), error.outside, error.first) == ([0.0, 1.0, 1.0], True, (1,))


def test_steps_of_codes_and_the_share_that_may_differ() -> None:
    codes, scales = np.full((4, 32), 0x30, np.uint8), np.full((4, 1), 127, np.uint8)
    check = Quantised(codes, scales, "mxfp8")

    def error(changes: dict[tuple[int, int], int]) -> Any:
        changed = codes.copy()
        for place, code in changes.items():
            changed[place] = code
        return measure(check, QTensor(torch.from_numpy(changed), torch.from_numpy(scales), _MXFP8, (4, 32)), "q")

    assert not error({(1, 3): 0x31}).outside  # one code of a small array may be a step off
    assert error({(1, 3): 0x31, (2, 0): 0x31}).outside
    assert error({(1, 3): 0x32}).value == 2.0
    assert error({(1, 3): 0x32}).outside
    assert error({(3, 9): 0x7F}).value == float("inf")  # NaN


_MXFP8 = next(fmt for fmt in OP_TABLE["quantize"].cases[0].build(0).values() if hasattr(fmt, "group"))


def test_selection_by_scores_within_two_floors() -> None:
    scores = np.array([[5.0, 4.0, 3.9, 1.0]])
    check = Selected(np.array([[0, 1]]), scores, np.array([0.12]))  # 2 floors of 0.06
    assert not measure(check, torch.tensor([[0, 2]]), "experts").outside
    assert measure(check, torch.tensor([[0, 2]]), "experts").value == pytest.approx(0.1 / 0.06)
    assert measure(check, torch.tensor([[0, 3]]), "experts").outside
    assert measure(check, torch.tensor([[0, 0]]), "experts").outside


def test_another_dtype_is_another_form() -> None:
    data = next(case for case in OP_TABLE["hc_expand"].cases if case.name == "random-T2").build(0)
    outputs = run_call(host_plan(), "hc_expand", materialise(data, host_plan().backend, 0))
    assert not judge("hc_expand", Call(data, outputs))[0].outside
    wide = judge("hc_expand", Call(data, {"trunk": outputs["trunk"].to(torch.float32)}))[0]
    assert (wide.outside, wide.metric, wide.note) == (True, "form", "is torch.float32, want torch.bfloat16")


def test_orders_of_summation() -> None:
    # In f32, 1 is lost when it is added to 2^24, and not when it is added to -2^24.
    big = 2.0**24
    x, w = np.array([[big, 1.0, 1.0, -big]]), np.ones((1, 4))
    assert exact_dot(x, w).tolist() == [[2.0]]
    assert forward_dot(x, w).tolist() == [[0.0]]
    assert backward_dot(x, w).tolist() == [[2.0]]
    assert pairwise_dot(x, w).tolist() == [[1.0]]  # (big + 1) + (1 - big)
    assert wide_dot(x, w).tolist() == [[2.0]]


OPS = ("linear", "rms_norm", "quantize", "topk_index", "moe_route", "kv_write", "hc_step", "sample", "index_scores")


@pytest.mark.parametrize("op", OPS)
def test_a_right_call_is_inside_and_a_changed_one_outside(op: str) -> None:
    case = OP_TABLE[op].cases[1 if op == "linear" else 0]
    data = case.build(0)
    outputs = run_call(host_plan(), op, materialise(data, host_plan().backend, 0xFF))
    assert not any(error.outside for error in judge(op, Call(data, outputs)))
    name, value = next((n, v) for n, v in leaves(outputs).items() if v.numel())
    before = value.clone()
    flat = value.view(-1)
    flat[0] = flat[0] * 1.5 + 1 if value.dtype.is_floating_point else flat[0] + 3
    changed = judge(op, Call(data, outputs))
    value.copy_(before)
    assert any(error.outside for error in changed), name


@pytest.mark.parametrize("op", ["linear", "rms_norm", "hc_mix", "moe_combine"])
def test_the_gates_are_those_of_conformance(op: str) -> None:
    """A perturbed output is outside here exactly where the check refuses it."""
    data = OP_TABLE[op].cases[0].build(0)
    outputs = run_call(host_plan(), op, materialise(data, host_plan().backend, 0xFF))
    checks = load_all()[op](View(data), outputs)
    for scale in (0.0, 2.0**-9, 2.0**-8, 2.0**-7, 2.0**-6):
        for name, value in leaves(outputs).items():
            if name not in checks:
                continue
            moved = (value.to(torch.float64) * (1 + scale)).to(value.dtype)
            try:
                checks[name].check(moved, name)
                refused = False
            except Mismatch:
                refused = True
            assert measure(checks[name], moved, name).outside == refused, (name, scale)


def test_noise_of_a_product_follows_its_data() -> None:
    data = OP_TABLE["linear"].cases[0].build(0)
    outputs = run_call(host_plan(), "linear", materialise(data, host_plan().backend, 0xFF))
    floors = noise("linear", Call(data, outputs), "y")
    assert floors.shape == (len(outputs["y"]),)
    assert (floors > 0).all()


def test_routing_scores_by_hand() -> None:
    case = next(case for case in OP_TABLE["moe_route"].cases if case.name == "some-experts-tie")
    data = case.build(0)  # all inputs zero: every affinity is sqrt(log 2)
    scores, text = route(View(data)).scores, data["roles"] == 0
    assert 0 < int(text.sum()) < len(text)
    assert scores[text.numpy(), 4] == pytest.approx(np.sqrt(np.log(2.0)) + 0.5)
    assert scores[~text.numpy(), 4] == pytest.approx(np.sqrt(np.log(2.0)))
