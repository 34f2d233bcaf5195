"""Models side by side on the same windows of text: bits, agreement of the likeliest token, logit differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tools.train_nano.engine_path import EngineScorer
from tools.train_nano.graph import NanoGraph
from tools.train_nano.tokenizer import PAD_TOKEN_ID

Tensor = torch.Tensor
# Token rows int64 [B, L], padded at the end -> logits f32 [B, L, V]; what stands at padding is not read.
Source = Callable[[Tensor], Tensor]
ROWS = 8
WINDOW = 512  # the longest rows of training


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found.

    Args:
        tokens: targets counted.
        nats: source -> their total negative log likelihood.
        agreement: source -> share of targets whose likeliest token is the reference's.
        mean_difference, max_difference: source -> of |logit - logit of the reference|, over targets and vocabulary.
    """

    tokens: int
    nats: Mapping[str, float]
    agreement: Mapping[str, float]
    mean_difference: Mapping[str, float]
    max_difference: Mapping[str, float]


@torch.no_grad()
def compare(sources: Mapping[str, Source], reference: str, tokens: Tensor, counted: Tensor) -> Comparison:
    """Run every source over the same rows.

    Args:
        reference: the source that the others are held against.
        tokens: int64 [N, L + 1], N a multiple of 8.
        counted: bool [N, L], the targets that count.
    """
    nats, agreed, total = (dict.fromkeys(sources, 0.0) for _ in range(3))
    largest = dict.fromkeys(sources, 0.0)
    count, values = int(counted.sum()), 0
    for start in tqdm(range(0, len(tokens), ROWS), desc="rows", unit_scale=ROWS, disable=None):
        part, mask = tokens[start : start + ROWS], counted[start : start + ROWS]
        if not mask.any():
            continue
        targets = part[:, 1:][mask]
        expected = sources[reference](part[:, :-1])[mask]
        values += expected.numel()
        for name, source in sources.items():
            logits = expected if name == reference else source(part[:, :-1])[mask]
            nats[name] += float(torch.nn.functional.cross_entropy(logits.double(), targets, reduction="sum"))
            agreed[name] += float((logits.argmax(-1) == expected.argmax(-1)).sum())
            difference = (logits - expected).abs()
            total[name] += float(difference.double().sum())
            largest[name] = max(largest[name], float(difference.max()))
    return Comparison(
        count,
        nats,
        {name: value / count for name, value in agreed.items()},
        {name: value / values for name, value in total.items()},
        largest,
    )


def graph_source(graph: NanoGraph, parameters: Mapping[str, Tensor]) -> Source:
    """The training graph as a source."""
    weights = graph.stored(parameters)

    def run(rows: Tensor) -> Tensor:
        hidden, _ = graph.hidden(weights, rows)
        return graph.logits(weights, hidden)

    return run


def engine_source(model: Path) -> Source:
    """The engine over a checkpoint as a source."""
    scorer = EngineScorer(model)

    def run(rows: Tensor) -> Tensor:
        return torch.stack([_padded(scorer, row) for row in rows])

    return run


def _padded(scorer: EngineScorer, row: Tensor) -> Tensor:
    used = int((row != PAD_TOKEN_ID).sum())
    # A row of padding only still gives logits, so that all rows of a batch have one shape.
    logits = scorer.logits(row[: max(used, 1)].tolist())
    return torch.nn.functional.pad(logits, (0, 0, 0, len(row) - len(logits)))


def full_rows(tokens: Tensor, counted: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """At most `count` rows without padding, evenly spread; fewer are cut to a multiple of 8 where there are 8."""
    whole = (tokens[:, :-1] != PAD_TOKEN_ID).all(-1).nonzero().flatten()
    if not len(whole):
        raise SystemExit(f"no window of {counted.shape[1]} tokens is full: the text is too short for this report")
    taken = min(count, len(whole))
    taken -= taken % ROWS if taken > ROWS else 0
    chosen = whole[torch.linspace(0, len(whole) - 1, taken).round().long()]
    return tokens[chosen], counted[chosen]


def bits_per_byte(nats: float, size: int) -> float:
    """Nats over `size` UTF-8 bytes as bits a byte."""
    return nats / math.log(2.0) / size


def differences(found: Comparison, reference: str) -> dict[str, Any]:
    """Agreement and logit differences of every source but the reference, for a report."""
    return {
        name: {
            "top1_agreement": found.agreement[name],
            "mean_logit_difference": found.mean_difference[name],
            "max_logit_difference": found.max_difference[name],
        }
        for name in found.nats
        if name != reference
    }
