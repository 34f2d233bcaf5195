"""Discrete decisions: what was selected, by what distance, and how a caller imposes other selections."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Rows = Mapping[int, Sequence[Sequence[int] | None]]


@dataclass
class Choices:
    """Per layer, per position: ids. A missing layer, a short list or a None leaves it to the oracle.

    indices: compressed positions of each index-source layer, ascending.
    blocks: candidate block ids of the candidate-source layer, ascending.
    experts: routed experts of each layer in slot order (score descending), which is the order of summation.
    """

    indices: Rows = field(default_factory=dict)
    blocks: Rows = field(default_factory=dict)
    experts: Rows = field(default_factory=dict)


@dataclass
class Margins:
    """Same shape as Choices: lowest selected score minus highest rejected one, inf when nothing was rejected.

    Of an imposed selection it is negative when the oracle's own scores would have selected otherwise.
    Index and block scores are bf16 values; expert scores are the biased router scores.
    """

    indices: dict[int, list[float]] = field(default_factory=dict)
    blocks: dict[int, list[float]] = field(default_factory=dict)
    experts: dict[int, list[float]] = field(default_factory=dict)


def imposed(rows: Rows, layer: int, position: int) -> Sequence[int] | None:
    given = rows.get(layer, ())
    return given[position] if position < len(given) else None


def select(
    scores: Tensor, legal: Tensor, pool: Tensor, k: int, rows: Rows, layer: int
) -> tuple[list[list[int]], list[float]]:
    """The k best of each row of scores [T, N] inside `pool`, ties to the lower id; in order of selection.

    `legal` and `pool` are bool [T, N], pool within legal. An imposed selection must be legal and free of
    duplicates; one that leaves the pool has margin -inf.
    """
    usable = scores.masked_fill(~pool, -math.inf)
    order = torch.sort(usable, dim=-1, descending=True, stable=True).indices
    selections: list[list[int]] = []
    margins: list[float] = []
    for position in range(scores.shape[0]):
        forced = imposed(rows, layer, position)
        if forced is None:
            chosen = order[position, : min(k, int(pool[position].sum()))].tolist()
        else:
            chosen = [int(c) for c in forced]
            allowed = set(torch.nonzero(legal[position]).flatten().tolist())
            if len(set(chosen)) != len(chosen) or not allowed.issuperset(chosen):
                raise ValueError(f"layer {layer}, position {position}: imposed ids {chosen} are not legal")
        rejected = pool[position].clone()
        rejected[chosen] = False
        margin = math.inf
        if chosen and bool(rejected.any()):
            margin = float(usable[position, chosen].min() - usable[position, rejected].max())
        selections.append(chosen)
        margins.append(margin)
    return selections, margins


def as_mask(selections: list[list[int]], width: int) -> Tensor:
    """bool [T, width], true at the selected ids."""
    mask = torch.zeros(len(selections), width, dtype=torch.bool)
    for row, chosen in zip(mask, selections, strict=True):
        row[chosen] = True
    return mask
