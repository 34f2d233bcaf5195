"""What a request gives back, and the host side of one request while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tandem.engine.bad_words import BadWords
from tandem.engine.draw_rules import DrawRules
from tandem.engine.rules import LogitRules
from tandem.errors import TandemError
from tandem.sampling.params import SamplingParams
from tandem.sampling.stops import StopChecker
from tandem.structured.guide import Guide
from tandem.tokenizer.detokenize import IncrementalDetokenizer
from tandem.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Logprobs of one output token (natural logarithm).

    Args:
        token_id: the token.
        raw: under the model's distribution (after bans and bias, before temperature).
        processed: under the distribution it was drawn from; None where not asked for.
        top, top_processed: raw and processed logprobs of the likeliest tokens; those that were removed are left out.
    """

    token_id: int
    raw: float
    processed: float | None
    top: Mapping[int, float] = field(default_factory=dict)
    top_processed: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request, or the error that ended it.

    Args:
        request_id: given by the engine.
        prompt_token_ids: the prompt.
        token_ids: drawn tokens, the stop token included.
        text: their text without special tokens, cut before a stop string.
        finish_reason: "stop", "length", "cancelled", "deadline" or "error".
        stop_reason: the stop token id or stop string that ended it.
        logprobs: one entry a token where asked for.
        prompt_logprobs: one entry a prompt token but the first, where asked for.
        error: why it failed; None otherwise.
        preemptions: how often it was put back and recomputed.
        copy: which of the outputs of one prompt it is, from 0.
        others: where several were asked for, those of the copies 1 to n - 1.
    """

    request_id: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: str = ""
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    error: TandemError | None = None
    preemptions: int = 0
    copy: int = 0
    others: tuple[RequestOutput, ...] = ()

    @property
    def copies(self) -> tuple[RequestOutput, ...]:
        """All outputs of the prompt, ``n`` of its parameters; this one is the first."""
        return (self, *self.others)


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """What one step added to a request: its new tokens, the text they complete, and the output once finished.

    Where one prompt has several outputs, `copy` tells which of them it belongs to.
    """

    request_id: int
    token_ids: tuple[int, ...]
    text: str
    output: RequestOutput | None = None
    copy: int = 0


class LiveRequest:
    """Host state of a running request that is text, not numbers: decoding, stop strings, logprobs.

    The engine decides by numbers which token is the last; only a stop string may end the request before that.

    Args:
        request_id: given by the engine.
        prompt: token ids.
        params: sampling parameters.
        tokenizer: decodes; None when the engine runs on token ids alone.
        eos_id: the model's end token.
        copy: which output of its prompt it is.
    """

    def __init__(
        self,
        request_id: int,
        prompt: tuple[int, ...],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        eos_id: int,
        copy: int = 0,
    ) -> None:
        self.request_id, self.prompt, self.params, self.copy = request_id, prompt, params, copy
        self.deadline = None if params.deadline_s is None else time.monotonic() + params.deadline_s
        self.stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else {eos_id})
        self.banned_ids = sorted(self.stop_ids) if params.min_tokens else []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob] = []
        self.stop_reason: int | str | None = None
        self.ended = False
        self.slot = -1  # where it runs
        self.guide: Guide | None = None
        self.rules = LogitRules(params, len(prompt), self.banned_ids)
        self.bad_words: BadWords | None = None
        if params.bad_words and tokenizer is not None:
            self.bad_words = BadWords(tokenizer.token_index, params.bad_words)
        self._pieces: list[str] = []
        self._decoder = None if tokenizer is None else IncrementalDetokenizer(tokenizer.token_bytes)
        self._stops = StopChecker(params.stop, params.min_tokens)

    @property
    def text(self) -> str:
        """Text so far."""
        return "".join(self._pieces)

    def accept(self, tokens: Sequence[int], reason: str = "") -> tuple[int, str, str]:
        """Take drawn tokens.

        Args:
            tokens: in order.
            reason: why the last of them ends the request, as far as numbers decide; "" if it does not.

        Returns:
            (tokens taken, new text, finish reason or ""); a stop string may end the request before the last token.
        """
        text, taken = "", 0
        for place, token in enumerate(tokens):
            self.token_ids.append(token)
            taken += 1
            text += self._stops.feed("" if self._decoder is None else self._decoder.feed([token]))
            last = bool(reason) and place == len(tokens) - 1
            if last and self._stops.matched is None:
                text += self._stops.finish("" if self._decoder is None else self._decoder.flush())
            if self._stops.matched is not None:
                self.stop_reason, reason = self._stops.matched, "stop"
                break
            if last and reason == "stop" and token in self.stop_ids:
                self.stop_reason = token
        else:
            reason = reason if taken else ""
        self._pieces.append(text)
        self.ended = bool(reason)
        return taken, text, reason

    def rules_left(self, rules: DrawRules) -> DrawRules:
        """Its rules, with a deadline that counts from now; one that has passed is as near as can be."""
        if self.deadline is None:
            return rules
        return replace(rules, deadline_s=max(self.deadline - time.monotonic(), 1e-9))

    def flush(self) -> str:
        """Text that was held back, as the beginning of a stop string or of a character; nothing more comes."""
        text = "" if self.ended else self._stops.finish("" if self._decoder is None else self._decoder.flush())
        self._pieces.append(text)
        return text

    def close(self, reason: str, preemptions: int, error: TandemError | None = None) -> StreamPiece:
        """End it here, with what it has."""
        text = self.flush()
        return StreamPiece(self.request_id, (), text, self.output(reason, preemptions, error), self.copy)

    def output(self, reason: str, preemptions: int, error: TandemError | None = None) -> RequestOutput:
        """The finished result."""
        self.ended = True
        return RequestOutput(
            request_id=self.request_id,
            prompt_token_ids=self.prompt,
            token_ids=tuple(self.token_ids),
            text=self.text,
            finish_reason=reason,
            stop_reason=self.stop_reason,
            logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
            prompt_logprobs=tuple(self.prompt_logprobs) if self.params.prompt_logprobs is not None else None,
            error=error,
            preemptions=preemptions,
            copy=self.copy,
        )
