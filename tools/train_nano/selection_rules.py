"""How much of full attention a selection covers, beside the best, the most recent and a random one; and other rules
put in the indexer's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch

from tandem.model.config import TextConfig
from tools.train_nano import graph as graph_module
from tools.train_nano.attention import AttentionGraph, Rotation, Segment
from tools.train_nano.hooks import replaced

Tensor = torch.Tensor
# visible [T, E] and k -> chosen bool [B, T, E] for a batch of B
Rule = Callable[[int, Tensor, int], Tensor]


def covered(mass: Tensor, chosen: Tensor) -> Tensor:
    """Mass [..., E] inside a selection bool [..., E] -> [...]."""
    return (mass * chosen).sum(-1)


def oracle(mass: Tensor, k: int) -> Tensor:
    """Mass of the k heaviest entries: no selection of k covers more."""
    return mass.topk(min(k, mass.shape[-1]), dim=-1).values.sum(-1)


def recent(mass: Tensor, visible: Tensor, k: int) -> Tensor:
    """Mass of the last k visible entries; visible bool [T, E] is a prefix of each row."""
    return covered(mass, last_entries(visible, k))


def random_share(mass: Tensor, visible: Tensor, k: int) -> Tensor:
    """Expected mass of k visible entries drawn at random without replacement: k of n cover k/n of it."""
    count = visible.sum(-1)
    return mass.sum(-1) * torch.clamp(k / count.clamp_min(1), max=1.0)


def last_entries(visible: Tensor, k: int) -> Tensor:
    """Mask of the last k visible entries of each row, bool [T, E]; visible is a prefix of each row."""
    place = torch.arange(visible.shape[-1])
    return visible & (place >= visible.sum(-1, keepdim=True) - k)


def block_mass(mass: Tensor, block: int) -> Tensor:
    """Mass [..., E] by block of entries [..., ceil(E / block)]."""
    padded = torch.nn.functional.pad(mass, (0, -mass.shape[-1] % block))
    blocks: Tensor = padded.unflatten(-1, (-1, block))
    return blocks.sum(-1)


def visible_blocks(visible: Tensor, block: int) -> Tensor:
    """Blocks of which anything is visible, bool [T, ceil(E / block)]."""
    return block_mass(visible.float(), block) > 0


def most_recent(batch: int, visible: Tensor, k: int) -> Tensor:
    """The last k entries."""
    return last_entries(visible, k).expand(batch, -1, -1)


def at_random(batch: int, visible: Tensor, k: int) -> Tensor:
    """k visible entries drawn anew for every row; seeded, so that a measurement can be repeated."""
    generator = torch.Generator().manual_seed(k)
    order = torch.rand((batch, *visible.shape), generator=generator).masked_fill(~visible, -1.0)
    best = order.topk(min(k, visible.shape[-1]), dim=-1).indices
    return torch.zeros_like(order, dtype=torch.bool).scatter_(-1, best, True) & visible


def none_at_all(batch: int, visible: Tensor, k: int) -> Tensor:
    """Nothing: the window alone."""
    return torch.zeros((batch, *visible.shape), dtype=torch.bool)


@contextmanager
def selecting(rule: Rule) -> Iterator[None]:
    """Let every index source choose by a rule instead of its scores; the candidate pool plays no part then."""

    class Reselecting(AttentionGraph):
        def _select(
            self, x: Tensor, latent_q: Tensor, w: Mapping[str, Tensor], rotation: Rotation, segment: Segment
        ) -> Segment:
            found = super()._select(x, latent_q, w, rotation, segment)
            return replace(found, chosen=rule(x.shape[0], found.visible, self.text.index_topk))

    with replaced(graph_module, AttentionGraph=Reselecting):
        yield


def distances(text: TextConfig, layer: int, length: int) -> Tensor:
    """Tokens from each query position back to the last token of each entry, int64 [T, E]; negative: not visible."""
    ratio = text.ratio(layer)
    entry = torch.arange(length // ratio)
    return torch.arange(length)[:, None] - (entry * ratio + ratio - 1)[None, :]
