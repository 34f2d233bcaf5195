"""Bits of token streams under the training graph."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from tools.train_nano.graph import NanoGraph, token_losses
from tools.train_nano.tokenizer import BOS_TOKEN_ID, PAD_TOKEN_ID

Tensor = torch.Tensor
_ROWS = 8


def documents(stream: Tensor) -> list[Tensor]:
    """Documents of a stream, each BOS ... EOS, int64."""
    starts = (stream == BOS_TOKEN_ID).nonzero().flatten().tolist()
    return [stream[a:b].long() for a, b in zip(starts, [*starts[1:], len(stream)], strict=True)]


def windows(stream: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Cut documents into rows of inputs that predict every token but BOS exactly once.

    A row is BOS and up to `length` - 1 tokens; from the second row of a document on its first half repeats the
    end of the row before, as context.

    Returns:
        tokens int64 [N, length + 1] and counted bool [N, length], the targets that count; N is a multiple of 8,
        the last rows may be empty.
    """
    half = length // 2
    rows, masks = [], []
    for document in documents(stream):
        body = document[1:]
        start, end = 0, min(length, len(body))
        first = 0
        while True:
            piece = torch.cat((document[:1], body[start:end]))
            rows.append(torch.nn.functional.pad(piece, (0, length + 1 - len(piece)), value=PAD_TOKEN_ID))
            mask = torch.zeros(length, dtype=torch.bool)
            mask[first : end - start] = True
            masks.append(mask)
            if end == len(body):
                break
            start, first = end - half, half
            end = min(start + length, len(body))
    while len(rows) % _ROWS:  # every batch has one shape
        rows.append(torch.full_like(rows[0], PAD_TOKEN_ID))
        masks.append(torch.zeros_like(masks[0]))
    return torch.stack(rows), torch.stack(masks)


@torch.no_grad()
def stream_bits(graph: NanoGraph, parameters: Mapping[str, Tensor], stream: Tensor, length: int) -> float:
    """Bits of a stream: -sum of log2 p over all tokens except BOS, in windows of `length`."""
    weights = graph.stored(parameters)
    tokens, counted = windows(stream, length)
    total = 0.0
    for start in range(0, len(tokens), _ROWS):
        part = tokens[start : start + _ROWS]
        hidden, _ = graph.hidden(weights, part[:, :-1])
        losses = token_losses(graph, weights, hidden, part[:, 1:])
        total += float(losses[counted[start : start + _ROWS]].double().sum())
    return total / math.log(2.0)
