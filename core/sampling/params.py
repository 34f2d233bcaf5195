"""What a request may ask of the sampler."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard

import numpy as np

from tandem.errors import RequestError
from tandem.structured.spec import StructuredSpec

MAX_LOGPROBS = 1000
MAX_COPIES = 64
FREE = -1  # in forced_token_ids: the token is drawn

_INT32 = 1 << 31
_PENALTIES = ("presence_penalty", "frequency_penalty")
_UINT64 = 1 << 64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    Args:
        temperature: divides the logits; finite, at least 0.  Below 1e-5 the most likely token is taken
            (lowest id on ties), without random numbers.
        min_p: in [0, 1]; keeps tokens at least this times as likely as the likeliest, before top_p sees them;
            0 keeps all.
        top_p: in (0, 1]; keeps the most likely tokens up to and including the one that reaches this
            probability.
        top_k: keeps at most this many tokens after top_p; -1 keeps all.
        max_tokens: longest output.
        min_tokens: the output does not end by a stop token, stop string or the model's end token before
            this; such tokens are not drawn sooner.
        stop: stop strings; the output ends just before the first one.  A single string is taken as one.
        stop_token_ids: tokens that end the output, besides the model's end token.
        ignore_eos: treat the model's end token as any other.
        seed: 64-bit seed; the same seed and prompt give the same tokens.  None: the engine draws one.
        logprobs: None for none; n for the raw log-probability (temperature 1, no filter) of each drawn
            token and of the n most likely ones.
        processed_logprobs: also give each drawn token's log-probability in the distribution it was drawn
            from.
        logit_bias: token id -> number added to its logit; -inf bans the token.
        repetition_penalty: divides positive and multiplies other logits of tokens in prompt or output; above 0, 1
            is off.
        presence_penalty, frequency_penalty: in -2..2; taken from the logits of tokens in the output, once, and for
            each time they occur.
        bad_words: strings that the output's text does not contain, however tokens cut it; docs/REQUESTS.md.
        n: number of outputs, 1 to 64; output i draws with seed + i.
        prompt_logprobs: None for none; n for the raw log-probability of each prompt token and of the n most likely.
        forced_token_ids: the first output tokens, whatever would be drawn or is banned; -1 leaves a place free.
        priority: requests of a lower number go first.
        deadline_s: seconds from its arrival after which the request ends with what it has; None for no end.
        structured: the form that the output must have, as a `StructuredSpec` or a mapping of its fields.

    Raises:
        RequestError: a value is of the wrong type or out of range; temperature and top_p are judged as
            float32 too, as they are used.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 256
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    processed_logprobs: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bad_words: tuple[str, ...] = ()
    n: int = 1
    prompt_logprobs: int | None = None
    forced_token_ids: tuple[int, ...] = ()
    priority: int = 0
    deadline_s: float | None = None
    structured: StructuredSpec | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_penalties()
        self._check_bounds()
        self._check_texts()
        self._check_tokens()
        self._check_bias()
        self._check_structured()

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> SamplingParams:
        """From a JSON object: lists for tuples, and token ids of `logit_bias` as strings of digits.

        Raises:
            RequestError: an unknown name, or a value that the constructor refuses.
        """
        known = [item.name for item in fields(cls)]
        for name in raw:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                raise RequestError(
                    "a sampling parameter is not known",
                    where=f"SamplingParams.{name}",
                    why="there is no parameter of that name",
                    fix=f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(known)}",
                )
        values = dict(raw)
        bias = values.get("logit_bias")
        if isinstance(bias, Mapping):
            values["logit_bias"] = {_token_of_key(key): value for key, value in bias.items()}
        return cls(**values)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken; the comparison is the device's, in float32."""
        return bool(np.float32(self.temperature) < np.float32(1e-5))

    @property
    def is_filtered(self) -> bool:
        """Whether min_p, top_p or top_k may remove a token: the `filtered` hint of the `sample` op."""
        return not self.is_greedy and bool(
            np.float32(self.min_p) > 0 or np.float32(self.top_p) < 1 or self.top_k != -1
        )

    def check_vocabulary(self, size: int) -> None:
        """Refuse token ids that a model with `size` tokens does not have.

        Raises:
            RequestError: names the field and the id.
        """
        for name in ("stop_token_ids", "forced_token_ids", "logit_bias"):
            for token in getattr(self, name):
                if token >= size:
                    raise _refused(name, token, f"token ids below the vocabulary size {size}")
        if self.structured is not None:
            self.structured.check_vocabulary(size)

    def _check_numbers(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", *_PENALTIES):
            value = getattr(self, name)
            if not _is_number(value):
                raise _refused(name, value, "a number")
        temperature, top_p = _float32(self.temperature), _float32(self.top_p)
        if not (math.isfinite(temperature) and self.temperature >= 0):
            raise _refused("temperature", self.temperature, "a finite number of at least 0")
        if not (top_p > 0 and 0 < self.top_p <= 1):
            raise _refused("top_p", self.top_p, "a number above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise _refused("min_p", self.min_p, "a number from 0 to 1")
        if not (_is_integer(self.top_k) and (self.top_k == -1 or 1 <= self.top_k < _INT32)):
            raise _refused("top_k", self.top_k, "an integer from 1 to 2147483647, or -1 to keep all tokens")
        for name in ("ignore_eos", "processed_logprobs"):
            if type(getattr(self, name)) is not bool:
                raise _refused(name, getattr(self, name), "True or False")

    def _check_penalties(self) -> None:
        repetition = _float32(self.repetition_penalty)
        if not (math.isfinite(repetition) and repetition > 0):
            raise _refused("repetition_penalty", self.repetition_penalty, "a finite number above 0, 1 for none")
        for name in _PENALTIES:
            if not -2 <= getattr(self, name) <= 2:
                raise _refused(name, getattr(self, name), "a number from -2 to 2")

    def _check_bounds(self) -> None:
        if not (_is_integer(self.max_tokens) and 1 <= self.max_tokens < _INT32):
            raise _refused("max_tokens", self.max_tokens, "an integer from 1 to 2147483647")
        if not (_is_integer(self.min_tokens) and 0 <= self.min_tokens <= self.max_tokens):
            allowed = f"an integer from 0 to max_tokens ({self.max_tokens})"
            raise _refused("min_tokens", self.min_tokens, allowed)
        if self.seed is not None and not (_is_integer(self.seed) and 0 <= self.seed < _UINT64):
            raise _refused("seed", self.seed, "an integer from 0 to 2^64 - 1, or None")
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and not (_is_integer(count) and 0 <= count <= MAX_LOGPROBS):
                raise _refused(name, count, f"an integer from 0 to {MAX_LOGPROBS}, or None")
        if not (_is_integer(self.n) and 1 <= self.n <= MAX_COPIES):
            raise _refused("n", self.n, f"an integer from 1 to {MAX_COPIES}")
        if not (_is_integer(self.priority) and -_INT32 <= self.priority < _INT32):
            raise _refused("priority", self.priority, "an integer from -2147483648 to 2147483647")
        seconds = self.deadline_s
        if seconds is not None and not (_is_number(seconds) and 0 < seconds < math.inf):
            raise _refused("deadline_s", seconds, "a finite number of seconds above 0, or None")

    def _check_texts(self) -> None:
        for name in ("stop", "bad_words"):
            given: object = getattr(self, name)
            texts = (given,) if isinstance(given, str) else _as_tuple(name, given)
            if not all(isinstance(item, str) and item for item in texts):
                raise _refused(name, given, "non-empty strings")
            if any(0xD800 <= ord(character) < 0xE000 for item in texts for character in item):
                raise _refused(name, given, "strings of valid Unicode, without halves of surrogate pairs")
            object.__setattr__(self, name, texts)

    def _check_tokens(self) -> None:
        stops = _as_tuple("stop_token_ids", self.stop_token_ids)
        if not all(_is_token(item) for item in stops):
            raise _refused("stop_token_ids", self.stop_token_ids, "token ids of at least 0")
        forced = _as_tuple("forced_token_ids", self.forced_token_ids)
        if not all(_is_token(item) or (_is_integer(item) and item == FREE) for item in forced):
            raise _refused("forced_token_ids", self.forced_token_ids, "token ids of at least 0, or -1 for a free place")
        object.__setattr__(self, "stop_token_ids", stops)
        object.__setattr__(self, "forced_token_ids", forced)

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise _refused("logit_bias", self.logit_bias, "a mapping from token id to number")
        for token, value in self.logit_bias.items():
            if not _is_token(token):
                raise _refused("logit_bias", token, "token ids of at least 0 as keys")
            if not _is_number(value) or not (value == -math.inf or math.isfinite(_float32(value))):
                raise _refused(f"logit_bias[{token}]", value, "a finite number, or -inf to ban the token")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))

    def _check_structured(self) -> None:
        given: object = self.structured
        if isinstance(given, Mapping):
            object.__setattr__(self, "structured", StructuredSpec.from_dict(given))
        elif given is not None and not isinstance(given, StructuredSpec):
            raise _refused("structured", given, "a StructuredSpec, or an object with kind and schema")


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_token(value: object) -> bool:
    return _is_integer(value) and 0 <= value < _INT32


def _float32(value: float) -> float:
    """The number as the device sees it; infinite where it does not fit."""
    try:
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    except OverflowError:  # an integer beyond every float
        return math.inf if value > 0 else -math.inf


def _as_tuple(name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        raise _refused(name, value, "a tuple or a list")
    return tuple(value)


def _token_of_key(key: object) -> object:
    digits = isinstance(key, str) and len(key) <= 10 and key.isascii() and key.isdigit()
    return int(str(key)) if digits else key


def _refused(name: str, value: object, allowed: str) -> RequestError:
    return RequestError(
        "a sampling parameter cannot be used",
        where=f"SamplingParams.{name}",
        why=f"it is {_shown(value)}",
        fix=f"give {allowed}",
    )


def _shown(value: object) -> str:
    """`repr`, cut to a readable length; integers too long for it by their size."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
