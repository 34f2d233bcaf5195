"""Engines on the tiny checkpoint whose every row and logit is written down while they run."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.tiny import memory

from tandem.config import load_config
from tandem.contract.types import Rows
from tandem.engine.draws import Draws
from tandem.engine.engine import Engine
from tandem.engine.llm import LLM
from tandem.engine.outputs import LiveRequest, RequestOutput, StreamPiece
from tandem.engine.plan import StepPlan
from tandem.engine.runner import StepHandle
from tandem.engine.step import BuiltStep, HostStep
from tandem.model.step import StepInput
from tandem.sampling.params import SamplingParams

ROOMY: Mapping[str, Any] = {
    "model.max_model_len": 256,
    "backend.name": "cpu",
    "cache.block_size": 16,
    "cache.window_block": 8,
    "scheduler.max_slots": 8,
    "scheduler.max_tokens_per_step": 128,
    "scheduler.max_chunk": 64,
    "cache.prefix": "off",
    "speculation.draft_tokens": 0,
    "scheduler.turn_ms": 1_000_000,  # turns as long as they may be, whatever a step takes
}


@dataclass(frozen=True)
class Job:
    """One request: token ids, parameters, keywords of `Engine.add_request`, the step before which it arrives."""

    prompt: Sequence[int]
    params: SamplingParams
    extras: Mapping[str, Any] = field(default_factory=dict)
    arrival: int = 0


@dataclass
class Trace:
    """What a request did: hidden rows (bf16 bits) and raw logits by absolute position, pieces and result."""

    hidden: dict[int, bytes] = field(default_factory=dict)
    logits: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    pieces: list[StreamPiece] = field(default_factory=list)
    output: RequestOutput | None = None

    @property
    def result(self) -> RequestOutput:
        assert self.output is not None
        return self.output

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True)
class Seen:
    """What a step ran on: hidden rows, and positions and whether it counts of each row."""

    hidden: torch.Tensor
    positions: npt.NDArray[np.int32]
    alive: npt.NDArray[np.bool_]


class Recorder:
    """Stands in for the engine's runner; rows that run again must give the bits they gave before."""

    def __init__(self, engine: Engine) -> None:
        self.traces: dict[int, Trace] = {}
        self.plans: list[StepPlan] = []
        self.chunks: list[tuple[int, int, int]] = []  # request id, first position, rows
        self.padding = 0  # padding rows to add to each step
        self._runner, self._key = engine._parts.runner, None
        self.model, self.builder = self._runner.model, self._runner.builder
        self._build = self.builder.build
        self._inputs: dict[Any, Rows] = {}  # of steps that are captured, whose input is not made again
        self._steps: list[Seen] = []  # of the turn that runs
        self._run_step = self._runner._hidden
        self._runner._hidden = self._watch  # type: ignore[method-assign]
        self._runner.model = self  # type: ignore[assignment]
        self._runner.builder = self  # type: ignore[assignment]
        engine._parts.runner = self  # type: ignore[assignment]

    def trace(self, request_id: int) -> Trace:
        return self.traces.setdefault(request_id, Trace())

    # -- the runner ----------------------------------------------------------------------------

    def launch(self, plan: StepPlan, live: Mapping[int, LiveRequest]) -> StepHandle:
        self._steps.clear()
        handle = self._runner.launch(plan, live)
        assert len(self._steps) == plan.steps
        self.plans.append(plan)
        for entry, slot in enumerate(plan.slots.tolist()):
            self.chunks.append((live[slot].request_id, int(plan.starts[entry]), int(plan.num_rows[entry])))
        for number, step in enumerate(self._steps):
            self._note_rows(plan, live, step)
            if handle.draws is not None:
                self._note_logits(plan, live, step, handle.draws, number)
        return handle

    def _watch(self, step: BuiltStep) -> torch.Tensor:
        hidden = self._run_step(step)
        rows = self._inputs[self._key]
        self._steps.append(Seen(hidden.clone(), rows.positions.numpy().copy(), (rows.slot >= 0).numpy().copy()))
        return hidden

    def _note_rows(self, plan: StepPlan, live: Mapping[int, LiveRequest], step: Seen) -> None:
        first = plan.row_ends - plan.num_rows
        for entry, slot in enumerate(plan.slots.tolist()):
            trace, start = self.trace(live[slot].request_id), int(first[entry])
            for row in range(start, start + int(plan.num_rows[entry])):
                if step.alive[row]:
                    bits = step.hidden[row].contiguous().view(torch.uint8).numpy().tobytes()
                    assert trace.hidden.setdefault(int(step.positions[row]), bits) == bits, "a row changed"

    def _note_logits(
        self, plan: StepPlan, live: Mapping[int, LiveRequest], step: Seen, draws: Draws, number: int
    ) -> None:
        """Logits before rules change them, of step ``number`` of a turn."""
        with torch.inference_mode():
            logits = self.model.logits(step.hidden, torch.from_numpy(draws.rows)).numpy()
        for row, entry in enumerate(draws.entries.tolist()):
            if not step.alive[plan.row_ends[entry] - 1]:
                continue
            request, drawn = live[int(plan.slots[entry])].request_id, int(plan.ends[entry]) + number
            known = self.trace(request).logits.setdefault(drawn, logits[row])
            np.testing.assert_array_equal(known, logits[row], err_msg="logits changed")

    # -- the builder ---------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        return getattr(self.builder, name)

    def build(self, plan: StepPlan, host: HostStep, repeat: bool = False) -> BuiltStep:
        built = self._build(plan, host, repeat and not self.padding)

        def make() -> StepInput:
            step = built.make()
            self._inputs[built.key] = step.rows
            return pad_step(step, self.padding) if self.padding else step

        self._key = built.key
        return dataclasses.replace(built, make=make)

    # -- the model -----------------------------------------------------------------------------

    def remember(self, rows: Rows) -> None:
        self.model.remember(rows)

    def forward(self, step: StepInput) -> torch.Tensor:
        return self.model.forward(step)

    def logits(self, hidden: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden, index)

    def draw_tokens(self, *args: Any) -> torch.Tensor:
        return self.model.draw_tokens(*args)


