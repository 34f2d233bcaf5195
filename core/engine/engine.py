"""The engine: requests in, steps run, outputs out.  One instance owns one model on one backend."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from tandem.engine.assembly import Assembly
from tandem.engine.delivery import Batch, deliver, ending_of
from tandem.engine.draws import Draws
from tandem.engine.ends import TokenEnds
from tandem.engine.grammars import follow_grammars
from tandem.engine.intake import Inputs, Intake, PendingRequest
from tandem.engine.metrics import metrics_of
from tandem.engine.outputs import LiveRequest, RequestOutput, StreamPiece
from tandem.engine.plan import Bools, Int32, StepPlan
from tandem.engine.request_checks import closed
from tandem.engine.request_state import RequestState
from tandem.engine.runner import Queued, StepHandle
from tandem.engine.stats import StepStats
from tandem.engine.transfer import Transfer
from tandem.engine.waiting import Deadlines, WaitingRequests
from tandem.errors import RequestError, TandemError
from tandem.sampling.params import SamplingParams

LONGEST_WAIT_S = 0.01  # of a step with nothing to run; others may have orders for the thread that steps


class Engine:
    """Continuous batching over one model.

    Without overlap `step` schedules, runs and delivers one step, or a turn of several that decode.  With it a step is
    scheduled and queued while the one before runs, and what a call returns belongs to steps before it.  Tokens, lengths
    and drafts go from step to step on the device.  All give the same tokens.

    Args:
        assembly: the opened backend, loaded model, caches and scheduler.
    """

    def __init__(self, assembly: Assembly) -> None:
        self._parts = assembly
        self._intake, self._transfer = Intake(assembly), Transfer(assembly)
        self._ends = TokenEnds(assembly.table, assembly.eos_id)
        self.stats = StepStats()
        self._next_id = 0
        self._pending = WaitingRequests(self._ready)
        self._deadlines = Deadlines(self._known)
        self._live: dict[int, LiveRequest] = {}  # by slot
        self._slot_of: dict[int, int] = {}  # request id -> slot
        self._flights: deque[StepHandle] = deque()
        self._texts = assembly.text_lane
        self._text_results: deque[Future[tuple[list[StreamPiece], list[int]]]] = deque()
        self._untold: list[StreamPiece] = []  # ends outside of a step, until a call of `step` returns them
        self._closed = False

    @property
    def vocab_size(self) -> int:
        """Tokens of the model."""
        return self._parts.vocab_size

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._pending or self._live or self._flights or self._text_results or self._untold)

    def add_request(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        roles: Sequence[int] | None = None,
        media_digest: bytes = b"",
        embed_rows: np.typing.NDArray[np.generic] | None = None,
        embed_positions: Sequence[int] | None = None,
        cache_salt: str = "",
    ) -> int:
        """Queue a request.

        Args:
            prompt: token ids, at least one.
            params: sampling parameters, for one output; for more see `add_copies`.
            roles: one per prompt token, 0 for text; runs of other values are image spans, which no chunk cuts.
            media_digest: 32 bytes that identify the media behind the roles.
            embed_rows, embed_positions: rows [N, H] that replace the embeddings at N prompt positions.
            cache_salt: cached prefixes are shared only among requests of the same salt.
        Returns:
            The request id.
        Raises:
            RequestError, CapacityError: the request cannot be served; nothing else is disturbed.
        """
        self._check_open()
        inputs = Inputs(roles, media_digest, embed_rows, embed_positions, cache_salt)
        requests = self._intake.check(self._next_id, prompt, params, inputs, single=True)
        return self._queue(requests)[0]

    def add_copies(self, prompt: Sequence[int], params: SamplingParams, cache_salt: str = "") -> list[int]:
        """Queue ``params.n`` requests for one prompt; copy i draws as a single request with seed + i (mod 2^64) would.

        With the prefix cache the others start when the first has its prompt computed, and begin with its blocks.

        Returns:
            Their request ids, one after another.
        Raises:
            RequestError, CapacityError: as `add_request`.
        """
        self._check_open()
        return self._queue(self._intake.check(self._next_id, prompt, params, Inputs(cache_salt=cache_salt)))

    def _queue(self, requests: Sequence[PendingRequest]) -> list[int]:
        for pending in requests:
            if self._parts.table.num_free and not self._pending and self._ready(pending):
                self._admit(pending)
            else:
                self._pending.add(pending)
            self._deadlines.add(pending.live.request_id, pending.live.deadline)
        self._next_id += len(requests)
        return [pending.live.request_id for pending in requests]

    def export_request(self, request_id: int, with_caches: bool = True) -> RequestState:
        """A request as it is between two steps, to go on in this or another engine; it stays here until cancelled.

        Args:
            request_id: as given by `add_request`.
            with_caches: take what was computed along; without, the importer computes it again to the same bits.
        Raises:
            RequestError: the request is not known (any more).
            AccountingError: a token of it is being drawn by a step in flight.
        """
        self._check_open()
        self._land()
        pending = self._pending.get(request_id)
        if pending is not None:
            return pending.to_state()
        slot = self._slot_of.get(request_id)
        if slot is None or self._live[slot].ended:  # a stop string may have ended it, which the next step says
            raise RequestError(
                "a request cannot be exported",
                where=f"request {request_id}",
                why="the engine does not hold it",
                fix="export it before it ends",
            )
        return self._transfer.export(slot, self._live[slot], with_caches)

    def import_request(self, state: RequestState) -> int:
        """Take in a request that was exported; it goes on with the next step.  Waits until its grammar is made.

        Returns:
            Its request id here.
        Raises:
            RequestError: the state is of another model, or complete.
            CapacityError: no slot is free, or it could never fit; nothing else is disturbed.
        """
        self._check_open()
        self._land()
        live = self._transfer.revive(state, self._next_id)
        slot = self._transfer.admit(state)
        self._intake.bind(slot, live)
        self._live[slot] = live
        self._slot_of[live.request_id] = slot
        self._deadlines.add(live.request_id, live.deadline)
        self._next_id += 1
        return live.request_id

    def _land(self) -> None:
        """Deliver every step in flight; the pieces come with the next `step`."""
        while self._flights:
            self._advance(None)
        for future in self._text_results:
            future.exception()

    def cancel(self, request_id: int, reason: str = "cancelled") -> RequestOutput | None:
        """End a request now.

        Returns:
            What it had; None if it is not known (any more), or has ended and the next `step` will say so.
        """
        piece = None if self._closed else self._end(request_id, reason)
        return None if piece is None else piece.output

    def _end(self, request_id: int, reason: str) -> StreamPiece | None:
        pending = self._pending.get(request_id)
        if pending is not None:
            self._pending.remove(pending)
            return pending.live.close(reason, 0)
        slot = self._slot_of.get(request_id)
        if slot is None:
            return None
        preemptions = int(self._parts.table.preemptions[slot])
        self._parts.scheduler.cancel(slot)
        live = self._forget(slot)
        # Tokens that it was given before come first; a stop string among them may have ended it already.
        return self._texts.submit(lambda: None if live.ended else live.close(reason, preemptions)).result()

    def step(self) -> list[StreamPiece]:
        """Run a step, or several where all requests decode (see `Turns`); returns what has been added to each request
        that drew a token or ended.

        With overlap a step is only queued, and what is returned belongs to steps before it.  With nothing to run but
        requests whose grammars are still being made, it waits for one, at most `LONGEST_WAIT_S`.

        Raises:
            Exception: whatever the backend raises; the requests go on with the next call.
        """
        self._check_open()
        started = time.perf_counter()
        self._untold += self._end_late()
        self._untold += self._fill_slots()
        plan = self._parts.scheduler.schedule(1 if self._parts.overlap else self._parts.turns.steps)
        self.stats.schedule_s += time.perf_counter() - started
        if self._parts.overlap:
            self._advance(plan)
        elif len(plan):
            launched = time.perf_counter()
            self._deliver(self._launch(plan))
            self._parts.turns.note(plan, time.perf_counter() - launched)
        if not (self._untold or self._live or self._flights or self._text_results):
            self._pending.wait(LONGEST_WAIT_S)
        found = self._collect(wait=not self._parts.overlap or not self._flights)
        pieces, self._untold = self._untold + found, []
        return pieces

    def metrics(self) -> dict[str, Any]:
        """What was done and what waits, as plain values; see `tandem.engine.metrics`."""
        return metrics_of(self._parts, self.stats, len(self._pending), len(self._flights))

    def close(self) -> None:
        """Finish what is queued and release the backend, model and threads; requests that have not ended are lost."""
        if not self._closed:
            self._closed = True
            self._parts.close()

    def _check_open(self) -> None:
        if self._closed:
            raise closed("Engine")

    def _launch(self, plan: StepPlan) -> StepHandle:
        try:
            return self._parts.runner.launch(plan, self._live)
        except BaseException:
            self._parts.scheduler.abandon(plan)
            raise

    def _advance(self, plan: StepPlan | None) -> None:
        """Queue a step behind the one in flight, deliver that one, and let the new one draw."""
        runner, scheduler = self._parts.runner, self._parts.scheduler
        handle = None
        try:
            if plan is not None and len(plan):
                handle = runner.forward(plan, self._flights[-1] if self._flights else None)
                self._flights.append(handle)
            if len(self._flights) > (handle is not None):
                self._deliver(self._flights[0])
                self._flights.popleft()
            if handle is not None:
                runner.draw(handle, self._live)
        except BaseException:
            if plan is not None and len(plan) and handle is None:
                scheduler.rollback(plan)  # it was not queued
            self._abandon_flights()
            raise

    def _abandon_flights(self) -> None:
        """Take back every step in flight after one has failed."""
        while self._flights:
            handle = self._flights.pop()
            handle.wait()
            self._parts.builder.unbuilt(handle.host)
            self._parts.scheduler.abandon(handle.plan)

    def _deliver(self, handle: StepHandle) -> None:
        """Wait for a step's tokens, settle the scheduler, and hand the tokens to their requests."""
        queued = handle.result()
        tokens, counts = handle.emitted()
        started = time.perf_counter()
        plan, stats, draws = handle.plan, self.stats, handle.draws
        if draws is None:
            self._parts.scheduler.commit(plan, np.full(len(plan), -1, dtype=np.int32))
            batch = Batch((), tokens, counts, counts, counts, {}, None, queued.scored)
        else:
            batch = self._settle(handle, draws, queued, tokens, counts)
        for part in queued.scored:
            if self._live.get(part.request.slot) is part.request:
                self._parts.table.prompt_scored[part.request.slot] = part.until
        self._text_results.append(self._texts.submit(lambda: deliver(batch)))
        stats.steps += plan.steps
        stats.rows += plan.steps * plan.total_rows
        stats.preemptions += len(plan.preempted)
        stats.forward_s += handle.forward.result().seconds + queued.forward_s
        stats.sample_s += queued.seconds
        stats.deliver_s += time.perf_counter() - started

    def _settle(self, handle: StepHandle, draws: Draws, queued: Queued, tokens: Int32, counts: Int32) -> Batch:
        """Commit the tokens of a step and end the requests that are complete."""
        table, plan, slots = self._parts.table, handle.plan, draws.slots
        alive = table.epoch[slots] == plan.epochs[draws.entries]
        fresh = alive & ~draws.known
        kept, reasons = self._ends.cut(slots, tokens, np.where(fresh, counts, 0))
        follow_grammars(table, self._live, slots, tokens, kept, reasons, fresh)
        self._parts.scheduler.commit(plan, *draws.by_entry(len(plan), tokens, kept))
        self._note_drafts(handle, draws, queued, counts, kept, alive)
        places = np.flatnonzero(fresh)
        requests = list(map(self._live.__getitem__, slots[places].tolist()))
        preemptions = table.preemptions[slots[places]]
        endings = {}
        for where in np.flatnonzero(reasons[places]).tolist():
            request = requests[where]
            endings[where] = ending_of(request, int(reasons[places[where]]), table)
            self._parts.scheduler.finish(request.slot)
            self._forget(request.slot)
        self.stats.tokens += int(kept[places].sum())
        first, drawn, scored = draws.first[places], queued.drawn, queued.scored
        return Batch(requests, tokens[places], kept[places], first, preemptions, endings, drawn, scored)

    def _note_drafts(
        self, handle: StepHandle, draws: Draws, queued: Queued, counts: Int32, kept: Int32, alive: Bools
    ) -> None:
        """Tell the book what a step verified and which drafts it left; what follows an end was in vain."""
        book, plan = self._parts.book, handle.plan
        if book is None or queued.drafts is None or queued.rates is None:
            return
        decoded = alive & (draws.entries < plan.speculative)
        tested = np.minimum(draws.counts - 1, np.where(kept < counts, kept, draws.counts - 1))
        slots, accepted = draws.slots[decoded], np.minimum(counts - 1, tested)[decoded]
        book.verified(slots, tested[decoded], accepted, self._parts.table.ruled[slots])
        slots, drafts, rates = draws.slots, queued.drafts.result(), queued.rates.result()
        if not alive.all():
            slots, drafts, rates = slots[alive], drafts[alive], rates[alive]
        book.take(slots, drafts, rates)
        if book.budget.curve is not None:
            forward_s = handle.forward.result().seconds
            book.budget.curve.observe(plan.total_rows, len(draws.slots), forward_s, queued.seconds)

    def _collect(self, wait: bool) -> list[StreamPiece]:
        """Pieces that are ready (all that are under way, with ``wait``); requests ended by a stop string leave."""
        pieces: list[StreamPiece] = []
        while self._text_results and (wait or self._text_results[0].done()):
            found, ended = self._text_results.popleft().result()
            for request_id in ended:
                slot = self._slot_of.get(request_id)
                if slot is not None:
                    self._parts.scheduler.cancel(slot)
                    self._forget(slot)
            pieces += found
        return pieces

    def _forget(self, slot: int) -> LiveRequest:
        live = self._live.pop(slot)
        del self._slot_of[live.request_id]
        return live

    def _end_late(self) -> list[StreamPiece]:
        """End the requests whose deadline has passed, wherever they are."""
        ended = [self._end(request_id, "deadline") for request_id in self._deadlines.due()]
        return [piece for piece in ended if piece is not None]

    def _fill_slots(self) -> list[StreamPiece]:
        """Admit waiting requests while slots are free; one that cannot be served ends in an error."""
        failed = []
        while self._pending and self._parts.table.num_free:
            pending = self._pending.first()
            if pending is None:
                break
            try:
                self._admit(pending)
            except TandemError as error:
                failed.append(pending.live.close("error", 0, error))
            self._pending.remove(pending)
        return failed

    def _ready(self, pending: PendingRequest) -> bool:
        """Whether nothing but a slot is missing: its grammar is there, and the prompt that it shares is computed."""
        leader = pending.leader
        if leader is not None and self._known(leader):
            slot = self._slot_of.get(leader)
            if slot is None or self._parts.table.num_tokens[slot] == self._parts.table.prompt_len[slot]:
                return False
        return pending.ready

    def _known(self, request_id: int) -> bool:
        return request_id in self._slot_of or self._pending.get(request_id) is not None

    def _admit(self, pending: PendingRequest) -> None:
        slot = self._intake.admit(pending)
        self._live[slot] = pending.live
        self._slot_of[pending.live.request_id] = slot
