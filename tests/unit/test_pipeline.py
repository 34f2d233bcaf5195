"""Scheduling ahead of a device, over random schedules; see `support.pipeline`."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.engines import ROOMY, tokens
from support.pipeline import Life

from tandem.cache.pool import BlockPool
from tandem.cache.space import Pools, Tables
from tandem.cache.tables import BlockTable, WindowGeometry, WindowTable
from tandem.config import load_config
from tandem.engine.fits import check_limits
from tandem.engine.llm import LLM
from tandem.engine.plan import SchedulerLimits
from tandem.errors import ConfigError
from tandem.sampling.params import SamplingParams


def live(seed: int) -> Life:
    life = Life(seed)
    try:
        life.run()
    except Exception as error:
        error.add_note(f"seed {seed}, after {life.steps} steps")
        raise
    return life


def test_random_schedules() -> None:
    lives = [live(seed) for seed in range(400)]
    # The lives are varied enough to mean something.
    assert sum(life.preemptions for life in lives) > 30
    assert sum(life.accepted for life in lives) > 200
    assert sum(life.failed for life in lives) > 30
    assert sum(life.prefix is not None and life.prefix.stats().hits for life in lives) > 25
    ends = [job.ended for life in lives for job in life.jobs]
    assert min(ends.count(how) for how in ("finished", "cancelled", "late stop")) > 30


def live_all(first: int, count: int) -> int:
    return sum(live(seed).steps for seed in range(first, first + count))


@pytest.mark.slow
def test_a_hundred_thousand_random_schedules() -> None:
    """About ten minutes of one core, shared among those there are."""
    starts = range(1_000, 101_000, 2_500)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        assert sum(pool.map(live_all, starts, [2_500] * len(starts))) > 500_000


def output(path: Path, fail_at: int) -> tuple[list[tuple[int, ...]], int]:
    """Tokens of three requests in an overlapping engine, and how many steps ran behind one whose draw had failed."""
    llm = LLM(config=load_config(env={}, args={**ROOMY, "model.path": str(path), "scheduler.overlap": "on"}))
    try:
        runner = llm._assembly.runner
        draw, build = runner._draw, runner.builder.build
        draws, behind, failed = 0, 0, False

        def failing_draw(*args: Any) -> Any:
            nonlocal draws, failed
            draws += 1
            if draws == fail_at:
                failed = True
                raise OSError("no power")
            return draw(*args)

        def counting_build(*args: Any, **options: Any) -> Any:
            nonlocal behind
            behind += failed
            return build(*args, **options)

        runner._draw, runner.builder.build = failing_draw, counting_build  # type: ignore[method-assign]
        params = SamplingParams(temperature=0.8, seed=4, max_tokens=8, ignore_eos=True)
        ids = [llm.submit(tokens(n, n), params) for n in (20, 3, 9)]
        outputs = {}
        while not llm.engine.idle:
            try:
                outputs |= {piece.request_id: piece.output for piece in llm.engine.step() if piece.output}
            except OSError:
                assert failed
                failed = False
        return [outputs[request].token_ids for request in ids], behind
    finally:
        llm.close()


def test_nothing_runs_behind_a_step_that_failed(tiny: Path) -> None:
    want, _ = output(tiny, 0)
    assert output(tiny, 4) == (want, 0)


def test_a_window_pool_must_hold_a_request_with_its_drafts() -> None:
    """Otherwise a decode entry could never be placed, and nothing would ever move."""
    geometry = WindowGeometry(2, 1, 8, 2, 1)
    assert geometry.pages(3) == geometry.pages(1) + 2
    tables, limits = Tables(BlockTable(1, 8, 4), WindowTable(1, geometry)), SchedulerLimits(8, 8, 1, 1, 2)
    with pytest.raises(ConfigError, match="cannot serve one request"):
        check_limits(Pools(BlockPool(8), BlockPool(geometry.pages(3) - 1)), tables, limits)
    check_limits(Pools(BlockPool(8), BlockPool(geometry.pages(3))), tables, limits)