def pad_step(step: StepInput, count: int) -> StepInput:
    """The step with ``count`` padding rows at its end."""
    own = torch.arange(step.rows.ids.shape[0], step.rows.ids.shape[0] + count, dtype=torch.int32)
    zeros = torch.zeros(count, dtype=torch.int32)
    extra = {"ids": zeros, "positions": zeros, "slot": zeros - 1, "roles": zeros}
    extra |= {"chunk_start": own, "chunk_end": own + 1}
    rows = Rows(**{name: torch.cat((getattr(step.rows, name), extra[name])) for name in extra})
    values = {name: getattr(step, name) for name in StepInput.__slots__}
    if step.override_index is not None:
        values["override_index"] = torch.cat((step.override_index, zeros - 1))
    return StepInput(**values | {"rows": rows})


def drive(engine: Engine, jobs: Sequence[Job], add: Callable[[Job], int], step: Callable[[], None]) -> list[int]:
    """Run jobs to their end, each added before the step that it names; their request ids, in order."""
    ids: dict[int, int] = {}
    now = 0
    while len(ids) < len(jobs) or not engine.idle:
        for place, job in enumerate(jobs):
            if place not in ids and job.arrival <= now:
                ids[place] = add(job)
        step()
        now += 1
    return [ids[place] for place in range(len(jobs))]


class World:
    """A recorded engine.

    Args:
        path: checkpoint directory.
        options: engine options that differ from `ROOMY`.
    """

    def __init__(self, path: Path, options: Mapping[str, Any] | None = None) -> None:
        self.llm = LLM(config=load_config(env={}, args={**ROOMY, **(options or {}), "model.path": str(path)}))
        self.engine = self.llm.engine
        self.parts = self.engine._parts
        self.recorder = Recorder(self.engine)
        self.least_free = self.parts.pools.main.num_blocks

    def add(self, job: Job) -> int:
        return self.engine.add_request(job.prompt, job.params, **job.extras)

    def take(self, pieces: Sequence[StreamPiece]) -> None:
        self.least_free = min(self.least_free, self.parts.pools.main.num_available)
        for piece in pieces:
            trace = self.recorder.trace(piece.request_id)
            trace.pieces.append(piece)
            trace.output = piece.output or trace.output

    def step(self) -> None:
        self.take(self.engine.step())

    def finish(self) -> None:
        """Step until nothing is left; every block and slot is free then."""
        while not self.engine.idle:
            self.step()
        self.check_clean()

    def check_clean(self) -> None:
        for pool in self.parts.pools:
            assert pool.num_available == pool.num_blocks
        assert self.parts.table.num_free == self.parts.table.max_slots
        assert self.parts.scheduler.idle and self.parts.scheduler.in_flight == 0

    def run(self, jobs: Sequence[Job], step: Callable[[], None] | None = None) -> list[Trace]:
        """Run jobs to their end; traces in the order of the jobs."""
        ids = drive(self.engine, jobs, self.add, step or self.step)
        self.check_clean()
        return [self.recorder.trace(request) for request in ids]

    def poison(self) -> None:
        """Fill all cache and state memory with 0xFF."""
        for tensor in memory(self.parts.model.caches):
            tensor.view(torch.uint8).fill_(0xFF)


