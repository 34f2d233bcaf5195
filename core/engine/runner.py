"""Runs one step of a model on a backend: forward (rows to hidden) and draw (logits to tokens and drafts)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

import numpy as np
import torch

from tandem.contract.backend import Backend, HostFuture
from tandem.contract.host_memory import HostArray
from tandem.contract.plan import Plan
from tandem.engine.captures import Captures
from tandem.engine.drafting import Drafting
from tandem.engine.draws import DrawBuilder, Draws
from tandem.engine.lane import InlineLane, Lane
from tandem.engine.outputs import LiveRequest
from tandem.engine.plain_draws import PlainDraws
from tandem.engine.plan import Int32, StepPlan
from tandem.engine.prompts import PromptRows, PromptScores, Scored
from tandem.engine.requests import RequestTable
from tandem.engine.speculation import SpeculationBook
from tandem.engine.step import BuiltStep, HostStep, StepBuilder
from tandem.model.registry import Model
from tandem.sampling.sampler import Drafts, Drawn, Sampler

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The forward part of a step, queued on the device.

    Args:
        hidden: bf16 [T, H], those of padding at the end.
        repeats: whether it comes to the same address with every step of its kind.
        counts: rows that each speculative entry got, under way; None without any.
        seconds: host time of queueing (on a CPU: of computing).
    """

    hidden: Tensor
    repeats: bool
    counts: HostFuture | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Queued:
    """The draw part of a step, queued on the device; the host copies are under way.

    Args:
        drawn: tokens and logprobs; None when nothing draws.
        emitted: tokens emitted by each segment, int32 [n].
        drafts, rates: int32 and f32 [n, B], the next drafts and their rates; None without speculation.
        scored: logprobs of prompts.
        seconds: host time of queueing.
        forward_s: host time of queueing the forward parts of the steps behind the first, in a turn.
    """

    drawn: Drawn | None
    emitted: HostFuture | None
    drafts: HostFuture | None
    rates: HostFuture | None
    scored: list[Scored]
    seconds: float
    forward_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnCopy:
    """What every step of a turn copied to the host, [n] each, as [n, steps]."""

    parts: list[HostFuture]

    def ready(self) -> bool:
        """Whether all have come."""
        return all(part.ready() for part in self.parts)

    def result(self) -> Int32:
        """Wait for them."""
        return np.stack([part.result() for part in self.parts], axis=1)


class StepHandle:
    """A step or turn under way.

    Args:
        plan: its rows.
        host: what the host sent.
        forward: the forward part.
    """

    def __init__(self, plan: StepPlan, host: HostStep, forward: Future[Forwarded]) -> None:
        self.plan, self.host, self.forward = plan, host, forward
        self.draws: Draws | None = None
        self.queued: Future[Queued] | None = None

    def emitted(self) -> tuple[Int32, Int32]:
        """Tokens int32 [n, m] (-1 beyond what was emitted) and how many, int32 [n].  Waits for the device."""
        queued = self.result()
        if self.draws is None or queued.drawn is None or queued.emitted is None:
            return np.empty((0, 1), dtype=np.int32), np.empty(0, dtype=np.int32)
        counts = queued.emitted.result()
        return self.draws.table(queued.drawn.host_tokens.result()), counts

    def wait(self) -> None:
        """Wait until nothing of the step runs any more, whether it failed or not."""
        wait([self.forward])
        if self.queued is not None:
            wait([self.queued])

    def result(self) -> Queued:
        """The draw part.  Waits until it is queued."""
        if self.queued is None:
            raise AssertionError("a step was asked for its tokens before it drew")
        return self.queued.result()


