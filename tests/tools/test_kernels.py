"""Official workloads, their floors, and the gates that compiled kernels are held against."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import tandem.ops  # noqa: F401  (declares every op)
from tandem.backends.cuda.compiling import request_of
from tandem.backends.cuda.launch import Launch
from tandem.contract.opspec import OP_TABLE
from tools.kernels import gates, roofline
from tools.kernels.cuda import CudaLayouts
from tools.kernels.filled import Held, limits
from tools.kernels.floors import active, least
from tools.kernels.machines import B200
from tools.kernels.workloads import PHASES, Maker, Phase, Workload, workloads

DECODE, PREFILL = PHASES[0], PHASES[-1]
INTS = (torch.int32, torch.int64)
# Ops whose parts are workloads of their own.
COMPOSED = {"moe_block", "moe_experts", "head_sample"}


def find(name: str) -> Workload:
    return next(one for one in workloads() if one.name == name)


def test_every_op_has_a_workload() -> None:
    assert {one.op for one in workloads()} == set(OP_TABLE) - COMPOSED


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
def test_arguments_are_those_of_the_ops_in_their_order(phase: Phase) -> None:
    maker = Maker(CudaLayouts())
    for workload in workloads():
        names = [p for p in inspect.signature(OP_TABLE[workload.op].reference).parameters if p != "parts"]
        arguments = list(workload.build(maker, phase))
        assert arguments == names[: len(arguments)], workload.name


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
def test_every_index_has_a_range(phase: Phase) -> None:
    maker = Maker(Held())
    for workload in workloads():
        arguments = workload.build(maker, phase)
        indices = {name for name, value in arguments.items() if isinstance(value, torch.Tensor) and value.dtype in INTS}
        assert indices - set(limits(phase, arguments)) == set(), workload.name


def test_floor_of_a_product() -> None:
    """wq_a of one row: 1280 x 5120 codes, one scale byte for 32 x 32 of them, a row of 5120 codes with 160 scales."""
    floor = least(find("linear wq_a"), DECODE)
    assert floor.read == 1280 * 5120 + 40 * 160 + 5120 + 160
    assert floor.written == 1280 * 2 and floor.flops == 2 * 1280 * 5120
    assert floor.bound(B200) == "memory" and floor.seconds(B200) == pytest.approx(floor.bytes / 7.67e12)


def test_floor_of_attention() -> None:
    """A row reads 128 window entries of 528 bytes and 512 entries of 288, and works 2 x 64 x 512 x 640 twice."""
    floor = least(find("attn_block"), DECODE)
    query, slots, sink = 64 * 512 * 2, (128 + 512) * 4, 64 * 4
    assert floor.read == query + slots + sink + 128 * 528 + 512 * 288
    assert floor.written == 64 * 512 + 64 * 16 and floor.flops == 4 * 64 * 512 * 640


def test_experts_that_have_rows() -> None:
    assert active(1) == pytest.approx(6)
    assert active(8192) == pytest.approx(384)
    assert active(2, experts=4, chosen=2) == pytest.approx(3)  # 4 x (1 - 1/4)


def test_the_page_of_floors_is_current(repo_root: Path) -> None:
    text = (repo_root / "docs" / "ROOFLINE.md").read_text(encoding="utf-8")
    assert roofline.page(roofline.lines()) in text, "run python -m tools.kernels.roofline --write docs/ROOFLINE.md"


def test_what_moves_far_more_than_the_floor_says_why() -> None:
    assert [line for line in roofline.lines() if line.why == "no reason is given"] == []


def test_no_kernel_plans_less_than_the_floor() -> None:
    assert [(x.op, x.site, x.phase) for x in roofline.lines() if x.ratio is not None and x.ratio < 0.95] == []


@triton.jit
def _copy(x, y, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    tl.store(y + place, tl.load(x + place))


@triton.jit
def _spill(x, y, SIZE: tl.constexpr):
    """Holds more than the registers of its one warp while it waits for their sum."""
    place = tl.arange(0, SIZE)
    held = tl.load(x + place)
    tl.store(y + place, held * tl.sum(held))


def launched(kernel: object, size: int, warps: int) -> Launch:
    x = torch.empty(size, dtype=torch.float32, device="meta")
    return Launch(kernel, (1,), (x, x), {"SIZE": size, "num_warps": warps, "enable_fp_fusion": False})


def test_a_kernel_without_fault_passes() -> None:
    made, failures = gates.judge(request_of(launched(_copy, 256, 4)), 100)
    assert failures == () and made is not None
    assert made.warps == 4 and made.spills == 0 and 0 < made.registers < 40
    assert "STG" in made.sass and "LDG" in made.sass


def test_spills_are_a_failure() -> None:
    _, failures = gates.judge(request_of(launched(_spill, 16384, 1)), 100)
    assert any("spilt" in one for one in failures)


def test_a_missing_instruction_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gates.REQUIRED, "copy", ("UTCHMMA",))
    _, failures = gates.judge(request_of(launched(_copy, 256, 4)), 100)
    assert failures == ("no UTCHMMA among its instructions",)


def test_what_does_not_compile_is_a_failure() -> None:
    _, failures = gates.judge(request_of(launched(_copy, 300, 4)), 100)  # no power of two
    assert len(failures) == 1 and failures[0].startswith("does not compile: ")


def test_equal_launches_ask_for_one_compilation() -> None:
    one, two, three = (request_of(launched(_copy, size, 4)) for size in (256, 256, 512))
    assert one.key == two.key != three.key


@pytest.mark.slow
def test_every_kernel_passes_and_the_page_is_current(repo_root: Path) -> None:
    """Minutes; less where Triton still has what it compiled before."""
    found = gates.run(set(OP_TABLE), (100, 90))
    assert [(gate.kernel, gate.arch, gate.failures) for gate in found if gate.failures] == []
    text = (repo_root / "docs" / "KERNELS.md").read_text(encoding="utf-8")
    assert gates.table(found) in text, "run python -m tools.kernels.gates --write docs/KERNELS.md"
