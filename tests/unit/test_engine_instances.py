"""Engines share nothing: not with each other, and not with the process they run in."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.engines import Job, Trace, World, jobs, same, tokens

from tandem.checkpoint.tiny import make_tiny
from tandem.sampling.params import SamplingParams

SECOND = {"text_config": {"sliding_window": 16, "swiglu_limit": 5.0, "moe_intermediate_size": 32, "index_topk": 8}}


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with other weights and other sizes."""
    path = tmp_path_factory.mktemp("second")
    make_tiny(path, 9, SECOND)
    return path


def test_two_models_step_by_step_in_turn(tiny: Path, second: Path, alone: list[Trace]) -> None:
    known = jobs()
    solo = World(second, {"cache.window_block": 4})
    want = [solo.run([job])[0] for job in known[:3]]
    assert want[0].result.token_ids != alone[0].result.token_ids
    first, other = World(tiny), World(second, {"cache.window_block": 4})
    ids = [(first.add(job), other.add(job)) for job in known[:3]]
    while not (first.engine.idle and other.engine.idle):
        for one in (first, other):
            if not one.engine.idle:
                one.step()
    for (a, b), expected, expected_other in zip(ids, alone, want, strict=False):
        same(first.recorder.trace(a), expected)
        same(other.recorder.trace(b), expected_other)


def test_closing_one_engine_leaves_the_other(tiny: Path, alone: list[Trace]) -> None:
    kept, closed = World(tiny), World(tiny)
    closed.run([jobs()[3]])
    request = kept.add(jobs()[0])
    kept.step()
    closed.llm.close()
    kept.finish()
    same(kept.recorder.trace(request), alone[0])


def process_state() -> dict[str, object]:
    """Everything of the process that an engine could change by accident."""
    return {
        "threads": torch.get_num_threads(),
        "interop": torch.get_num_interop_threads(),
        "dtype": torch.get_default_dtype(),
        "device": str(torch.get_default_device()),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch rng": torch.get_rng_state().tolist(),
        "numpy rng": repr(np.random.get_state()),
        "numpy errors": np.geterr(),
        "python rng": random.getstate(),
        "environment": dict(os.environ),
        "running": sorted(thread.name for thread in threading.enumerate()),
        "directory": os.getcwd(),
    }


@pytest.mark.parametrize("threads", [1, 2])
def test_building_and_running_changes_nothing_of_the_process(tiny: Path, threads: int) -> None:
    had = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float64)
    try:
        before = process_state()
        own = World(tiny)
        built = process_state()
        own.run([Job(tokens(1, 3), SamplingParams(max_tokens=1))])
        after = process_state()
        own.llm.close()
    finally:
        torch.set_num_threads(had)
        torch.set_default_dtype(torch.float32)
    assert built == before
    assert after == before


@pytest.mark.parametrize("setting", ["threads", "dtype", "seed"])
def test_what_the_process_sets_changes_no_bit(tiny: Path, alone: list[Trace], setting: str) -> None:
    had = torch.get_num_threads()
    state = torch.get_rng_state()
    try:
        if setting == "threads":
            torch.set_num_threads(2)
        elif setting == "dtype":
            torch.set_default_dtype(torch.float64)
        else:
            torch.manual_seed(123)
        # Few rows and tokens: on a busy machine two threads wait for each other a long time.
        known = jobs()[1]
        (got,) = World(tiny).run([Job(known.prompt, replace(known.params, max_tokens=1))])
    finally:
        torch.set_num_threads(had)
        torch.set_default_dtype(torch.float32)
        torch.set_rng_state(state)
    assert sorted(got.hidden) == list(range(3))
    assert got.hidden.items() <= alone[1].hidden.items()
    for position, logits in got.logits.items():
        np.testing.assert_array_equal(logits.view(np.uint32), alone[1].logits[position].view(np.uint32))
    assert got.result.token_ids == alone[1].result.token_ids[:1]
