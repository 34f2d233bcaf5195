"""From the tokens of a step to pieces of text: the work that no number depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tandem.contract.backend import HostFuture
from tandem.engine.ends import REASONS
from tandem.engine.outputs import LiveRequest, StreamPiece, TokenLogprob
from tandem.engine.plan import Int32
from tandem.engine.prompts import Scored
from tandem.engine.requests import RequestTable
from tandem.errors import RequestError, TandemError
from tandem.sampling.sampler import Drawn


@dataclass(frozen=True, slots=True)
class Ending:
    """Why and how a request ends.

    Args:
        reason: finish reason.
        preemptions: how often it was put back.
        error: what ended it, for reason "error".
    """

    reason: str
    preemptions: int
    error: TandemError | None = None


def ending_of(request: LiveRequest, code: int, table: RequestTable) -> Ending:
    """How a request ends that ends with its newest tokens, which are committed, for a code of `TokenEnds`."""
    preemptions = int(table.preemptions[request.slot])
    if code in REASONS:
        return Ending(REASONS[code], preemptions)
    if request.guide is not None and request.guide.failed is not None:
        return Ending("error", preemptions, request.guide.failed)
    error = RequestError(
        "no token can be drawn",
        where=f"request {request.request_id}, after {int(table.num_tokens[request.slot])} tokens",
        why="the logits of this request hold NaN, or every token is banned",
        fix="check the weights, logit_bias, min_tokens, bad words and the grammar; other requests go on",
    )
    return Ending("error", preemptions, error)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step gave to requests.

    Args:
        requests: those that get something, n.
        tokens, counts: int32 [n, m] and [n], their new tokens.
        first: int32 [n], first row of each among the rows of `drawn`.
        preemptions: int32 [n], how often each was put back.
        endings: by place, those that end with these tokens.
        drawn: logprobs by row.
        scored: logprobs of prompts.
    """

    requests: Sequence[LiveRequest]
    tokens: Int32
    counts: Int32
    first: Int32
    preemptions: Int32
    endings: Mapping[int, Ending]
    drawn: Drawn | None = None
    scored: Sequence[Scored] = field(default_factory=tuple)


def deliver(batch: Batch) -> tuple[list[StreamPiece], list[int]]:
    """Hand tokens to their requests; a request that a stop string ends gets its output here.

    Returns:
        The pieces, and the ids of requests that have ended.
    """
    for scored in batch.scored:
        scored.request.prompt_logprobs += _prompt_logprobs(scored)
    pieces = []
    rows = zip(batch.requests, batch.tokens.tolist(), batch.counts.tolist(), strict=True)
    for place, (request, tokens, count) in enumerate(rows):
        if request.ended:
            continue
        ending = batch.endings.get(place)
        pieces.append(_piece(batch, place, request, tokens[:count], ending))
    return pieces, [piece.request_id for piece in pieces if piece.output is not None]


def _piece(
    batch: Batch, place: int, request: LiveRequest, tokens: list[int], ending: Ending | None
) -> StreamPiece:
    cause = "" if ending is None or ending.error is not None else ending.reason
    taken, text, reason = request.accept(tokens, cause)
    if request.params.logprobs is not None and batch.drawn is not None:
        first = int(batch.first[place])
        request.logprobs += _logprobs(batch.drawn, first, tokens[:taken], request)
    error, output = None, None
    if ending is not None and not reason:
        reason, error = ending.reason, ending.error
        text += request.flush()
    if reason:
        output = request.output(reason, int(batch.preemptions[place]), error)
    return StreamPiece(request.request_id, tuple(tokens[:taken]), text, output, request.copy)


def _logprobs(drawn: Drawn, first: int, tokens: Sequence[int], request: LiveRequest) -> list[TokenLogprob]:
    params, found = request.params, []
    raw, processed = drawn.logprobs()
    for row, token in enumerate(tokens, first):
        found.append(
            TokenLogprob(
                token,
                float(raw[row]),
                float(processed[row]) if params.processed_logprobs else None,
                _top(drawn.top, row, params.logprobs or 0),
                _top(drawn.top_processed, row, params.logprobs or 0) if params.processed_logprobs else {},
            )
        )
    return found


def _prompt_logprobs(scored: Scored) -> list[TokenLogprob]:
    raw, _ = scored.drawn.logprobs()
    count = scored.request.params.prompt_logprobs or 0
    return [
        TokenLogprob(token, float(raw[row]), None, _top(scored.drawn.top, row, count))
        for row, token in enumerate(scored.tokens.tolist())
    ]


def _top(pair: tuple[HostFuture, HostFuture] | None, row: int, count: int) -> dict[int, float]:
    if pair is None or not count:
        return {}
    ids, values = pair[0].result()[row][:count].tolist(), pair[1].result()[row][:count].tolist()
    return {token: value for token, value in zip(ids, values, strict=True) if value > -np.inf}
