"""The table of floors for Ascend 950: values by hand, and held against what launchers state."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.backends.ascend.plan import Device, Plan
from tandem.backends.ascend.table import implementations
from tandem.contract.opspec import OP_TABLE
from tools.kernels import roofline_ascend
from tools.kernels.floors import least
from tools.kernels.lines import Line
from tools.kernels.machines import ASCEND_950DT, ASCEND_950PR
from tools.kernels.workloads import PHASES, Workload, workloads

DECODE, PREFILL = PHASES[0], PHASES[-1]


def find(name: str) -> Workload:
    return next(one for one in workloads() if one.name == name)


def test_a_product_of_one_row_waits_for_memory() -> None:
    """wq_a: 1280 x 5120 codes, 40 x 160 scales, a row of 5120 codes and 160 scales, 1280 bf16 results."""
    floor = least(find("linear wq_a"), DECODE)
    moved = 1280 * 5120 + 40 * 160 + 5120 + 160 + 1280 * 2
    assert floor.bound(ASCEND_950PR) == floor.bound(ASCEND_950DT) == "memory"
    assert floor.seconds(ASCEND_950PR) == pytest.approx(moved / 1.6e12)
    assert floor.seconds(ASCEND_950DT) == pytest.approx(moved / 4.0e12)


def test_a_product_of_a_chunk_waits_for_the_cube() -> None:
    """8192 rows: 2 x 8192 x 1280 x 5120 operations at 1 PFLOP/s."""
    floor = least(find("linear wq_a"), PREFILL)
    assert floor.bound(ASCEND_950PR) == floor.bound(ASCEND_950DT) == "compute"
    assert floor.seconds(ASCEND_950PR) == pytest.approx(2 * 8192 * 1280 * 5120 / 1e15)


def test_a_line_says_how_the_cores_are_filled() -> None:
    """100 rows: 56 and 44 on the smallest, 64 and 36, 72 and 28; then one tile for each of 36 cube cores."""
    floor = least(find("hc_mean"), DECODE)  # 4 x 5120 bf16 in, 5120 out
    line = Line("hc_mean", "", "decode-1", floor, 2 * floor.bytes, "why")
    plans = {
        device: [
            Plan("vector", 100, device.vector_cores, floor.bytes, 0, ub=1000),
            Plan("cube", 36, device.cube_cores, floor.bytes, 0, l1=2000),
        ]
        for device in (Device(28, 56), Device(32, 64), Device(36, 72))
    }
    assert roofline_ascend.row(line, plans) == (
        "| `hc_mean` | 51.2 k | - | memory 0.032 us | memory 0.0128 us | 2.00 | 1 k | 2 k | 72 vector + 36 cube "
        "| 100% + 100% | 79/56/39% + 29/12/100% |\n"
    )


def test_a_line_without_a_plan_says_so() -> None:
    line = Line("hc_mean", "", "decode-1", least(find("hc_mean"), DECODE), None, "")
    assert roofline_ascend.row(line, None).endswith("us | - | - | - | - | - | - |\n")


def test_the_page_of_floors_is_current(repo_root: Path) -> None:
    text = (repo_root / "docs" / "ROOFLINE_ASCEND.md").read_text(encoding="utf-8")
    fix = "run python -m tools.kernels.roofline_ascend --write docs/ROOFLINE_ASCEND.md"
    assert roofline_ascend.page(roofline_ascend.every_line()) in text, fix


def test_every_launcher_states_a_plan() -> None:
    plans, why = roofline_ascend.planned()
    assert set(plans) == set(implementations()) and set(why) <= set(plans)
    assert set(plans) <= set(OP_TABLE)


def test_what_moves_far_more_than_the_floor_says_why() -> None:
    assert [line for line in roofline_ascend.every_line() if line.why == "no reason is given"] == []


def test_no_kernel_plans_less_than_the_floor() -> None:
    lines = roofline_ascend.every_line()
    assert [(x.op, x.site, x.phase) for x in lines if x.ratio is not None and x.ratio < 0.95] == []


def test_no_launch_has_more_blocks_than_cores_or_tasks() -> None:
    for key, by_device in roofline_ascend.launches().items():
        for device, plans in by_device.items():
            assert [plan.kind for plan in plans] == [plan.kind for plan in by_device[roofline_ascend.LARGEST]], key
            assert [plan for plan in plans if plan.blocks > min(plan.cores(device), plan.tasks)] == [], key