class ModelRunner:
    """Queues steps; what it returns are futures, so that the next step can be queued before they resolve.

    Args:
        model: a loaded model.
        plan: the plan its ops were bound by.
        builder: makes step inputs.
        table: the requests.
        vocab_size: rows of the logits.
        book: the host's side of drafts; None without speculation.
        coupled: see `Sampler`.
        lane: where calls to the device run.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        builder: StepBuilder,
        table: RequestTable,
        vocab_size: int,
        book: SpeculationBook | None = None,
        coupled: bool = False,
        lane: Lane | None = None,
    ) -> None:
        self.model, self.builder, self.lane = model, builder, lane or InlineLane()
        self._backend: Backend = plan.backend
        self._sampler = Sampler(plan, coupled)
        words = -(-vocab_size // 32)
        self.draws = DrawBuilder(table, book, words)
        self.graphs = Captures(plan.backend, plan.graphs)
        self._scores = PromptScores(plan, table, self._sampler)
        self._accept = plan.bind("aux.accept", "step")
        self.plain = PlainDraws(plan, builder, self._sampler, table.max_slots)
        self._drafting = None if builder.drafts is None else Drafting(plan, model, builder, table, self._sampler, words)

    def launch(self, plan: StepPlan, live: Mapping[int, LiveRequest]) -> StepHandle:
        """Queue one step, both parts, or the steps of a turn.

        Args:
            plan: a plan that is not empty; all steps before it are delivered, or nothing on the host needs them.
            live: running requests by slot.
        Raises:
            Exception: whatever the backend raises.
        """
        handle = self.forward(plan)
        try:
            handle.forward.result()
            self.draw(handle, live)
            first = handle.result()
            if plan.steps > 1:
                handle.queued = self.lane.submit(lambda: self._follow(handle, first))
                handle.result()
        except BaseException:
            self.builder.unbuilt(handle.host)
            raise
        return handle

    def forward(self, plan: StepPlan, behind: StepHandle | None = None) -> StepHandle:
        """Queue the forward part of a step.

        Args:
            plan: its rows.
            behind: the step in flight before it, whose draw part is queued.  If that fails this one fails too: it
                would run on tables and tokens that it was not built for, and write where it must not.
        """
        host = self.builder.prepare(plan)

        def run() -> Forwarded:
            if behind is not None:
                behind.result()
            return self._forward(plan, host)

        return StepHandle(plan, host, self.lane.submit(run))

    def draw(self, handle: StepHandle, live: Mapping[int, LiveRequest]) -> None:
        """Queue the draw part of a step; every step before it must have been delivered.  Waits for the row counts."""
        counts = handle.forward.result().counts if handle.plan.speculative else None
        draws = self.draws.build(handle.plan, None if counts is None else counts.result(), live)
        prompts = self._scores.rows(handle.plan, live)
        handle.draws = draws
        handle.queued = self.lane.submit(lambda: self._draw(handle.forward.result(), draws, prompts))

    @torch.inference_mode()
    def _forward(self, plan: StepPlan, host: HostStep) -> Forwarded:
        start = time.perf_counter()
        step = self.builder.build(plan, host, repeat=self.graphs.enabled)
        for rows in self.builder.resumed_rows(host):
            self.model.remember(rows)

        hidden = self._hidden(step)
        return Forwarded(hidden, self.graphs.repeats(step.key), step.counts, time.perf_counter() - start)

    def _hidden(self, step: BuiltStep) -> Tensor:
        def forward() -> Tensor:
            return self.model.forward(step.make())

        return forward() if step.key is None else self.graphs.run(step.key, forward)

    @torch.inference_mode()
    def _follow(self, handle: StepHandle, first: Queued) -> Queued:
        """Queue the steps of a turn behind its first; each takes from the device what the one before drew."""
        draws = handle.draws
        if draws is None or not draws.plain or first.drawn is None:
            raise AssertionError("a turn was planned for draws that need the host")
        started = time.perf_counter()
        step = self.builder.build(handle.plan, handle.host.following(), repeat=self.graphs.enabled)
        tokens, forward_s = [first.drawn.host_tokens], time.perf_counter() - started
        for _ in range(1, handle.plan.steps):
            start = time.perf_counter()
            hidden = self._hidden(step)
            forward_s += time.perf_counter() - start
            tokens.append(self.plain.run_on(self.model, hidden, self.graphs.repeats(step.key)))
        drawn = replace(first.drawn, host_tokens=TurnCopy(tokens))
        emitted = HostArray(draws.counts * np.int32(handle.plan.steps))
        seconds = first.seconds + time.perf_counter() - started - forward_s
        return Queued(drawn, emitted, None, None, first.scored, seconds, forward_s)

    @torch.inference_mode()
    def _draw(self, forwarded: Forwarded, draws: Draws | None, prompts: list[PromptRows]) -> Queued:
        start = time.perf_counter()
        scored = self._scores.run(self.model, forwarded.hidden, prompts)
        if draws is None:
            return Queued(None, None, None, None, scored, time.perf_counter() - start)
        if draws.plain:
            drawn, host = self.plain.run(self.model, forwarded.hidden, draws, forwarded.repeats)
            return Queued(drawn, host, None, None, scored, time.perf_counter() - start)
        send, builder = self._backend.from_host, self.builder
        logits = self.model.logits(forwarded.hidden, send(draws.rows))
        state = builder.drafts
        proposed = None if state is None else Drafts(state.tokens.view(-1), state.weights)
        drawn = self._sampler.draw(logits, draws.inputs, proposed)
        slots = send(draws.slots)
        emitted = self._accept(
            drawn.tokens,
            drawn.accepted,
            send(draws.first),
            send(draws.counts),
            send(draws.base),
            slots,
            builder.last_token,
            builder.length,
        )
        drafts = rates = None
        if self._drafting is not None:
            drafts, rates = self._drafting.run(draws, slots, drawn, emitted)
        host = self._backend.to_host(emitted)
        return Queued(drawn, host, drafts, rates, scored, time.perf_counter() - start)
