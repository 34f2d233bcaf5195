"""Steps that fail on the device, at any op: the next call retries, and the tokens are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.engines import ROOMY, tokens

from tandem.backends.cpu.backend import CpuBackend
from tandem.checkpoint.tiny import make_tiny
from tandem.config import load_config
from tandem.conformance.engine_harness import MODEL
from tandem.contract.opspec import OpFunction
from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.sampling.params import SamplingParams

PROMPTS = (40, 3, 75, 9)  # tokens; two slots, so two requests wait
OPTIONS = {
    **ROOMY, "scheduler.max_chunk": 16, "scheduler.max_slots": 2, "cache.num_blocks": 8, "cache.block_size": 16,
}  # fmt: skip


class Places:
    """Where to fail: (op, n) for the nth call of an op, counted from the failure before."""

    def __init__(self, places: list[tuple[str, int]]) -> None:
        self._left = list(places)
        self._calls = 0

    def visit(self, op: str) -> None:
        if self._left and self._left[0][0] == op:
            self._calls += 1
            if self._calls == self._left[0][1]:
                self._calls = 0
                self._left.pop(0)
                raise OSError(f"{op} failed")


class Failing(CpuBackend):
    """The CPU backend, failing where it is told to."""

    def __init__(self) -> None:
        super().__init__(use_native=True)
        self.places = Places([])

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.places.visit(op)
            return function(*args, **kwargs)

        return call


def run(path: Path, places: list[tuple[str, int]]) -> tuple[list[RequestOutput], int]:
    """Outputs of all prompts, and how many steps failed."""
    backend = Failing()
    llm = LLM(config=load_config(env={}, args={**OPTIONS, "model.path": str(path)}), backend=backend)
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=9, ignore_eos=True)
    ids = [llm.submit(tokens(n, n), params) for n in PROMPTS]
    backend.places = Places(places)
    outputs: dict[int, RequestOutput] = {}
    failures = 0
    while not llm.engine.idle:
        try:
            outputs |= {piece.request_id: piece.output for piece in llm.engine.step() if piece.output}
        except OSError:
            failures += 1
    parts = llm._assembly
    assert parts.pools.main.num_available == 8 and parts.table.num_free == 2
    return [outputs[request] for request in ids], failures


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    make_tiny(folder, 0, MODEL)
    return folder


def test_a_step_that_fails_at_any_op_is_retried(path: Path) -> None:
    """Uploads of tables and of admitted requests, rings of prompts and of decode rows, the draw, the hand-over."""
    want, _ = run(path, [])
    places = [
        ("scatter_rows", 1), ("embed", 1), ("compress_update", 1), ("moe_block", 3), ("aux.step_inputs", 2),
        ("engram_context", 1), ("attn_block", 2), ("sample", 2), ("scatter_rows", 2), ("aux.accept", 1),
        ("scatter_rows", 3), ("linear", 40), ("scatter_rows", 1), ("hc_step", 9), ("gather_rows", 2),
        ("scatter_rows", 4), ("scatter_rows", 5),
    ]  # fmt: skip
    got, failures = run(path, places)
    assert failures == len(places)
    assert [output.token_ids for output in got] == [output.token_ids for output in want]
    assert all(len(output.token_ids) == 9 and output.error is None for output in got)
