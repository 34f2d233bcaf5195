"""Drafts change no bit of what a request is given: tokens, logits and hidden rows are those of plain decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import Job, jobs, tokens
from support.lossless import (
    Bench,
    Forger,
    Oracle,
    Seen,
    always,
    mixed,
    never,
    same_all_seen,
    same_seen,
    texts_of,
)
from support.shipped import text_ids

from tandem.sampling.params import SamplingParams

B = 3  # of the tiny model; its window has 8 positions, ROOMY's blocks 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LENGTHS = (1, 2, 8, 9, 15, 16, 33, 50)  # around the edges of window, page and block


def greedy_jobs() -> list[Job]:
    """Prompts of every length; outputs that end at different places."""
    return [
        Job(tokens(20 + n, length), replace(GREEDY, max_tokens=9 + n % 4, logprobs=n % 3 or None))
        for n, length in enumerate(LENGTHS)
    ]


def ruled_jobs() -> list[Job]:
    """Requests whose draws follow rules; the drafts of others run beside theirs."""
    fixed: dict[str, Any] = {"ignore_eos": True, "max_tokens": 10}
    rules: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25},
        {"logit_bias": {9: 6.0, 10: 5.9, 11: float("-inf")}, "min_tokens": 6, "stop_token_ids": (9,)},
        {"forced_token_ids": (30, 31, 32, 33, 34), "logprobs": 2, "processed_logprobs": True},
        {"temperature": 1.0, "seed": 3, "top_p": 0.8, "logprobs": 1},
        {"temperature": 0.7, "seed": 4, "top_k": 9, "frequency_penalty": 1.0},
        {"temperature": 1.0, "seed": 5, "min_p": 0.02, "bad_words": ("a", "the"), "logprobs": 3},
    ]
    return [
        Job(tokens(40 + n, 5 + 6 * n), SamplingParams(**{"temperature": 0.0} | fixed | rule))
        for n, rule in enumerate(rules)
    ]


@pytest.fixture(scope="module")
def plain(tiny: Path) -> dict[str, list[Seen]]:
    """What plain decoding gives."""
    bench = Bench(tiny, {"scheduler.max_slots": 16})
    known = {"greedy": greedy_jobs(), "ruled": ruled_jobs()}
    seen = iter(bench.run([job for group in known.values() for job in group]))
    return {name: [next(seen) for _ in group] for name, group in known.items()}


def drafting(path: Path, want: list[Seen], right: Any = mixed, **options: Any) -> Bench:
    """An engine whose drafts come from the texts wanted."""
    given: Mapping[str, Any] = {"speculation.draft_tokens": B} | {
        name.replace("__", "."): value for name, value in options.items()
    }
    bench = Bench(path, given)
    Forger(bench, Oracle(list(texts_of(want)), right, bench.parts.vocab_size))
    return bench


TIGHT: dict[str, Any] = {"cache__block_size": 8, "cache__num_blocks": 8}
WAYS: dict[str, dict[str, Any]] = {
    "one draft": {"speculation__draft_tokens": 1},
    "two drafts": {"speculation__draft_tokens": 2},
    "three drafts": {},
    "overlap": {"scheduler__overlap": "on"},
    "small chunks": {"scheduler__max_chunk": 5, "scheduler__max_tokens_per_step": 32},
    "preemption": TIGHT,
    "preemption, overlap, chunks": TIGHT | {
        "scheduler__overlap": "on", "scheduler__max_chunk": 9, "cache__window_block": 4,
    },
}  # fmt: skip
FAST = ("preemption, overlap, chunks",)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize("way", [way if way in FAST else slow(way) for way in WAYS])
def test_greedy_is_plain_decoding(tiny: Path, plain: dict[str, list[Seen]], way: str) -> None:
    """Caches, rings, drafts and proposals hold 0xFF before the requests come, and free pages after every step."""
    want = plain["greedy"]
    bench = drafting(tiny, want, **WAYS[way])
    bench.poison()
    bench.after_step = bench.poison_free
    got = bench.run([replace(job, arrival=n // 3) for n, job in enumerate(greedy_jobs())])
    same_all_seen(got, want)
    assert bench.accepted > 25
    assert (bench.engine.stats.preemptions > 0) == ("cache__num_blocks" in WAYS[way])


@pytest.mark.parametrize("overlap", [slow("off"), "on"])
def test_coupled_is_plain_decoding_at_every_temperature(
    tiny: Path, plain: dict[str, list[Seen]], overlap: str
) -> None:
    want = plain["ruled"]
    bench = drafting(tiny, want, speculation__accept="coupled", scheduler__overlap=overlap, scheduler__max_chunk=9)
    same_all_seen(bench.run([replace(job, arrival=n % 3) for n, job in enumerate(ruled_jobs())]), want)
    assert bench.accepted > 20


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_coupled_with_preemption(tiny: Path, overlap: str) -> None:
    known = [*jobs(), *ruled_jobs()]
    want = Bench(tiny, {"scheduler.max_slots": 16}).run(known)
    options = TIGHT | {"cache__num_blocks": 11}  # what the longest needs
    bench = drafting(tiny, want, speculation__accept="coupled", scheduler__overlap=overlap, **options)
    same_all_seen(bench.run([replace(job, arrival=n % 4) for n, job in enumerate(known)]), want)
    assert bench.accepted > 20 and bench.engine.stats.preemptions > 0


def test_rules_hold_in_rejection_mode_where_nothing_is_drawn(tiny: Path, plain: dict[str, list[Seen]]) -> None:
    bench = drafting(tiny, plain["ruled"], always)
    same_all_seen(bench.run(ruled_jobs()[:3]), plain["ruled"][:3])
    assert bench.accepted > 15


@pytest.mark.slow
def test_drafts_of_the_model_itself(tiny: Path, plain: dict[str, list[Seen]]) -> None:
    bench = Bench(tiny, {"speculation.draft_tokens": B, "speculation.accept": "coupled"})
    same_all_seen(bench.run([*greedy_jobs(), *ruled_jobs()]), [*plain["greedy"], *plain["ruled"]])
    assert bench.accepted > 0


def test_drafts_that_are_always_right_are_all_taken(tiny: Path, plain: dict[str, list[Seen]]) -> None:
    """A draft module that equals the target: every draft is taken, every step but the last gives B + 1 tokens."""
    job, want = greedy_jobs()[3], plain["greedy"][3]
    bench = drafting(tiny, [want], always)
    same_seen(bench.run([job])[0], want)
    assert bench.parts.book is not None
    stats = bench.parts.book.stats
    # One token after the prompt, then fours; the last step judges only what is still wanted.
    left = job.params.max_tokens - 1
    assert (stats.steps, stats.accepted, stats.tested) == (-(-left // 4), left - -(-left // 4), stats.accepted)


@pytest.mark.slow
def test_drafts_that_are_never_right_are_all_refused(tiny: Path, plain: dict[str, list[Seen]]) -> None:
    bench = drafting(tiny, plain["greedy"], never)
    same_all_seen(bench.run(greedy_jobs()), plain["greedy"])
    assert bench.parts.book is not None and bench.parts.book.stats.tested > 60
    assert bench.accepted == 0


@pytest.mark.parametrize("overlap", [slow("off"), "on"])
def test_hits_in_the_prefix_cache(tiny: Path, plain: dict[str, list[Seen]], overlap: str) -> None:
    """Requests that go on from a cached prefix of a prompt with output, cut at every place around the block."""
    (text,) = texts_of(plain["greedy"][-1:])  # 50 tokens of prompt, 12 of output
    cuts = [Job(text[:length], replace(GREEDY, max_tokens=4)) for length in (31, 32, 33, 34, 41, 48, 49, 50, 51)]
    want = Bench(tiny, {"scheduler.max_slots": 9}).run(cuts)
    bench = drafting(tiny, [plain["greedy"][-1], *want], scheduler__overlap=overlap, cache__prefix="on")
    bench.poison()
    bench.after_step = bench.poison_free
    same_seen(bench.run(greedy_jobs()[-1:])[0], plain["greedy"][-1])
    same_all_seen(bench.run(cuts), want)
    assert bench.parts.prefix is not None
    assert bench.parts.prefix.stats().hits == len(cuts)  # one block of 16 at least: 15 tokens before the last are left


PLACES: dict[str, dict[str, Any]] = {
    "batch": {},
    "overlap, chunks, preemption": {
        "scheduler.overlap": "on", "scheduler.max_chunk": 6, "cache.block_size": 8, "cache.num_blocks": 5,
    },
    "prefix, small pages": {"cache.window_block": 4, "cache.prefix": "on", "cache.block_size": 8},
}  # fmt: skip


@pytest.fixture(scope="module")
def drawn_alone(tiny: Path) -> tuple[list[Job], list[Seen]]:
    """Requests that draw, each run by itself with the model's own drafts in rejection mode."""
    known = [
        Job(tokens(80 + n, length), replace(GREEDY, temperature=1.5, seed=50 + n, logprobs=1, top_p=0.99, max_tokens=8))
        for n, length in enumerate((1, 17, 28))
    ]
    bench = Bench(tiny, {"speculation.draft_tokens": B})
    seen = [bench.run([job])[0] for job in known]
    assert bench.accepted > 3
    return known, seen


