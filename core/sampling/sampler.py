"""Drawing tokens: logit edits, sampling, verification of drafts and logprobs as bound ops, with their host inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tandem.contract.backend import HostFuture
from tandem.contract.plan import Plan
from tandem.ops._distribution import GREEDY_BELOW

Tensor = torch.Tensor
Array = npt.NDArray[Any]
Int32 = npt.NDArray[np.int32]


class Numbers(NamedTuple):
    """Sampling numbers of rows: temperature, top_p f32 [N], top_k int32 [N], min_p f32 [N], seed int64 [N]."""

    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    top_k: Int32
    min_p: npt.NDArray[np.float32]
    seed: npt.NDArray[np.int64]

    @property
    def filtered(self) -> bool:
        """Whether any row may lose a token: a hint for the ops, which saves a sort."""
        return bool((self.top_p < 1.0).any() or (self.top_k > 0).any() or (self.min_p > 0).any())

    @property
    def greedy(self) -> bool:
        """Whether every row takes its likeliest token: a hint for the ops, which need not make all logits then."""
        return bool((self.temperature < GREEDY_BELOW).all())


class SentNumbers(NamedTuple):
    """`Numbers` on the device, and whether any row may lose a token."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor
    seed: Tensor
    filtered: bool


@dataclass(frozen=True, slots=True)
class DrawInputs:
    """Host arrays of the rows that draw a token, all [N].

    Args:
        numbers: of each row.
        position: int64, absolute position of the token to be drawn.
        draft_row: int32, row of the drafts that each row verifies, -1 for none.
        forced: int32, the token that a row must give, -1 for none.
        penalties: (row, token, repetition, minus), each at most once.
        edits: (row, token, value) triples added to the logits; value -inf bans a token.
        bits: int32 [N, words], tokens allowed by a grammar; None without one.
        top_n: most logprob alternatives that any row wants, 0 for none.
        top_processed: whether they are wanted under the distribution that is drawn from, too.
    """

    numbers: Numbers
    position: npt.NDArray[np.int64]
    draft_row: Int32
    forced: Int32
    penalties: Sequence[tuple[int, int, float, float]] = ()
    edits: Sequence[tuple[int, int, float]] = ()
    bits: Int32 | None = None
    top_n: int = 0
    top_processed: bool = False


class Drafts(NamedTuple):
    """What rows verify: tokens int32 [M], and the weights int32 [M, V] they were drawn from."""

    tokens: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Drawn:
    """What rows drew; host copies are under way.

    Args:
        tokens, accepted: int32 [N] on the device; accepted is 1 where a draft was taken.
        host_tokens: future of the tokens.
        raw, processed: futures of raw and processed logprobs of these tokens; None where nobody can ask for them.
        top, top_processed: futures of (ids, logprobs) [N, n] of the likeliest tokens; None where nobody asked.
    """

    tokens: Tensor
    accepted: Tensor
    host_tokens: HostFuture
    raw: HostFuture | None = None
    processed: HostFuture | None = None
    top: tuple[HostFuture, HostFuture] | None = field(default=None)
    top_processed: tuple[HostFuture, HostFuture] | None = field(default=None)

    def logprobs(self) -> tuple[Array, Array]:
        """Raw and processed logprobs of the tokens, f32 [N] each.  Waits for them."""
        if self.raw is None or self.processed is None:
            raise AssertionError("logprobs were asked for and not made")
        return self.raw.result(), self.processed.result()


