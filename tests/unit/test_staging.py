"""Arrays that the host hands to the device: whoever reads them late, or writes to them soon, changes nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from support.engines import ROOMY, tokens

from tandem.backends.cpu.backend import CpuBackend
from tandem.config import load_config
from tandem.engine.llm import LLM
from tandem.sampling.params import SamplingParams

Result = TypeVar("Result")


class Recycling(CpuBackend):
    """Fills what it was given with 0xFF as soon as the copy is said to be made."""

    def __init__(self) -> None:
        super().__init__(use_native=True)
        self._recycled = 0

    def from_host(self, array: np.typing.NDArray[Any], out: torch.Tensor | None = None) -> torch.Tensor:
        staged = np.array(array)
        found = super().from_host(staged, out)
        staged.reshape(-1).view(np.uint8).fill(0xFF)
        self._recycled += 1
        return found


class LateLane:
    """Runs each call only when somebody needs what it, or one behind it, gives: the host is ahead as far as can be."""

    def __init__(self) -> None:
        self.queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.most = 0

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = _Late(self)
        self.queue.append((future, call))
        self.most = max(self.most, len(self.queue))
        return future

    def run_to(self, wanted: Future[Any]) -> None:
        while not wanted.done():
            future, call = self.queue.popleft()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

    def close(self) -> None:
        pass


class _Late(Future[Result]):
    def __init__(self, lane: LateLane) -> None:
        super().__init__()
        self._lane = lane

    def result(self, timeout: float | None = None) -> Result:
        self._lane.run_to(self)
        return super().result(timeout)


def outputs(path: Path, options: dict[str, Any], late: bool = False) -> tuple[list[tuple[int, ...]], LLM, int]:
    backend = Recycling() if options else CpuBackend(use_native=True)
    args = {**ROOMY, "scheduler.max_slots": 3, **options, "model.path": str(path)}
    llm = LLM(config=load_config(env={}, args=args), backend=backend)
    lane = LateLane()
    if late:
        llm.engine._parts.runner.lane.close()
        llm.engine._parts.runner.lane = lane
    prompts = [tokens(n, n) for n in (40, 3, 75, 9, 21, 33)]  # three slots: the others take places that were left
    params = [SamplingParams(temperature=n % 2, seed=n, max_tokens=9 + n, ignore_eos=True) for n in range(6)]
    found = [output.token_ids for output in llm.generate(prompts, params)]
    if options:
        assert isinstance(backend, Recycling) and backend._recycled > 100
    return found, llm, lane.most


@pytest.fixture(scope="module")
def want(tiny: Path) -> list[tuple[int, ...]]:
    """Tokens of an engine that does one thing after another."""
    found, llm, _ = outputs(tiny, {})
    llm.close()
    return found


@pytest.mark.parametrize("overlap", ["off", "on", "late"])
def test_staging_arrays_are_recycled_at_once(tiny: Path, want: list[tuple[int, ...]], overlap: str) -> None:
    """With preemption, a prefix cache and drafts, which all send more than rows."""
    options = {
        "scheduler.overlap": "off" if overlap == "off" else "on",
        "cache.num_blocks": 9,
        "cache.prefix": "on",
        "scheduler.max_chunk": 16,
        "speculation.draft_tokens": 3,
        "speculation.accept": "coupled",
    }
    got, llm, most = outputs(tiny, options, overlap == "late")
    assert got == want
    # Both parts of a step whose rows the host knows, and the first of the next; the lane of the engine counts nothing.
    assert most == (3 if overlap == "late" else 0)
    assert llm.engine.stats.preemptions > 0
    llm.close()