@pytest.mark.parametrize("place", [slow("batch"), "overlap, chunks, preemption", slow("prefix, small pages")])
def test_rejection_depends_on_the_request_alone(
    tiny: Path, drawn_alone: tuple[list[Job], list[Seen]], place: str
) -> None:
    """The same seed gives the same text whatever runs beside it and however its rows are cut or computed again."""
    known, want = drawn_alone
    bench = Bench(tiny, {"speculation.draft_tokens": B, **PLACES[place]})
    order = (2, 0, 1)
    got = bench.run([replace(known[index], arrival=n) for n, index in enumerate(order)])
    same_all_seen(got, [want[index] for index in order])
    assert (bench.engine.stats.preemptions > 0) == ("preemption" in place)


def test_a_text_chosen_by_rejection_has_plain_logits(tiny: Path, drawn_alone: tuple[list[Job], list[Seen]]) -> None:
    """Drafts choose among likely texts; logits, hidden rows and logprobs are those of the text chosen."""
    known, want = drawn_alone
    told = [
        replace(job, params=replace(job.params, forced_token_ids=one.tokens))
        for job, one in zip(known, want, strict=True)
    ]
    same_all_seen(Bench(tiny).run(told), want)


def test_drafts_under_bounded_replay(tiny: Path) -> None:
    """How many rows of a prompt are kept does not depend on the drafts in use."""
    asks, bounded = [greedy_jobs()[-1], Job(tokens(45, 20), GREEDY)], {"model.swa_replay": "compact"}
    want = Bench(tiny, bounded).run(asks)
    bench = drafting(tiny, want, model__swa_replay="compact", scheduler__max_chunk=11, scheduler__overlap="on")
    same_all_seen(bench.run(asks), want)
    assert bench.accepted > 5


@pytest.mark.slow
def test_the_shipped_model_with_every_number_of_drafts() -> None:
    """Trained weights, blocks of five, drafts of the model's own module, prompts longer than its window."""
    asks = [
        Job(text_ids(length, start), SamplingParams(temperature=t, seed=start, max_tokens=20, logprobs=1))
        for length, start, t in ((24, 0, 0.0), (70, 20, 0.0), (1, 0, 0.0), (33, 50, 0.8))
    ]
    want = Bench(None).run(asks)
    for drafts in range(1, 6):
        bench = Bench(None, {"speculation.draft_tokens": drafts, "speculation.accept": "coupled"})
        same_all_seen(bench.run(asks), want)
        assert bench.accepted > 20


def test_the_watch_sees_a_changed_bit(tiny: Path, plain: dict[str, list[Seen]]) -> None:
    """The comparison itself: one logit that differs in its last bit is found."""
    want = plain["greedy"][0]
    values = want.values(1).copy()
    values[5] = np.nextafter(values[5], np.float32(np.inf))
    spoilt = replace(want, logits=want.logits | {1: values.tobytes()})
    with pytest.raises(AssertionError, match="logits of the token at 1"):
        same_seen(spoilt, want)
