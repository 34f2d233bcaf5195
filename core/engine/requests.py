"""The requests an engine holds, as arrays by slot.

A request is a slot number; its numbers live in arrays that the scheduler and the step builder index with
whole vectors of slots.  The few things that are not numbers by slot (stop strings, override embeddings) sit
in `RequestExtras`, which the hot path never touches.
"""

from __future__ import annotations

import enum
import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.cache.pool import AccountingError
from tandem.engine.extras import RequestExtras as RequestExtras  # the table's callers make them
from tandem.engine.request_checks import check_extras, checked_roles, refused, token_ids
from tandem.engine.request_state import DIGEST_BYTES, RequestState, Sampling
from tandem.errors import CapacityError
from tandem.model.replay import Replay
from tandem.sampling.sampler import Numbers

Int32 = npt.NDArray[np.int32]
_MASK64 = (1 << 64) - 1


class Status(enum.IntEnum):
    """Where a slot is in its life."""

    FREE = 0
    NEW = 1  # filled in, not yet given to the scheduler
    WAITING = 2  # queued, holds no blocks
    RUNNING = 3  # may hold blocks and get rows


_NO_EXTRAS = RequestExtras()


class RequestTable:
    """A structure of arrays over ``max_slots`` request slots.

    Args:
        max_slots: requests held at once (R).
        max_len: most tokens of a request, prompt and output together.

    Attributes (all arrays [R] unless said otherwise):
        status: uint8, a `Status`.
        tokens: int32 [R, max_len], prompt and committed output.
        prompt_len, num_tokens: int32, tokens of the prompt, tokens known to the host.
        num_computed: int32, tokens whose rows have been scheduled.  It runs ahead of the device: it counts
            rows of steps that are still in flight.
        num_pending: int32, most tokens that steps in flight may draw; num_drawing: int32, how many of these steps
            draw, so the least they give.
        max_tokens, min_tokens: int32, bounds on the output.
        limit: int32, prompt_len + max_tokens; a row exists for positions below limit - 1.
        ignore_eos: bool.
        temperature, top_p, min_p: float32.  top_k: int32.  seed: int64, the bits of an unsigned seed.
        priority: int32, lower goes first.  arrival: int64, grows with every request; among equals older goes first.
        epoch: int64, changes whenever what is in flight for the slot stops counting.
        has_roles: bool, whether any role is not 0.  has_override, has_stops: bool, whether embeddings are
            replaced, whether there are stop tokens besides the model's end token.
        ruled: bool, whether its draws follow rules beyond the numbers here; the engine sets it.
        prompt_scored: int32, prompt rows with delivered scores where logprobs of the prompt are asked for, else -1.
        media_digest: uint8 [R, 32], zeros without media.
        preemptions: int32, times the request was put back.
    """

    def __init__(self, max_slots: int, max_len: int) -> None:
        if max_slots < 1 or max_len < 2:
            raise CapacityError(
                "a request table of this size holds no request",
                where="RequestTable",
                why=f"max_slots is {max_slots}, max_len is {max_len}",
                fix="use at least one slot and two tokens (one of prompt, one of output)",
            )
        self.max_slots, self.max_len = max_slots, max_len
        self.tokens = np.zeros((max_slots, max_len), dtype=np.int32)
        self.status = np.zeros(max_slots, dtype=np.uint8)
        self.prompt_len, self.num_tokens, self.num_computed = (self._ints() for _ in range(3))
        self.num_pending, self.num_drawing, self.priority = (self._ints() for _ in range(3))
        self.max_tokens, self.min_tokens = self._ints(), self._ints()
        self.limit, self.top_k, self.preemptions = (self._ints() for _ in range(3))
        self.ignore_eos = np.zeros(max_slots, dtype=np.bool_)
        self.has_roles, self.has_override, self.ruled = (np.zeros(max_slots, dtype=np.bool_) for _ in range(3))
        self.has_stops = np.zeros(max_slots, dtype=np.bool_)
        self.prompt_scored = np.full(max_slots, -1, dtype=np.int32)
        self.temperature = np.zeros(max_slots, dtype=np.float32)
        self.top_p = np.ones(max_slots, dtype=np.float32)
        self.min_p = np.zeros(max_slots, dtype=np.float32)
        self.seed = np.zeros(max_slots, dtype=np.int64)
        self.arrival = np.zeros(max_slots, dtype=np.int64)
        self.epoch = np.zeros(max_slots, dtype=np.int64)
        self.media_digest = np.zeros((max_slots, DIGEST_BYTES), dtype=np.uint8)
        self._roles: npt.NDArray[np.uint8] | None = None
        self._extras: dict[int, RequestExtras] = {}
        self._salts: dict[int, str] = {}
        self._free = list(range(max_slots))
        self._arrivals = 0

    def _ints(self) -> Int32:
        return np.zeros(self.max_slots, dtype=np.int32)

    @property
    def num_free(self) -> int:
        """Slots that `create` can still fill."""
        return len(self._free)

    def create(
        self,
        prompt: npt.ArrayLike,
        sampling: Sampling,
        *,
        roles: npt.ArrayLike | None = None,
        media_digest: bytes = b"",
        extras: RequestExtras = _NO_EXTRAS,
    ) -> int:
        """Fill a free slot; the request has status NEW until the scheduler gets it.

        Args:
            prompt: token ids [n], n at least 1.
            sampling: numbers that decide the output.
            roles: uint8 [n], 0 for text, otherwise the place of the token in an image span.
            media_digest: digest of the media behind the roles, 32 bytes or none.
            extras: what is not a number.

        Returns:
            The slot.

        Raises:
            CapacityError: no slot is free.
            RequestError: the prompt, the lengths or the roles cannot be used.
        """
        tokens, roles_array = self.check(prompt, sampling, roles=roles, media_digest=media_digest, extras=extras)
        if not self._free:
            raise CapacityError(
                "every request slot is in use",
                where="RequestTable.create",
                why=f"{self.max_slots} requests are held",
                fix="wait until a request ends, or raise scheduler.max_slots",
            )
        slot = heapq.heappop(self._free)
        self._fill(slot, tokens, sampling)
        if roles_array is not None:
            self.has_roles[slot] = True
            self.roles_array()[slot, : len(tokens)] = roles_array
        self.media_digest[slot] = np.frombuffer(media_digest.ljust(DIGEST_BYTES, b"\0"), dtype=np.uint8)
        if extras is not _NO_EXTRAS:
            self._extras[slot] = extras
            self.has_override[slot] = extras.embed_rows is not None
            self.has_stops[slot] = bool(extras.stop_token_ids)
        return slot

    def check(
        self,
        prompt: npt.ArrayLike,
        sampling: Sampling,
        *,
        roles: npt.ArrayLike | None = None,
        media_digest: bytes = b"",
        extras: RequestExtras = _NO_EXTRAS,
    ) -> tuple[Int32, npt.NDArray[np.uint8] | None]:
        """What `create` checks, without a slot, so that a request is refused before it waits for one.

        Returns:
            The prompt as int32 [n]; the roles as uint8 [n], None for plain text.

        Raises:
            RequestError: as `create`.
        """
        tokens = token_ids(prompt)
        roles_array = checked_roles(roles, len(tokens))
        if len(tokens) + sampling.max_tokens > self.max_len:
            raise refused(
                "max_tokens",
                f"{len(tokens)} prompt and {sampling.max_tokens} output tokens exceed {self.max_len}",
                "shorten the prompt, lower max_tokens, or raise model.max_model_len",
            )
        check_extras(extras, len(tokens))
        if not isinstance(media_digest, bytes) or len(media_digest) not in (0, DIGEST_BYTES):
            raise refused("media_digest", f"it is {media_digest!r}", f"use {DIGEST_BYTES} bytes or none")
        return tokens, roles_array

    def _fill(self, slot: int, tokens: Int32, sampling: Sampling) -> None:
        self.tokens[slot, : len(tokens)] = tokens
        self.prompt_len[slot] = self.num_tokens[slot] = len(tokens)
        self.num_computed[slot] = self.num_pending[slot] = self.num_drawing[slot] = self.preemptions[slot] = 0
        self.max_tokens[slot], self.min_tokens[slot] = sampling.max_tokens, sampling.min_tokens
        self.limit[slot] = len(tokens) + sampling.max_tokens
        self.temperature[slot], self.top_p[slot] = sampling.temperature, sampling.top_p
        self.top_k[slot], self.ignore_eos[slot] = sampling.top_k, sampling.ignore_eos
        self.min_p[slot], self.priority[slot] = sampling.min_p, sampling.priority
        self.seed[slot] = np.uint64(sampling.seed).astype(np.int64)
        self.arrival[slot] = self._arrivals
        self._arrivals += 1
        self.status[slot] = Status.NEW

    def free(self, slot: int) -> None:
        """Forget a request; its slot can be filled again.  The scheduler frees the requests it was given."""
        if self.status[slot] == Status.FREE:
            raise AccountingError(
                "a request slot was freed twice",
                where=f"slot {slot}",
                why="it holds no request",
                fix="report this: the engine has lost count of its requests",
            )
        self.status[slot] = Status.FREE
        self.epoch[slot] += 1
        self.has_override[slot] = self.has_stops[slot] = self.ruled[slot] = False
        self.prompt_scored[slot] = -1
        if self.has_roles[slot]:
            self.roles_array()[slot] = 0
            self.has_roles[slot] = False
        self._extras.pop(slot, None)
        self._salts.pop(slot, None)
        heapq.heappush(self._free, slot)

    def append(self, slots: Int32, tokens: Int32, counts: Int32) -> None:
        """Commit the first counts[i] of tokens[i] to each of several distinct slots (int32 [n], [n, m], [n])."""
        at = self.num_tokens[slots]
        column = np.arange(tokens.shape[1], dtype=np.int32)
        given = column < counts[:, None]
        places = (at[:, None] + column)[given]
        self.tokens[np.repeat(slots, counts), places] = tokens[given]
        self.num_tokens[slots] = at + counts

    def key(self, slot: int) -> tuple[int, int]:
        """What orders requests: lower goes first."""
        return int(self.priority[slot]), int(self.arrival[slot])

    def roles_array(self) -> npt.NDArray[np.uint8]:
        """Roles uint8 [R, max_len]; the array is made when the first request with media arrives."""
        if self._roles is None:
            self._roles = np.zeros((self.max_slots, self.max_len), dtype=np.uint8)
        return self._roles

    def set_salt(self, slot: int, salt: str) -> None:
        """Let a request share cached prefixes only with requests of the same salt."""
        self._salts[slot] = salt

    def salt(self, slot: int) -> str:
        """See `set_salt`; empty where none was set."""
        return self._salts.get(slot, "")

    def extras(self, slot: int) -> RequestExtras:
        """The parts that are not numbers; an empty `RequestExtras` where none were given."""
        return self._extras.get(slot, _NO_EXTRAS)

    def prompt(self, slot: int) -> Int32:
        """Token ids of the prompt (a view)."""
        return self.tokens[slot, : self.prompt_len[slot]]

    def output(self, slot: int) -> Int32:
        """Token ids drawn and committed so far (a view)."""
        return self.tokens[slot, self.prompt_len[slot] : self.num_tokens[slot]]

    def sampling(self, slot: int) -> Sampling:
        """The sampling numbers of a slot."""
        return Sampling(
            max_tokens=int(self.max_tokens[slot]),
            min_tokens=int(self.min_tokens[slot]),
            seed=int(self.seed[slot]) & _MASK64,
            temperature=float(self.temperature[slot]),
            top_p=float(self.top_p[slot]),
            top_k=int(self.top_k[slot]),
            ignore_eos=bool(self.ignore_eos[slot]),
            min_p=float(self.min_p[slot]),
            priority=int(self.priority[slot]),
        )

    def reusable(self, slot: int, replay: Replay) -> int:
        """Most tokens of a request that it may take from stored state."""
        if self.extras(slot).rules.prompt_logprobs is not None:
            return 0  # rows that are not computed cannot be scored
        length = int(self.num_tokens[slot])
        return min(length, replay.reusable(int(self.prompt_len[slot]))) if replay.bounded else length

    def numbers(self, slots: npt.NDArray[Any]) -> Numbers:
        """Sampling numbers of slots int [n], an array of [n] each."""
        return Numbers(
            self.temperature[slots], self.top_p[slots], self.top_k[slots], self.min_p[slots], self.seed[slots]
        )

    def export_state(self, slot: int) -> RequestState:
        """The request as a portable state, without device bytes (the engine adds those).

        ``num_computed`` leaves out nothing: call it when no step with this slot is in flight.

        Raises:
            AccountingError: the slot is free, or a token is still being drawn.
        """
        if self.status[slot] == Status.FREE or self.num_pending[slot]:
            raise AccountingError(
                "a request cannot be exported now",
                where=f"slot {slot}",
                why=f"status {int(self.status[slot])}, {int(self.num_pending[slot])} tokens being drawn",
                fix="commit the steps in flight first",
            )
        length = int(self.num_tokens[slot])
        digest = bytes(self.media_digest[slot])
        return RequestState(
            tokens=self.tokens[slot, :length].copy(),
            prompt_len=int(self.prompt_len[slot]),
            num_computed=int(self.num_computed[slot]),
            rng_position=length,
            sampling=self.sampling(slot),
            roles=self.roles_array()[slot, :length].copy() if self.has_roles[slot] else None,
            media_digest=digest if any(digest) else b"",
            cache_salt=self.salt(slot),
            **self.extras(slot).to_fields(),
        )

    def import_state(self, state: RequestState) -> int:
        """Fill a free slot from a state; nothing counts as computed until the engine restores device bytes.

        Raises:
            CapacityError, RequestError: as `create`; also when the output is already complete.
        """
        prompt_len, length = state.prompt_len, len(state.tokens)
        if length >= prompt_len + state.sampling.max_tokens:
            raise refused(
                "state", "its output already has max_tokens tokens", "import only unfinished requests"
            )
        roles = None if state.roles is None else state.roles[:prompt_len]
        slot = self.create(
            state.tokens[:prompt_len],
            state.sampling,
            roles=roles,
            media_digest=state.media_digest,
            extras=RequestExtras.of(state),
        )
        self.tokens[slot, prompt_len:length] = state.tokens[prompt_len:]
        self.num_tokens[slot] = length
        if state.cache_salt:
            self.set_salt(slot, state.cache_salt)
        return slot