def deliver(engine: Engine, handle: StepHandle) -> list[StreamPiece]:
    """Deliver a step and return what it added."""
    engine._deliver(handle)
    return engine._collect(wait=True)


class Overlap:
    """Drives an engine with two steps in flight: a step is launched before the one before it is delivered."""

    def __init__(self, world: World) -> None:
        self.world, self.flying = world, deque[StepHandle]()
        self.from_device = 0  # rows that took their token from the device
        self.most = 0

    def launch(self) -> None:
        engine, world = self.world.engine, self.world
        world.take(engine._fill_slots())
        plan = world.parts.scheduler.schedule()
        if len(plan):
            self.flying.append(world.parts.runner.launch(plan, engine._live))
            self.from_device += int(plan.from_device.sum())
        self.most = max(self.most, len(self.flying))

    def deliver(self) -> None:
        self.world.take(deliver(self.world.engine, self.flying.popleft()))

    def step(self) -> None:
        if len(self.flying) < 2:
            self.launch()
        if len(self.flying) == 2 or (self.flying and self._nothing_to_launch()):
            self.deliver()
        while self.flying and self.world.engine.idle:
            self.deliver()

    def _nothing_to_launch(self) -> bool:
        before = len(self.flying)
        if before < 2:
            self.launch()
        return len(self.flying) == before


def same(got: Trace, want: Trace) -> None:
    """Bitwise: tokens, text, logprobs, every hidden row and every logit."""
    a, b = got.result, want.result
    assert (a.token_ids, a.finish_reason, a.stop_reason) == (b.token_ids, b.finish_reason, b.stop_reason)
    assert a.logprobs == b.logprobs
    assert got.text == want.text == a.text
    assert sorted(got.logits) == sorted(want.logits)
    for position, logits in want.logits.items():
        np.testing.assert_array_equal(got.logits[position].view(np.uint32), logits.view(np.uint32))
    assert got.hidden == want.hidden


def same_all(got: Sequence[Trace], want: Sequence[Trace]) -> None:
    for one, other in zip(got, want, strict=True):
        same(one, other)


def tokens(seed: int, count: int) -> list[int]:
    """Ordinary token ids."""
    return np.random.default_rng(seed).integers(3, 470, count).tolist()


def jobs() -> list[Job]:
    """Five requests of different lengths and ways to draw; none ends before its max_tokens."""
    fixed: dict[str, Any] = {"ignore_eos": True}
    return [
        Job(tokens(1, 40), SamplingParams(temperature=0.0, max_tokens=12, logprobs=2, **fixed)),
        Job(tokens(2, 3), SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=20, **fixed)),
        Job(tokens(3, 75), SamplingParams(temperature=1.0, top_k=20, seed=6, max_tokens=8, **fixed)),
        Job(tokens(4, 1), SamplingParams(temperature=1.3, seed=2**63 + 9, max_tokens=14, **fixed)),
        Job(
            tokens(5, 17),
            SamplingParams(
                temperature=0.7, seed=7, max_tokens=17, min_tokens=3, logprobs=1, processed_logprobs=True,
                logit_bias={40: 4.0, 41: float("-inf"), 50: -1.5}, **fixed,
            ),
        ),
    ]  # fmt: skip


def arriving(order: Sequence[int], gap: int, known: Sequence[Job] | None = None) -> Iterator[Job]:
    """Known jobs (default: `jobs`) in another order, one every ``gap`` steps."""
    known = known or jobs()
    for place, index in enumerate(order):
        job = known[index]
        yield Job(job.prompt, job.params, job.extras, place * gap)
