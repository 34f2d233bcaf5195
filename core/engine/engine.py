"""The engine: requests in, steps run, outputs out.  One instance owns one model on one backend."""

from __future__ import annotations

import operator
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from tandem.engine.assembly import Assembly
from tandem.engine.draw_rules import DrawRules
from tandem.engine.outputs import LiveRequest, RequestOutput, StreamPiece, TokenLogprob
from tandem.engine.request_state import RequestState, Sampling
from tandem.engine.requests import RequestExtras
from tandem.engine.requests import embed_positions as checked_positions
from tandem.engine.runner import StepHandle
from tandem.engine.transfer import Transfer
from tandem.errors import RequestError, TandemError
from tandem.sampling.params import SamplingParams


@dataclass(slots=True)
class StepStats:
    """Totals since the engine was made; times in seconds."""

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    preemptions: int = 0
    schedule_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0
    deliver_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A validated request that waits for a slot."""

    live: LiveRequest
    sampling: Sampling
    extras: RequestExtras
    roles: Sequence[int] | None
    media_digest: bytes

    def to_state(self) -> RequestState:
        """The request as a portable state; nothing of it has been computed."""
        prompt = np.array(self.live.prompt, dtype=np.int32)
        return RequestState(
            tokens=prompt,
            prompt_len=len(prompt),
            num_computed=0,
            rng_position=len(prompt),
            sampling=self.sampling,
            roles=None if self.roles is None else np.asarray(self.roles, dtype=np.uint8),
            media_digest=self.media_digest,
            **self.extras.to_fields(),
        )


class Engine:
    """Continuous batching over one model.

    Synchronous: `step` schedules, runs and delivers one step.  The three parts are separate calls inside, and
    tokens and lengths stay on the device between steps, so that they can be overlapped.

    Args:
        assembly: the opened backend, loaded model, caches and scheduler.
    """

    def __init__(self, assembly: Assembly) -> None:
        self._parts = assembly
        self._transfer = Transfer(assembly)
        self.stats = StepStats()
        self._next_id = 0
        self._pending: deque[PendingRequest] = deque()
        self._live: dict[int, LiveRequest] = {}  # by slot
        self._slot_of: dict[int, int] = {}  # request id -> slot

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._pending and not self._live

    def add_request(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        roles: Sequence[int] | None = None,
        media_digest: bytes = b"",
        embed_rows: np.typing.NDArray[np.generic] | None = None,
        embed_positions: Sequence[int] | None = None,
    ) -> int:
        """Queue a request.

        Args:
            prompt: token ids, at least one.
            params: sampling parameters.
            roles: one per prompt token, 0 for text; runs of other values are image spans, which no chunk cuts.
            media_digest: 32 bytes that identify the media behind the roles.
            embed_rows, embed_positions: rows [N, H] that replace the embeddings at N prompt positions.
        Returns:
            The request id.
        Raises:
            RequestError, CapacityError: the request cannot be served; nothing else is disturbed.
        """
        tokens = self._checked(prompt, params)
        if embed_rows is not None:
            self._check_width(embed_rows)
        request_id = self._next_id
        live = LiveRequest(request_id, tokens, params, self._parts.tokenizer, self._parts.eos_id)
        sampling = Sampling(
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            ignore_eos=params.ignore_eos,
            min_p=params.min_p,
            priority=params.priority,
        )
        extras = RequestExtras(
            stop_strings=params.stop,
            stop_token_ids=params.stop_token_ids,
            logprobs=params.logprobs,
            processed_logprobs=params.processed_logprobs,
            logit_bias=params.logit_bias,
            rules=DrawRules.of(params),
            embed_rows=embed_rows,
            embed_positions=None if embed_positions is None else checked_positions(embed_positions, len(tokens)),
        )
        self._parts.table.check(tokens, sampling, roles=roles, media_digest=media_digest, extras=extras)
        pending = PendingRequest(live, sampling, extras, roles, media_digest)
        if self._parts.table.num_free and not self._pending:
            self._admit(pending)
        else:
            self._pending.append(pending)
        self._next_id += 1
        return request_id

    def export_request(self, request_id: int, with_caches: bool = True) -> RequestState:
        """A request as it is between two steps, to go on in this or another engine; it stays here until cancelled.

        Args:
            request_id: as given by `add_request`.
            with_caches: take what was computed along; without, the importer computes it again to the same bits.
        Raises:
            RequestError: the request is not known (any more).
            AccountingError: a token of it is being drawn by a step in flight.
        """
        for pending in self._pending:
            if pending.live.request_id == request_id:
                return pending.to_state()
        slot = self._slot_of.get(request_id)
        if slot is None:
            raise RequestError(
                "a request cannot be exported",
                where=f"request {request_id}",
                why="the engine does not hold it",
                fix="export it before it ends",
            )
        return self._transfer.export(slot, self._live[slot], with_caches)

    def import_request(self, state: RequestState) -> int:
        """Take in a request that was exported; it goes on with the next step.

        Returns:
            Its request id here.
        Raises:
            RequestError: the state is of another model, or complete.
            CapacityError: no slot is free, or it could never fit; nothing else is disturbed.
        """
        live = self._transfer.revive(state, self._next_id)
        slot = self._transfer.admit(state)
        self._live[slot] = live
        self._slot_of[live.request_id] = slot
        self._next_id += 1
        return live.request_id

    def cancel(self, request_id: int) -> RequestOutput | None:
        """End a request now; returns what it had, or None if it is not known (any more)."""
        for pending in self._pending:
            if pending.live.request_id == request_id:
                self._pending.remove(pending)
                return pending.live.output("cancelled", 0)
        slot = self._slot_of.get(request_id)
        if slot is None:
            return None
        preemptions = int(self._parts.table.preemptions[slot])
        self._parts.scheduler.cancel(slot)
        return self._forget(slot).output("cancelled", preemptions)

    def step(self) -> list[StreamPiece]:
        """Run one step; returns what it added to each request that drew a token or ended."""
        started = time.perf_counter()
        failed = self._fill_slots()
        plan = self._parts.scheduler.schedule()
        self.stats.schedule_s += time.perf_counter() - started
        if not len(plan):
            return failed
        try:
            handle = self._parts.runner.launch(plan, self._live)
        except BaseException:
            self._parts.scheduler.abandon(plan)
            raise
        return failed + self._deliver(handle)

    def _deliver(self, handle: StepHandle) -> list[StreamPiece]:
        """Wait for a step's tokens, settle the scheduler, and hand results to their requests."""
        tokens = handle.tokens()
        started = time.perf_counter()
        plan, stats = handle.plan, self.stats
        appended = self._parts.scheduler.commit(plan, tokens)
        pieces = []
        for row, entry in enumerate(handle.entries.tolist()):
            slot = int(plan.slots[entry])
            if appended[entry]:
                pieces.append(self._accept(handle, row, slot, int(tokens[entry])))
            elif self._parts.table.epoch[slot] == plan.epochs[entry]:
                pieces.append(self._fail(slot))
        stats.steps += 1
        stats.rows += plan.total_rows
        stats.tokens += int(appended.sum())
        stats.preemptions += len(plan.preempted)
        stats.forward_s += handle.forward_s
        stats.sample_s += handle.sample_s
        stats.deliver_s += time.perf_counter() - started
        return pieces

    def _accept(self, handle: StepHandle, row: int, slot: int, token: int) -> StreamPiece:
        live = self._live[slot]
        if live.params.logprobs is not None:
            live.logprobs.append(_token_logprob(handle, row, token, live.params))
        text, reason = live.accept(token)
        if not reason:
            return StreamPiece(live.request_id, (token,), text)
        return StreamPiece(live.request_id, (token,), text, self._finish(slot, reason))

    def _finish(self, slot: int, reason: str, error: TandemError | None = None) -> RequestOutput:
        preemptions = int(self._parts.table.preemptions[slot])
        self._parts.scheduler.finish(slot)
        return self._forget(slot).output(reason, preemptions, error)

    def _fail(self, slot: int) -> StreamPiece:
        live = self._live[slot]
        error = RequestError(
            "no token can be drawn",
            where=f"request {live.request_id}, output token {len(live.token_ids)}",
            why="the logits of this request hold NaN, or every token is banned",
            fix="check the weights and logit_bias; other requests go on",
        )
        return StreamPiece(live.request_id, (), "", self._finish(slot, "error", error))

    def _forget(self, slot: int) -> LiveRequest:
        live = self._live.pop(slot)
        del self._slot_of[live.request_id]
        return live

    def _fill_slots(self) -> list[StreamPiece]:
        """Admit waiting requests while slots are free; one that cannot be served ends in an error."""
        failed = []
        while self._pending and self._parts.table.num_free:
            pending = self._pending.popleft()
            try:
                self._admit(pending)
            except TandemError as error:
                output = pending.live.output("error", 0, error)
                failed.append(StreamPiece(output.request_id, (), "", output))
            except BaseException:
                self._pending.appendleft(pending)
                raise
        return failed

    def _admit(self, pending: PendingRequest) -> None:
        parts, live = self._parts, pending.live
        slot = parts.table.create(
            live.prompt,
            pending.sampling,
            roles=pending.roles,
            media_digest=pending.media_digest,
            extras=pending.extras,
        )
        try:
            parts.scheduler.add(slot)
        except TandemError:
            parts.table.free(slot)
            raise
        try:
            parts.builder.admit(slot)
        except BaseException:
            parts.scheduler.cancel(slot)
            raise
        self._live[slot] = live
        self._slot_of[live.request_id] = slot

    def _checked(self, prompt: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
        if not isinstance(params, SamplingParams):
            raise RequestError(
                "sampling parameters cannot be used",
                where="params",
                why=f"they are of type {type(params).__name__}",
                fix="give a SamplingParams; SamplingParams.from_dict reads a mapping",
            )
        if isinstance(prompt, str | bytes | bytearray | Mapping | Set):
            raise _refused(f"it is of type {type(prompt).__name__}", "give a list of token ids")
        try:
            tokens = tuple(_token_id(token) for token in prompt)
        except TypeError as error:
            raise _refused(f"it does not hold token ids: {error}", "give text, or a list of integers") from error
        limit, vocabulary = self._parts.max_model_len, self._parts.vocab_size
        if not tokens:
            raise _refused("it is empty", "give at least one token")
        bad = next((t for t in tokens if not 0 <= t < vocabulary), None)
        if bad is not None:
            raise _refused(f"token id {bad} is out of range", f"use ids from 0 to {vocabulary - 1}")
        if len(tokens) + params.max_tokens > limit:
            raise _refused(
                f"{len(tokens)} prompt tokens and max_tokens {params.max_tokens} exceed the limit of {limit}",
                "shorten the prompt, lower max_tokens, or raise model.max_model_len",
            )
        params.check_vocabulary(vocabulary)
        return tokens

    def _check_width(self, embed_rows: np.typing.NDArray[np.generic]) -> None:
        hidden = self._parts.config.text.hidden_size
        shape: tuple[int, ...] = getattr(embed_rows, "shape", ())
        if len(shape) != 2 or shape[1] != hidden:
            raise RequestError(
                "rows that replace embeddings do not fit",
                where=f"embed_rows, shape {shape}",
                why=f"the model's rows have {hidden} values",
                fix=f"give an array [N, {hidden}]",
            )


def _token_id(token: object) -> int:
    if isinstance(token, bool):
        raise TypeError("a truth value is no token id")
    return operator.index(token)  # type: ignore[arg-type]


def _refused(why: str, fix: str) -> RequestError:
    return RequestError("a prompt cannot be used", where="prompt", why=why, fix=fix)


def _token_logprob(handle: StepHandle, row: int, token: int, params: SamplingParams) -> TokenLogprob:
    drawn = handle.drawn
    if drawn is None:
        raise AssertionError("a token was drawn without a draw")
    processed = float(drawn.processed.result()[row]) if params.processed_logprobs else None
    top: dict[int, float] = {}
    if drawn.top is not None and params.logprobs:
        ids, values = drawn.top[0].result()[row], drawn.top[1].result()[row]
        top = {int(i): float(v) for i, v in zip(ids[: params.logprobs], values, strict=False)}
    return TokenLogprob(token, float(drawn.raw.result()[row]), processed, top)
