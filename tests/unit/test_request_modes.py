"""Random requests that use every sampling parameter give the same results however they are run."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.request_modes import (
    DRAFTED,
    EXACT,
    Requests,
    engine,
    random_params,
    random_prompts,
    result,
    with_good_drafts,
)

from tandem.engine.llm import LLM
from tandem.sampling.params import SamplingParams


def results(llm: LLM, requests: Requests) -> list[tuple[Any, ...]]:
    prompts, params = zip(*requests, strict=True)
    found = [result(output) for output in llm.generate(list(prompts), list(params))]
    while not llm.engine.idle:  # a step in flight when a stop string ended the last request
        llm.engine.step()
    assert llm._assembly.table.num_free == llm._assembly.table.max_slots
    return found


def requests(seed: int, count: int, words: list[str], longest: int) -> Requests:
    source = random.Random(seed)
    return [(prompt, random_params(source, words, longest)) for prompt in random_prompts(source, count)]


def run_all(path: Path, modes: Mapping[str, Mapping[str, Any]], work: Requests) -> dict[str, list[tuple[Any, ...]]]:
    found, preempted, hits = {}, 0, 0
    for name, options in modes.items():
        llm = engine(path, options)
        found[name] = results(llm, work)
        preempted += "preempted" in name and llm.engine.stats.preemptions
        if "prefix" in name:
            assert llm._assembly.prefix is not None
            hits += llm._assembly.prefix.stats().hits
        llm.close()
    assert preempted and hits  # the modes are what they are called
    return found


def check(path: Path, seed: int, count: int, modes: tuple[str, ...] = (*EXACT, *DRAFTED), longest: int = 18) -> None:
    plain = engine(path, {})
    prompts = random_prompts(random.Random(seed), 6)
    free = plain.generate(prompts, SamplingParams(temperature=0.7, seed=1, max_tokens=6))
    plain.close()
    text = "".join(output.text for output in free)
    source = random.Random(seed)
    words = [text[at : at + source.randint(1, 3)] for at in (source.randrange(len(text) - 3) for _ in range(40))]
    work = requests(seed, count, words, longest)
    found = run_all(path, {name: {**EXACT, **DRAFTED}[name] for name in modes}, work)
    assert with_good_drafts(path, work, found["plain"], seed) == found["plain"]
    for place, (_, params) in enumerate(work):
        want = found["plain"][place]
        drafted_want = next((found[name][place] for name in modes if name in DRAFTED), want)
        for name in modes:
            assert found[name][place] == (drafted_want if name in DRAFTED else want), (name, params)
        if params.is_greedy:
            assert drafted_want == want, params


def test_every_mode_gives_the_same(tiny: Path) -> None:
    check(tiny, 12, 5, ("plain", "all-prefix-preempted"), longest=8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 24))
def test_every_mode_gives_the_same_for_many_requests(tiny: Path, seed: int) -> None:
    check(tiny, seed, 60)
