"""Losses: next-token likelihood, and the alignment that teaches the indexer what full attention looks at."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tandem.model.config import TextConfig
from tools.train_nano.attention import NEVER, block_scores
from tools.train_nano.graph import NanoGraph, Observations, token_losses

Tensor = torch.Tensor


def next_token_loss(
    graph: NanoGraph, weights: Mapping[str, Tensor], hidden: Tensor, targets: Tensor, share: Tensor
) -> Tensor:
    """Mean negative log likelihood in nats over targets [B, T] weighted by share [B, T]."""
    losses = token_losses(graph, weights, hidden, targets)
    return (losses * share).sum() / share.sum().clamp_min(1.0)


def alignment_loss(seen: Observations, text: TextConfig) -> Tensor:
    """Cross entropy between where full attention looks and softmax of the index scores, mean over index sources.

    A source serves all layers up to the next one, so its target is their mean.  The candidate source also
    learns, block by block, what all later layers of its segment look at: its pool is all they can choose from.
    """
    terms = []
    for source, scores in seen.scores.items():
        layers = [layer for layer in seen.masses if text.index_source(layer) == source]
        terms.append(_cross_entropy(_mean(seen.masses, layers), scores))
        if source == text.candidate_source_layer_id:
            later = [layer for layer in seen.masses if layer >= source]
            block = text.candidate_block_size
            terms.append(_cross_entropy(_block_sums(_mean(seen.masses, later), block), block_scores(scores, block)))
    return torch.stack(terms).mean() if terms else torch.zeros(())


def _mean(masses: Mapping[int, Tensor], layers: list[int]) -> Tensor:
    return torch.stack([masses[layer] for layer in layers]).mean(0)


def _block_sums(mass: Tensor, block: int) -> Tensor:
    padded = torch.nn.functional.pad(mass, (0, -mass.shape[-1] % block))
    sums: Tensor = padded.unflatten(-1, (-1, block)).sum(-1)
    return sums


def _cross_entropy(target: Tensor, scores: Tensor) -> Tensor:
    """Mean over rows that see anything; target [B, T, E] is zero where scores are -inf."""
    seen = (scores > NEVER).any(-1)
    log_p = torch.log_softmax(scores[seen], dim=-1)
    wanted = target[seen]
    return -(wanted * log_p.masked_fill(wanted == 0, 0.0)).sum(-1).mean()
