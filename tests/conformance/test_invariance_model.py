"""The model's logits of a request: the same bits alone, in chunks, among others, with padding, over junk memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.runner import implementations, plan_of
from support.tiny import Chunk, TinyModel

Tensor = torch.Tensor
LENGTH = 52  # tokens of the request under test, in slot 1


@pytest.fixture(scope="module", params=implementations())
def tiny(request: pytest.FixtureRequest, tiny_checkpoint: Path) -> TinyModel:
    return TinyModel(plan_of(request.param).backend, tiny_checkpoint)


@pytest.fixture(scope="module")
def alone(tiny: TinyModel) -> Tensor:
    """Logits [LENGTH, V] of the whole request in one step, nothing else running, memory zeroed."""
    tiny.poison(0x00)
    return tiny.logits([(1, 0, LENGTH)])


def in_chunks(tiny: TinyModel, sizes: list[int], before: list[Chunk], after: list[Chunk]) -> Tensor:
    """The request in chunks, with other chunks in each step; logits of its own rows."""
    found, first = [], 0
    lead = sum(chunk[2] for chunk in before)
    for size in sizes:
        logits = tiny.logits([*before, (1, first, size), *after], "decode" if size == 1 else "prefill")
        found.append(logits[lead : lead + size])
        first += size
    assert first == LENGTH
    return torch.cat(found)


@pytest.mark.parametrize("poison", [0x00, 0xFF, 0x3C])
def test_memory_of_others_does_not_matter(tiny: TinyModel, alone: Tensor, poison: int) -> None:
    tiny.poison(poison)
    assert torch.equal(tiny.logits([(1, 0, LENGTH)]), alone)


@pytest.mark.parametrize(
    "sizes",
    [[7] * 7 + [3], [16, 16, 16, 4], [15, 17, 1, 19], [51, 1], [40] + [1] * 12],
    ids=("sevens", "blocks", "beside-blocks", "last-alone", "decode"),
)
def test_chunks_do_not_matter(tiny: TinyModel, alone: Tensor, sizes: list[int]) -> None:
    tiny.poison(0xFF)
    assert torch.equal(in_chunks(tiny, sizes, [], []), alone)


def test_neighbours_and_padding_do_not_matter(tiny: TinyModel, alone: Tensor) -> None:
    """Other requests restart in every step, around the request and with padding between."""
    tiny.poison(0xFF)
    before, after = [(3, 0, 5), (-1, 0, 2)], [(-1, 0, 1), (0, 0, 11), (2, 0, 1)]
    assert torch.equal(in_chunks(tiny, [20, 1, 1, 30], before, after), alone)


def test_a_request_leaves_the_memory_of_others_alone(tiny: TinyModel) -> None:
    """Only blocks and state rows of the request, and scratch, change."""
    tiny.poison(0x5A)
    tiny.logits([(1, 0, LENGTH)])
    caches = tiny.model.caches
    main, window = tiny.block_table[1], tiny.window_table[1]
    for group, blocks in ((caches.main, main), (caches.index, main), (caches.window, window)):
        for cache in group.values():
            size = cache.layout.block_entries
            own = {int(b) * size + i for b in blocks for i in range(size)}
            rest = sorted(set(range(len(cache.data) - 1)) - own)
            assert bool((cache.data[rest] == 0x5A).all())
    for state in caches.compressor.values():
        assert bool((state[[0, 2, 3]].view(torch.uint8) == 0x5A).all())
    assert bool((caches.history[[0, 2, 3]].view(torch.uint8) == 0x5A).all())
