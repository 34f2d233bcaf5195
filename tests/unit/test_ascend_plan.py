"""What the figures of a launch mean, by hand."""

from __future__ import annotations

import pytest

from tandem.backends.ascend.plan import EMULATED, Device, Plan, traffic

LARGE = Device(36, 72)


def test_a_vector_launch_counts_vector_cores() -> None:
    """100 rows on 72 cores: all have one, and 28 of them a second."""
    plan = Plan("vector", tasks=100, blocks=72, read=1000, written=500)
    assert plan.cores(LARGE) == 72 and plan.occupancy(LARGE) == 1
    assert plan.last_wave(LARGE) == pytest.approx(28 / 72)


def test_a_few_rows_leave_cores_idle() -> None:
    plan = Plan("vector", tasks=9, blocks=9, read=0, written=0)
    assert plan.occupancy(LARGE) == pytest.approx(9 / 72) and plan.last_wave(LARGE) == 1


@pytest.mark.parametrize("kind", ["cube", "mixed"])
def test_launches_with_a_cube_core_count_those(kind: str) -> None:
    """144 tiles are four for each of 36 cores; one more starts a fifth wave of its own."""
    full, more = (Plan(kind, tasks=n, blocks=36, read=0, written=0) for n in (144, 145))
    assert full.cores(LARGE) == 36 and full.last_wave(LARGE) == 1
    assert more.last_wave(LARGE) == pytest.approx(1 / 36)


def test_no_task_is_no_launch() -> None:
    plan = Plan("vector", tasks=0, blocks=0, read=0, written=0)
    assert plan.occupancy(LARGE) == 0 and plan.last_wave(LARGE) == 1


def test_traffic_is_that_of_all_launches() -> None:
    assert traffic([Plan("vector", 1, 1, 10, 1), Plan("cube", 1, 1, 200, 2)]) == (210, 3)
    assert traffic([]) == (0, 0)


def test_the_emulated_device_has_the_buffers_of_a_real_one() -> None:
    assert EMULATED == Device(2, 4, 253952, 524288, 65536, 65536, 262144)
