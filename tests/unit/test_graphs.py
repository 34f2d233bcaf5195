"""Decode steps from graphs: the same tokens, on a host backend whose captures run nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import ROOMY
from support.graphs import GraphBackend
from support.runner import CompositeBackend

from tandem.config import load_config
from tandem.contract.backend import Backend
from tandem.engine.llm import LLM
from tandem.sampling.params import SamplingParams


def generate(path: Path, backend: Backend, prompts: list[list[int]], **options: Any) -> tuple[list[list[int]], LLM]:
    config = load_config(env={}, args={**ROOMY, "model.path": str(path), **options})
    llm = LLM(config=config, backend=backend)
    lengths = [3 + 4 * i for i in range(len(prompts))]
    params = [SamplingParams(max_tokens=n, temperature=0.8, seed=i, ignore_eos=True) for i, n in enumerate(lengths)]
    return [output.token_ids for output in llm.generate(prompts, params)], llm


def counts(llm: LLM) -> list[tuple[int, int]]:
    """Captures and replays of forwards and of draws."""
    runner = llm.engine._parts.runner
    return [(kind.captured, kind.replayed) for kind in (runner.graphs, runner.plain.captures)]


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(4)
    return [rng.integers(3, 200, 4 + i).tolist() for i in range(count)]


@pytest.mark.parametrize("drafts", [0, pytest.param(3, marks=pytest.mark.slow)], ids=["plain", "drafts"])
def test_graphs_give_the_tokens_of_steps_run_one_by_one(tiny: Path, drafts: int) -> None:
    """Requests end one after the other, so the number of rows falls through several sizes of graphs."""
    options = {"speculation.draft_tokens": drafts}
    expected, plain = generate(tiny, CompositeBackend(use_native=False), prompts(3), **options)
    backend = GraphBackend()
    found, llm = generate(tiny, backend, prompts(3), **options)
    assert found == expected
    captures, none = counts(llm), counts(plain)
    assert none == [(0, 0), (0, 0)]
    assert sum(captured for captured, _ in captures) == len(backend.graphs)
    assert sum(replayed for _, replayed in captures) == sum(graph.count for graph in backend.graphs)
    forwards, draws = captures
    assert forwards[1] > forwards[0] > 1
    assert draws == (0, 0) if drafts else draws[1] > draws[0] > 1


def test_the_first_step_of_a_shape_is_not_captured(tiny: Path) -> None:
    backend = GraphBackend()
    found, llm = generate(tiny, backend, prompts(1), **{"scheduler.max_slots": 1})
    # Of two decode steps of one row the first runs as usual, the second is captured and replayed.  The first token is
    # drawn after the prompt; of the others, the hidden state comes to the place of the graph for the last alone.
    assert len(found[0]) == 3 and counts(llm) == [(1, 1), (0, 0)]


def test_a_capture_runs_nothing(tiny: Path) -> None:
    backend = GraphBackend()
    counter = backend.from_host(np.zeros(4, dtype=np.int32))
    from tandem.contract.plan import Plan

    scatter = Plan(backend).bind("scatter_rows", "test")
    place, ones = (backend.from_host(np.array([v], dtype=np.int32)) for v in (2, 1))
    graph = backend.capture(lambda: scatter(counter, place, ones))
    assert counter.tolist() == [0, 0, 0, 0]
    place[0] = 1
    graph.replay()
    assert counter.tolist() == [0, 1, 0, 0]
