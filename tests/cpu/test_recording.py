"""Recorded decode steps: the same tokens as steps run call by call, in memory that is used again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import ROOMY

from tandem.backends.cpu import native, recording
from tandem.backends.cpu.backend import CpuBackend
from tandem.config import load_config
from tandem.contract.opspec import OpFunction
from tandem.contract.plan import Plan
from tandem.engine.llm import LLM
from tandem.errors import KernelError, LayoutError
from tandem.sampling.params import SamplingParams


class Watched(CpuBackend):
    """Sees every call, so that no step is recorded."""

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        return function


def generate(path: Path, backend: CpuBackend, count: int, **options: Any) -> tuple[list[list[int]], Any]:
    llm = LLM(config=load_config(env={}, args={**ROOMY, "model.path": str(path), **options}), backend=backend)
    rng = np.random.default_rng(4)
    prompts = [rng.integers(3, 200, 4 + 5 * i).tolist() for i in range(count)]
    params = [SamplingParams(max_tokens=6 + 5 * i, temperature=0.8, seed=i, ignore_eos=True) for i in range(count)]
    tokens = [output.token_ids for output in llm.generate(prompts, params)]
    return tokens, llm.engine._parts.runner.graphs


@pytest.mark.parametrize("drafts", [0, 3], ids=["plain", "drafts"])
def test_the_same_tokens(tiny: Path, drafts: int) -> None:
    """Requests end one after the other, so that several sizes of steps are recorded."""
    options = {"speculation.draft_tokens": drafts}
    expected, plain = generate(tiny, Watched(True), 3, **options)
    found, graphs = generate(tiny, CpuBackend(True), 3, **options)
    assert found == expected
    assert plain.captured == plain.replayed == 0
    assert graphs.captured > 1 and graphs.replayed > graphs.captured


def test_draws_of_fewer_requests_than_ran(tiny: Path) -> None:
    """With steps in flight a request that has stopped leaves a row: four rows and three draws, the last of row 3, where
    three draws have been recorded in steps of three rows."""
    options = {**ROOMY, "model.path": str(tiny), "scheduler.overlap": "on"}
    rng = np.random.default_rng(4)
    prompts = [rng.integers(3, 200, 9).tolist() for _ in range(4)]
    params = [SamplingParams(max_tokens=40, temperature=0.8, seed=i, ignore_eos=True) for i in range(4)]
    alone = LLM(config=load_config(env={}, args={**options, "scheduler.overlap": "off"}), backend=Watched(True))
    expected = [alone.generate([prompt], own)[0].token_ids for prompt, own in zip(prompts, params, strict=True)]
    place = next(i for i in range(19, 22) if expected[0][i] not in expected[0][:i])
    params[0] = dataclasses.replace(params[0], stop_token_ids=(expected[0][place],))
    expected[0] = expected[0][: place + 1]
    llm = LLM(config=load_config(env={}, args=options), backend=CpuBackend(True))
    ids = [llm.submit(prompt, own) for prompt, own in zip(prompts[:3], params[:3], strict=True)]
    found = {}
    for step in range(200):
        if step == place - 4:  # by then both recordings of three rows of this width are there
            ids.append(llm.submit(prompts[3], params[3]))
        found |= {piece.request_id: piece.output.token_ids for piece in llm.engine.step() if piece.output}
    assert [found[request] for request in ids] == expected
    assert llm.engine._parts.runner.plain.captures.replayed > 10


def test_a_recorded_step_reads_its_arrays_anew() -> None:
    backend = CpuBackend(True)
    scatter = Plan(backend).bind("scatter_rows", "test")
    counter = backend.from_host(np.zeros(4, dtype=np.int32))
    place, ones = (backend.from_host(np.array([value], dtype=np.int32)) for value in (2, 1))
    graph = backend.capture(lambda: scatter(counter, place, ones))
    assert counter.tolist() == [0, 0, 0, 0]
    place[0] = 1
    graph.replay()
    graph.replay()
    assert counter.tolist() == [0, 1, 0, 0]


def test_torch_may_not_compute_while_a_step_is_recorded() -> None:
    backend, x = CpuBackend(True), torch.ones(3)
    with pytest.raises(KernelError, match="torch operation aten.add"):
        backend.capture(lambda: x[1:] + 1)
    native.run("quantize", torch.ones((1, 32), dtype=torch.bfloat16), *_codes(), 1, 32, 2)  # runs again at once


def _codes() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty((1, 32), dtype=torch.uint8), torch.empty((1, 1), dtype=torch.uint8)


def test_a_refused_call_stops_the_step_and_is_named() -> None:
    backend = CpuBackend(True)
    gather = Plan(backend).bind("gather_rows", "test")
    x, index = torch.arange(6).view(3, 2), torch.tensor([2, 0], dtype=torch.int32)
    kept: list[torch.Tensor] = []
    graph = backend.capture(lambda: kept.append(gather(gather(x, index), index[1:])))
    graph.replay()
    assert kept[0].tolist() == [[4, 5]]
    index[0] = 7
    with pytest.raises(LayoutError, match=r"(?s)gather_rows.*int64 \[3, 2\].*out of range"):
        graph.replay()


def test_memory_of_dropped_arrays_is_used_again() -> None:
    memory = recording.Memory()
    first = memory.empty((1000,), torch.float32)
    place = first.data_ptr()
    view = first[10:]
    del first
    assert memory.empty((1000,), torch.float32).data_ptr() != place  # a view keeps it
    del view
    again = memory.empty((500,), torch.float32)
    rest = memory.empty((400,), torch.float32)
    assert {again.data_ptr(), rest.data_ptr()} >= {place}
    assert all(memory.holds(array.data_ptr()) and array.data_ptr() % 64 == 0 for array in (again, rest))
    del again, rest
    whole = memory.empty((recording.CHUNK // 4,), torch.float32)
    assert memory.nbytes < 2 * recording.CHUNK and memory.holds(whole.data_ptr())


def test_a_step_takes_no_more_memory_than_its_arrays_at_one_time() -> None:
    backend = CpuBackend(True)
    norm = Plan(backend).bind("rms_norm", "test", quant=False)
    x = torch.ones((256, 1024), dtype=torch.bfloat16)

    def chain() -> None:
        y = x
        for _ in range(50):
            y, _ = norm(y, None, 1e-6, False)

    graph = backend.capture(chain)
    assert len(graph) == 50  # type: ignore[arg-type]
    assert backend._step_memory().nbytes <= 3 * x.nbytes + recording.CHUNK


def test_engines_that_share_a_backend(tiny: Path) -> None:
    """Each writes its steps down in memory of its own: with steps in flight they run at the same time."""
    backend, rng = CpuBackend(True), np.random.default_rng(4)
    prompts = [rng.integers(3, 200, 9 + i).tolist() for i in range(3)]
    params = [SamplingParams(max_tokens=30, temperature=0.8, seed=i, ignore_eos=True) for i in range(3)]
    options = {**ROOMY, "model.path": str(tiny), "scheduler.overlap": "on"}
    one, two = (LLM(config=load_config(env={}, args=options), backend=backend) for _ in range(2))
    ids = [[llm.submit(*given) for given in zip(prompts, params, strict=True)] for llm in (one, two)]
    found: list[dict[int, Any]] = [{}, {}]
    for _ in range(200):
        for outputs, llm in zip(found, (one, two), strict=True):
            outputs |= {piece.request_id: piece.output.token_ids for piece in llm.engine.step() if piece.output}
    alone = LLM(config=load_config(env={}, args=options), backend=Watched(True))
    expected = [output.token_ids for output in alone.generate(prompts, params)]
    assert [[outputs[i] for i in own] for outputs, own in zip(found, ids, strict=True)] == [expected, expected]
