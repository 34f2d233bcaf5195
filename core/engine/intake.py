"""What comes in: checks a request before it waits for a slot, and puts it into one."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.engine.assembly import Assembly
from tandem.engine.draw_rules import DrawRules
from tandem.engine.outputs import LiveRequest
from tandem.engine.request_checks import embed_positions as checked_positions
from tandem.engine.request_state import RequestState, Sampling
from tandem.engine.requests import RequestExtras
from tandem.errors import RequestError, TandemError
from tandem.sampling.params import SamplingParams
from tandem.structured.compiler import Ticket

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A validated request that waits for a slot.

    Args:
        live: its host side.
        sampling, extras, roles, media_digest: for the request table.
        ticket: its grammar, which may still be compiled; None without one.
        cache_salt: requests share cached prefixes only with those of the same salt.
        leader: request whose cached prompt it is to begin with; None to wait for none.
    """

    live: LiveRequest
    sampling: Sampling
    extras: RequestExtras
    roles: Sequence[int] | None
    media_digest: bytes
    ticket: Ticket | None = None
    cache_salt: str = ""
    leader: int | None = None

    @property
    def ready(self) -> bool:
        """Whether its grammar is there."""
        return self.ticket is None or self.ticket.ready

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
            cache_salt=self.cache_salt,
            **self.extras.to_fields() | {"rules": self.live.rules_left(self.extras.rules)},
        )


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a request brings besides its tokens and parameters; see `Engine.add_request`."""

    roles: Sequence[int] | None = None
    media_digest: bytes = b""
    embed_rows: np.typing.NDArray[np.generic] | None = None
    embed_positions: Sequence[int] | None = None
    cache_salt: str = ""


class Intake:
    """Checks requests and admits them.

    Args:
        parts: the engine's parts.
    """

    def __init__(self, parts: Assembly) -> None:
        self._parts = parts

    def check(
        self, request_id: int, prompt: Sequence[int], params: SamplingParams, inputs: Inputs, single: bool = False
    ) -> list[PendingRequest]:
        """Make the requests of one call, one for each of its outputs, with ids from `request_id` on.

        Copies draw with seeds of their own, and wait for the first one's prompt where they can begin with it.  The
        caller may have room for a single one only.

        Raises:
            RequestError, CapacityError: it cannot be served; nothing has changed.
        """
        tokens = self._checked(prompt, params)
        if single and params.n > 1:
            raise RequestError(
                "several outputs were asked of a single request",
                where="SamplingParams.n",
                why=f"it is {params.n}, and Engine.add_request queues one request",
                fix="use Engine.add_copies, LLM or AsyncLLM, or set n to 1",
            )
        if inputs.embed_rows is not None:
            self._check_width(inputs.embed_rows)
        parts = self._parts
        seed = secrets.randbits(64) if params.seed is None else params.seed
        extras = extras_of(params, inputs, len(tokens))
        ticket = None if params.structured is None else parts.compiler.submit(params.structured)
        leader = request_id if params.n > 1 and self._shares(len(tokens), params, inputs) else None
        found = []
        for copy in range(params.n):
            live = LiveRequest(request_id + copy, tokens, params, parts.tokenizer, parts.eos_id, copy)
            found.append(
                PendingRequest(
                    live,
                    sampling_of(params, (seed + copy) & _MASK64),
                    extras,
                    inputs.roles,
                    inputs.media_digest,
                    ticket,
                    cache_salt=inputs.cache_salt,
                    leader=leader if copy else None,
                )
            )
        parts.table.check(
            tokens, found[0].sampling, roles=inputs.roles, media_digest=inputs.media_digest, extras=extras
        )
        return found

    def _shares(self, length: int, params: SamplingParams, inputs: Inputs) -> bool:
        """Whether a second request for this prompt could begin with a block that the first one leaves."""
        parts = self._parts
        if parts.prefix is None or params.prompt_logprobs is not None:
            return False
        if inputs.embed_rows is not None and not inputs.media_digest:
            return False
        most = min(length - 1, parts.builder.replay.reusable(length))
        return most >= parts.tables.main.block_size

    def admit(self, pending: PendingRequest) -> int:
        """Give a request a slot and queue it; returns the slot.

        Raises:
            TandemError: it cannot be served, its grammar included; nothing has changed.
        """
        parts, live = self._parts, pending.live
        if pending.ticket is not None:
            live.guide = pending.ticket.result().guide()
        slot = parts.table.create(
            live.prompt,
            pending.sampling,
            roles=pending.roles,
            media_digest=pending.media_digest,
            extras=pending.extras,
        )
        if pending.cache_salt:
            parts.table.set_salt(slot, pending.cache_salt)
        try:
            parts.scheduler.add(slot)
        except TandemError:
            parts.table.free(slot)
            raise
        if parts.book is not None:
            parts.book.forget(slot)
        try:
            self.bind(slot, live)
            parts.builder.admit(slot)
        except BaseException:
            parts.scheduler.cancel(slot)
            raise
        return slot

    def bind(self, slot: int, live: LiveRequest) -> None:
        """Let a slot know what rules its draws follow."""
        table, params = self._parts.table, live.params
        live.slot = slot
        table.ruled[slot] = (
            live.rules.any
            or live.bad_words is not None
            or live.guide is not None
            or params.logprobs is not None
            or bool(params.forced_token_ids)
        )
        table.prompt_scored[slot] = -1 if params.prompt_logprobs is None else 0

    def _checked(self, prompt: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
        if not isinstance(params, SamplingParams):
            raise RequestError(
                "sampling parameters cannot be used",
                where="params",
                why=f"they are of type {type(params).__name__}",
                fix="give a SamplingParams; SamplingParams.from_dict reads a mapping",
            )
        tokens = _token_ids(prompt)
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
        self._parts.builder.replay.check_request(params.prompt_logprobs)
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


def sampling_of(params: SamplingParams, seed: int) -> Sampling:
    """The numbers of parameters."""
    return Sampling(
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        seed=seed,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        ignore_eos=params.ignore_eos,
        priority=params.priority,
    )


def extras_of(params: SamplingParams, inputs: Inputs, length: int) -> RequestExtras:
    """What is not a number of parameters and inputs."""
    positions: Any = inputs.embed_positions
    return RequestExtras(
        stop_strings=params.stop,
        stop_token_ids=params.stop_token_ids,
        logprobs=params.logprobs,
        processed_logprobs=params.processed_logprobs,
        logit_bias=params.logit_bias,
        rules=DrawRules.of(params),
        embed_rows=inputs.embed_rows,
        embed_positions=None if positions is None else checked_positions(positions, length),
    )


def _token_ids(prompt: object) -> tuple[int, ...]:
    if isinstance(prompt, str | bytes | bytearray | Mapping | Set):
        raise _refused(f"it is of type {type(prompt).__name__}", "give a list of token ids")
    try:
        return tuple(_token_id(token) for token in prompt)  # type: ignore[attr-defined]
    except TypeError as error:
        raise _refused(f"it does not hold token ids: {error}", "give text, or a list of integers") from error


def _token_id(token: object) -> int:
    if isinstance(token, bool):
        raise TypeError("a truth value is no token id")
    return operator.index(token)  # type: ignore[arg-type]


def _refused(why: str, fix: str) -> RequestError:
    return RequestError("a prompt cannot be used", where="prompt", why=why, fix=fix)
