"""A hit in the prefix cache changes no bit of what a request gets; nor does anything left in freed memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import ROOMY, Job, Trace, World, arriving, jobs, same_all, tokens

from tandem.cache.pool import BlockPool
from tandem.cache.prefix import PrefixCache, PrefixStats
from tandem.config import load_config
from tandem.engine.llm import LLM
from tandem.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=2, logprobs=2, ignore_eos=True)
BASE = tokens(1, 100)
ON: dict[str, Any] = {"cache.prefix": "on"}


def cache_of(world: World) -> PrefixCache:
    cache = world.parts.prefix
    assert cache is not None
    return cache


def stats_of(world: World) -> PrefixStats:
    return cache_of(world).stats()


def sharing(count: int, salt: int = 0) -> Job:
    """A prompt that begins with ``count`` tokens of `BASE` and goes on otherwise."""
    return Job(BASE[:count] + tokens(1000 + 7 * salt + count, 5), GREEDY)


def same_but_for_rows(got: Sequence[Trace], want: Sequence[Trace]) -> int:
    """Bitwise the same, where computed; returns how many rows were not."""
    spared = 0
    for one, other in zip(got, want, strict=True):
        a, b = one.result, other.result
        assert (a.token_ids, a.finish_reason, a.logprobs) == (b.token_ids, b.finish_reason, b.logprobs)
        assert sorted(one.logits) == sorted(other.logits)
        for position, logits in other.logits.items():
            np.testing.assert_array_equal(one.logits[position].view(np.uint32), logits.view(np.uint32))
        assert all(other.hidden[position] == bits for position, bits in one.hidden.items())
        spared += len(other.hidden) - len(one.hidden)
    return spared


def poison_what_is_freed(world: World) -> None:
    """Fill every block and page with 0xFF, all that there is and again whenever one is given back."""
    world.poison()
    caches, backend = world.parts.model.caches, world.parts.plan.backend

    def poison(pool: BlockPool, kinds: list[dict[int, Any]]) -> None:
        put_back = pool._put_back

        def and_poison(freed: np.ndarray) -> None:
            put_back(freed)
            for cache in [c for kind in kinds for c in kind.values()] if len(freed) else []:
                layout = cache.layout
                junk = np.full((len(freed), layout.block_entries * layout.entry_bytes), 0xFF, dtype=np.uint8)
                backend.kv_import(cache, freed, junk)

        pool._put_back = and_poison  # type: ignore[method-assign]

    poison(world.parts.pools.main, [caches.main, caches.index])
    poison(world.parts.pools.window, [caches.window])


@pytest.mark.parametrize(("block", "page"), [(16, 8), (4, 2)])
def test_a_hit_equals_a_miss_at_every_edge(tiny: Path, world: World, block: int, page: int) -> None:
    """Shared lengths at and beside the ends of blocks and pages; the window is 8, in blocks of 4 two blocks long."""
    own = World(tiny, ON | {"cache.block_size": block, "cache.window_block": page})
    poison_what_is_freed(own)
    edges = {edge + off for edge in (block, 8 * page, 3 * block, 6 * page) for off in (-1, 0, 1, page // 2)}
    asked = [sharing(count) for count in sorted(edges)]
    own.run([Job(BASE, GREEDY)])
    before = stats_of(own)
    got = own.run(asked)
    spared = same_but_for_rows(got, world.run(asked))
    after = stats_of(own)
    # Alone, each takes the whole blocks that it shares with the first prompt; later ones also what earlier ones left.
    least = sum(count // block * block for count in edges)
    assert spared == after.hit_tokens - before.hit_tokens >= least
    assert after.hits - before.hits == sum(count >= block for count in edges)
    cache_of(own).check()


@pytest.mark.slow
@pytest.mark.parametrize(("block", "page"), [(16, 8), (4, 2), (8, 8), (32, 4)])
def test_a_hit_equals_a_miss_at_every_offset(tiny: Path, world: World, block: int, page: int) -> None:
    own = World(tiny, ON | {"cache.block_size": block, "cache.window_block": page})
    poison_what_is_freed(own)
    for count in range(block - 2, 100):
        cache_of(own).clear()
        own.run([Job(BASE, GREEDY)])
        before = stats_of(own).hit_tokens
        asked = [sharing(count)]
        spared = same_but_for_rows(own.run(asked), world.run(asked))
        assert spared == stats_of(own).hit_tokens - before == count // block * block


def test_a_repeated_prompt_computes_its_last_tokens_only(tiny: Path, world: World) -> None:
    own = World(tiny, ON)
    asked = [Job(BASE[:96], GREEDY)]
    own.run(asked)
    got = own.run(asked)
    assert same_but_for_rows(got, world.run(asked)) == 80  # of 96 tokens one is computed, so the sixth block is too
    assert sorted(got[0].hidden) == list(range(80, 97))


def test_output_is_cached_and_a_next_turn_goes_on_from_it(tiny: Path, world: World) -> None:
    own = World(tiny, ON)
    first = Job(BASE[:20], SamplingParams(temperature=0.9, seed=3, max_tokens=30, ignore_eos=True))
    said = own.run([first])[0].result.token_ids
    turn = [Job([*BASE[:20], *said, *tokens(9, 4)], GREEDY)]
    # 49 of the 50 tokens were given to the model: three blocks of 16.
    assert same_but_for_rows(own.run(turn), world.run(turn)) == 48


def test_few_blocks_evictions_preemptions_and_poison(tiny: Path, alone: list[Trace], world: World) -> None:
    """Everything is given up, taken again and overwritten; no stale byte reaches a result."""
    own = World(tiny, ON | {"cache.num_blocks": 7, "scheduler.max_chunk": 20})
    poison_what_is_freed(own)
    rng = np.random.default_rng(4)
    asked = []
    for arrival in range(14):
        stem = tokens(500 + arrival % 3, int(rng.integers(10, 70)))
        asked.append(Job([*stem, *tokens(arrival, 5)], GREEDY, arrival=arrival))
    spared = same_but_for_rows(own.run(asked), world.run(asked))
    stats = stats_of(own)
    assert spared > 50 and stats.evicted_blocks > 20 and stats.evicted_pages > 20
    cache_of(own).check()
    # Prompts that have nothing in common: what is found now are blocks of requests that were put back.
    cache_of(own).clear()
    got = own.run(list(arriving((0, 1, 2, 3, 4), 0)))
    assert own.engine.stats.preemptions > 0 and stats_of(own).hits > stats.hits
    for one, other in zip(got, alone, strict=True):
        assert one.result.token_ids == other.result.token_ids and one.result.logprobs == other.result.logprobs
        assert all(other.hidden[position] == bits for position, bits in one.hidden.items())
    cache_of(own).check()


def test_the_cache_is_never_a_reason_to_preempt(tiny: Path) -> None:
    """Full of other prompts, it makes room for as many requests as fit without it."""
    own = World(tiny, ON | {"cache.num_blocks": 16})  # as many as `jobs` need together
    for first in range(5):
        own.run([Job(tokens(70 + first, 60), SamplingParams(temperature=0.0, max_tokens=1))])
    assert own.parts.pools.main.num_free <= 1
    own.run([Job(job.prompt, job.params) for job in jobs()])
    assert own.engine.stats.preemptions == 0 and stats_of(own).evicted_blocks > 0


def test_salts_part_and_overrides_without_digest_are_left_alone(tiny: Path, world: World) -> None:
    own = World(tiny, ON)
    hidden = own.parts.config.text.hidden_size
    rows = np.random.default_rng(0).standard_normal((2, hidden)).astype(np.float32)
    other = {"embed_rows": rows, "embed_positions": [3, 20]}
    for extras, found in [
        ({}, 0),
        ({}, 32),
        ({"cache_salt": "a"}, 0),
        ({"cache_salt": "a"}, 32),
        (other, 0),
        (other, 0),
        (other | {"media_digest": b"d" * 32}, 0),
        (other | {"media_digest": b"d" * 32}, 32),
        ({}, 32),
    ]:
        before = stats_of(own).hit_tokens
        asked = [Job(BASE[:40], GREEDY, extras)]
        same_but_for_rows(own.run(asked), world.run(asked))
        assert stats_of(own).hit_tokens - before == found, extras


@pytest.mark.parametrize("state", ["stored", "replay"])
def test_shared_blocks_are_never_written_again(tiny: Path, state: str) -> None:
    own = World(tiny, ON | {"cache.prefix_state": state, "scheduler.max_chunk": 5})
    own.run([Job(BASE, GREEDY)])
    caches, backend = own.parts.model.caches, own.parts.plan.backend
    held = own.parts.pools.main.kept
    paged = [cache for kind in (caches.main, caches.index) for cache in kind.values()]
    before = [backend.kv_export(cache, held).copy() for cache in paged]
    got = own.run([sharing(90)])
    assert stats_of(own).hits == 1
    for cache, bits in zip(paged, before, strict=True):
        np.testing.assert_array_equal(backend.kv_export(cache, held), bits)
    # 80 tokens are shared.  Replay computes the last 8 + 2 of them again, from the block's beginning at 64.
    assert min(got[0].hidden) == {"stored": 80, "replay": 64}[state]
    cache_of(own).check()


def test_replay_is_close_and_sees_no_poison(tiny: Path, world: World) -> None:
    """Replayed windows begin at the first row that runs again: other numbers, but of the same request."""
    own = World(tiny, ON | {"cache.prefix_state": "replay"})
    poison_what_is_freed(own)
    own.run([Job(BASE, GREEDY)])
    asked = [sharing(count) for count in (63, 70, 90)]
    for one, other in zip(own.run(asked), world.run(asked), strict=True):
        first = min(other.logits)
        p, q = (torch.log_softmax(torch.from_numpy(t.logits[first]), -1) for t in (other, one))
        assert float((p.exp() * (p - q)).sum()) < 0.2
    assert stats_of(own).hits == 3 and stats_of(own).pages == 0


@pytest.mark.parametrize("overlap", [pytest.param("off", marks=pytest.mark.slow), "on"])
def test_with_drafts_and_two_steps_in_flight(tiny: Path, overlap: str) -> None:
    """Sampled and greedy requests with drafts, hits and preemptions: the same tokens as without a cache."""
    asked = [
        Job([*BASE[:30], *tokens(40 + i, 4 + i)], SamplingParams(
            temperature=[0.0, 0.8][i % 2], seed=i, max_tokens=12, ignore_eos=True
        ), arrival=3 * i)
        for i in range(6)
    ]  # fmt: skip
    found = []
    for options in ({"cache.prefix": "off"}, ON | {"cache.num_blocks": 9, "scheduler.overlap": overlap}):
        args = {**ROOMY, "speculation.draft_tokens": 3, **options, "model.path": str(tiny)}
        llm = LLM(config=load_config(env={}, args=args))
        engine, cache = llm.engine, llm.engine._parts.prefix
        ids: list[int] = []
        done: dict[int, tuple[int, ...]] = {}
        now = 0
        while len(done) < len(asked):
            ids += [engine.add_request(job.prompt, job.params) for job in asked[len(ids) :] if job.arrival <= now]
            done |= {p.request_id: p.output.token_ids for p in engine.step() if p.output is not None}
            now += 1
        found.append([done[request] for request in ids])
        if cache is not None:
            assert cache.stats().hits > 0
            cache.check()
        llm.close()
    assert found[0] == found[1]


def test_off_means_off(tiny: Path, alone: list[Trace]) -> None:
    own = World(tiny, {"cache.prefix": "off"})
    assert own.parts.prefix is None
    same_all(own.run([jobs()[0]]), [alone[0]])
    assert own.parts.pools.main.num_free == own.parts.pools.main.num_blocks
