"""Requests that end inside a block of accepted drafts end where plain decoding ends them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import Job, tokens
from support.lossless import EOS, Bench, Forger, Oracle, Seen, always, mixed, same_all_seen, same_seen, texts_of

from tandem.sampling.params import SamplingParams

B = 3
SLOW = pytest.mark.slow
LONG = SamplingParams(temperature=0.0, max_tokens=11, ignore_eos=True)
PROMPT = tokens(91, 13)


@pytest.fixture(scope="module")
def plain(tiny: Path) -> Bench:
    """An engine without drafts."""
    return Bench(tiny, {"scheduler.max_slots": 16})


@pytest.fixture(scope="module")
def whole(plain: Bench) -> Seen:
    """What plain decoding gives to the prompt, nothing ending it."""
    return plain.run([Job(PROMPT, LONG)])[0]


def drafting(path: Path, want: list[Seen], right: Any = always, **options: Any) -> Bench:
    given: dict[str, Any] = {"speculation.draft_tokens": B, "scheduler.max_slots": 16}
    bench = Bench(path, given | {name.replace("__", "."): value for name, value in options.items()})
    Forger(bench, Oracle(list(texts_of(want)), right, bench.parts.vocab_size))
    return bench


def bias_for_eos(seen: Seen) -> float:
    """The least bias under which the end token is chosen somewhere in a greedy text, and not at its start."""
    start = len(seen.result.prompt_token_ids)
    gaps = [float(values.max() - values[EOS]) for values in map(seen.values, range(start, start + len(seen.tokens)))]
    assert int(np.argmin(gaps)) > 1
    return min(gaps) + 1e-3


def ending_jobs(whole: Seen) -> list[Job]:
    """Ends at every place of the first blocks, by every rule that can end a request."""
    text = whole.tokens
    jobs = [Job(PROMPT, replace(LONG, stop_token_ids=(text[place],))) for place in range(1, 8)]
    jobs += [Job(PROMPT, replace(LONG, max_tokens=count)) for count in range(1, 7)]
    jobs.append(Job(PROMPT, replace(LONG, ignore_eos=False, logit_bias={EOS: bias_for_eos(whole)})))
    jobs.append(Job(PROMPT, replace(LONG, ignore_eos=False, forced_token_ids=(*text[:5], EOS))))
    jobs.append(Job(PROMPT, replace(LONG, stop_token_ids=(text[2], text[6]), min_tokens=5, logprobs=1)))
    return jobs


@pytest.mark.parametrize("overlap", [pytest.param("off", marks=SLOW), "on"])
def test_ends_inside_accepted_drafts(tiny: Path, plain: Bench, whole: Seen, overlap: str) -> None:
    jobs = ending_jobs(whole)
    want = plain.run(jobs)
    assert [len(one.tokens) for one in want[:7]] == [whole.tokens.index(whole.tokens[n]) + 1 for n in range(1, 8)]
    assert {one.result.stop_reason for one in want[-3:-1]} == {EOS} and len(want[-2].tokens) == 6
    bench = drafting(tiny, [whole, *want], scheduler__overlap=overlap)
    same_all_seen(bench.run(jobs), want)
    assert bench.accepted > 40


def crossing(bench: Bench, seen: Seen) -> list[str]:
    """Pairs of characters of a text, the first of which ends a token and the second begins another."""
    ends = [len(bench.parts.tokenizer.decode(list(seen.tokens[:n]))) for n in range(len(seen.tokens) + 1)]
    text = seen.result.text
    spans = [text[ends[n] - 1 : ends[n] + 1] for n in range(2, 9) if ends[n + 1] > ends[n] > ends[n - 1]]
    return [span for span in spans if len(span) == 2 and "\ufffd" not in span]


@pytest.mark.parametrize("overlap", [pytest.param("off", marks=SLOW), "on"])
def test_a_stop_string_across_accepted_drafts(tiny: Path, plain: Bench, overlap: str) -> None:
    """The string begins inside one token and ends inside a later one; what follows it is dropped, drafts included."""
    prompts = [tokens(number, 13) for number in range(91, 107)]  # many texts of the tiny model are no UTF-8
    found = zip(prompts, plain.run([Job(prompt, LONG) for prompt in prompts]), strict=True)
    prompt, whole, spans = next((*one, spans) for one in found if len(spans := crossing(plain, one[1])) > 2)
    jobs = [Job(prompt, replace(LONG, stop=(span,), logprobs=0)) for span in spans]
    want = plain.run(jobs)
    assert {one.result.finish_reason for one in want} == {"stop"}
    bench = drafting(tiny, [whole], scheduler__overlap=overlap)
    for got, one in zip(bench.run(jobs), want, strict=True):
        same_seen(got, one)
        assert got.result.logprobs is not None and len(got.result.logprobs) == len(got.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_cancelled_at_every_point(tiny: Path, whole: Seen, overlap: str) -> None:
    """A request cancelled after any number of steps has a beginning of its text; its neighbour notices nothing."""
    bench = drafting(tiny, [whole], mixed, scheduler__overlap=overlap, scheduler__max_slots=2, scheduler__max_chunk=6)
    lengths, late_tokens = [], []
    for steps in range(7):
        doomed, kept = bench.add(Job(PROMPT, LONG)), bench.add(Job(PROMPT, replace(LONG, max_tokens=6)))
        for _ in range(steps):
            bench.step()
        output = bench.engine.cancel(doomed)
        assert output is not None and output.finish_reason == "cancelled"
        assert output.token_ids == whole.tokens[: len(output.token_ids)]
        lengths.append(len(output.token_ids))
        late = bench.add(Job(PROMPT[:9], replace(LONG, max_tokens=2)))  # takes the slot over
        while not bench.engine.idle:
            bench.step()
        bench.check_clean()
        assert bench.seen[kept].tokens == whole.tokens[:6]
        late_tokens.append(bench.seen[late].tokens)
    assert lengths == sorted(lengths) and lengths[0] == 0 and lengths[-1] >= 4
    assert len(set(late_tokens)) == 1


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("bad", [3, pytest.param(4, marks=SLOW), pytest.param(5, marks=SLOW), 6])
def test_nan_in_a_block_ends_only_its_request(
    tiny: Path, plain: Bench, whole: Seen, overlap: str, bad: int
) -> None:
    """Wherever the row stands in its block, the tokens before it are given and the others go on."""
    bench = drafting(tiny, [whole], scheduler__overlap=overlap)
    sick, well = bench.add(Job(PROMPT, LONG)), bench.add(Job(PROMPT, LONG))
    bench.spoil = lambda request, position: request == sick and position == len(PROMPT) + bad
    while not bench.engine.idle:
        bench.step()
    bench.check_clean()
    output = bench.seen[sick].result
    assert (output.finish_reason, output.token_ids) == ("error", whole.tokens[:bad])
    assert output.error is not None and "NaN" in str(output.error)
    same_seen(bench.seen[well], whole)


@pytest.mark.parametrize("end", ["stop", pytest.param("length", marks=SLOW)])
def test_nan_behind_the_end_is_no_error(tiny: Path, plain: Bench, whole: Seen, end: str) -> None:
    """A row that plain decoding would never run may hold anything."""
    params = replace(LONG, stop_token_ids=(whole.tokens[3],)) if end == "stop" else replace(LONG, max_tokens=4)
    (want,) = plain.run([Job(PROMPT, params)])
    bench = drafting(tiny, [whole])
    bench.spoil = lambda request, position: position > len(PROMPT) + 3
    same_seen(bench.run([Job(PROMPT, params)])[0], want)


@pytest.mark.slow
def test_one_slot_used_again_and_again(tiny: Path, plain: Bench, whole: Seen) -> None:
    """Each request takes over the drafts, rings and pages that the one before left, in every state of a block."""
    jobs = [Job(tokens(95 + n, 1 + 5 * n), replace(LONG, max_tokens=5)) for n in range(4)]
    jobs = [jobs[0], Job(PROMPT, replace(LONG, stop_token_ids=(whole.tokens[2],))), *jobs[1:]]
    want = plain.run(jobs)
    bench = drafting(tiny, [*want, whole], scheduler__max_slots=1, scheduler__overlap="on")
    same_all_seen(bench.run(jobs), want)
    assert bench.accepted > 10