class Sampler:
    """Binds the sampling ops once.

    Args:
        plan: binds them.
        coupled: accept a draft only where drawing anew gives the same token, so that drafts never change a text.
    """

    def __init__(self, plan: Plan, coupled: bool = False) -> None:
        self._backend, self.coupled = plan.backend, coupled
        self._sample = plan.bind("sample", "sampler")
        self._verify = plan.bind("spec_verify", "sampler")
        self._draft = plan.bind("draft_sample", "sampler")
        self._penalize = plan.bind("penalize_logits", "sampler")
        self._adjust = plan.bind("adjust_logits", "sampler")
        self._mask = plan.bind("mask_logits", "sampler")
        self._process = plan.bind("process_logits", "sampler")
        self._top = plan.bind("top_logprobs", "sampler")

    def draw(self, logits: Tensor, inputs: DrawInputs, drafts: Drafts | None = None) -> Drawn:
        """Draw one token per row of logits f32 [N, V], which penalties, edits and masks change in place."""
        to_host = self._backend.to_host
        self._edit(logits, inputs)
        token, accepted, raw, processed = self._tokens(logits, inputs, drafts)
        top = top_processed = None
        if inputs.top_n:
            count, rows = min(inputs.top_n, logits.shape[1]), len(inputs.position)
            top = self._likeliest(logits, _plain(rows), count)
            if inputs.top_processed:
                top_processed = self._likeliest(logits, inputs.numbers, count)
        return Drawn(token, accepted, to_host(token), to_host(raw), to_host(processed), top, top_processed)

    def draft(
        self, logits: Tensor, numbers: SentNumbers, position: Tensor, bits: Int32 | None
    ) -> tuple[Tensor, Tensor]:
        """Draw drafts for logits f32 [N, V].

        Args:
            numbers: of the rows, from `send`.
            position: int64 [N] on the device, absolute positions of the tokens drawn.
            bits: tokens allowed by grammars, int32 [N, words], or None.

        Returns:
            tokens int32 [N] and the weights int32 [N, V] they were drawn from.
        """
        if bits is not None:
            self._mask(logits, self._backend.from_host(bits))
        token, weights = self._draft(
            logits,
            numbers.temperature,
            numbers.top_p,
            numbers.top_k,
            numbers.min_p,
            numbers.seed,
            position,
            self.coupled,
            numbers.filtered,
        )
        return token, weights

    def send(self, numbers: Numbers) -> SentNumbers:
        """Numbers on the device, for several calls of `draft`."""
        temperature, top_p, top_k, min_p, seed = self._send(numbers)
        return SentNumbers(temperature, top_p, top_k, min_p, seed, numbers.filtered)

    def plain(self, logits: Tensor, numbers: SentNumbers, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw one token per row of logits f32 [N, V] at positions int64 [N], without rules: token, raw, processed."""
        temperature, top_p, top_k, min_p, seed, filtered = numbers
        drawn: tuple[Tensor, Tensor, Tensor] = self._sample(
            logits, temperature, top_p, top_k, seed, position, filtered, min_p
        )
        return drawn

    def _edit(self, logits: Tensor, inputs: DrawInputs) -> None:
        for op, triples in ((self._penalize, inputs.penalties), (self._adjust, inputs.edits)):
            if triples:
                rows, tokens, *values = zip(*triples, strict=True)
                places = [np.array(numbers, dtype=np.int32) for numbers in (rows, tokens)]
                op(logits, *self._send([*places, *(np.array(numbers, dtype=np.float32) for numbers in values)]))
        if inputs.bits is not None:
            self._mask(logits, self._backend.from_host(inputs.bits))

    def _tokens(self, logits: Tensor, inputs: DrawInputs, drafts: Drafts | None) -> tuple[Tensor, ...]:
        """Tokens, accepted drafts, raw and processed logprobs, each [N]."""
        numbers = inputs.numbers
        (position,) = self._send([inputs.position])
        free = bool((inputs.forced < 0).all())
        if free and (drafts is None or bool((inputs.draft_row < 0).all())):
            none = self._backend.from_host(np.zeros(len(inputs.position), dtype=np.int32))
            token, raw, processed = self.plain(logits, self.send(numbers), position)
            return token, none, raw, processed
        temperature, top_p, top_k, min_p, seed = self._send(numbers)
        forced, draft_row = self._send([inputs.forced, inputs.draft_row])
        if drafts is None:  # forced tokens alone; no row names a draft
            empty = np.zeros((1, logits.shape[1]), dtype=np.int32)
            drafts = Drafts(*self._send([np.full(1, -1, dtype=np.int32), empty]))
        found: tuple[Tensor, ...] = self._verify(
            logits,
            temperature,
            top_p,
            top_k,
            min_p,
            seed,
            position,
            forced,
            drafts.tokens,
            drafts.weights,
            draft_row,
            self.coupled,
            numbers.filtered,
        )
        return found

    def _likeliest(self, logits: Tensor, numbers: Numbers, count: int) -> tuple[HostFuture, HostFuture]:
        temperature, top_p, top_k, min_p, _ = self._send(numbers)
        logprobs = self._process(logits, temperature, top_p, top_k, numbers.filtered, min_p)
        ids, values = self._top(logprobs, count)
        return self._backend.to_host(ids), self._backend.to_host(values)

    def _send(self, arrays: Sequence[Array]) -> list[Tensor]:
        return [self._backend.from_host(array) for array in arrays]


def _plain(rows: int) -> Numbers:
    """Numbers that leave a distribution as it is."""
    ones = np.ones(rows, dtype=np.float32)
    return Numbers(ones, ones, np.full(rows, -1, dtype=np.int32), ones - 1, np.zeros(rows, dtype=np.int64))
