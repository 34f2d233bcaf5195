"""What sampling parameters do to logits, by hand; forced tokens, least lengths, and logprobs of prompts."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import Job, World, tokens
from support.request_modes import (
    CHUNKED,
    COUPLED,
    EXACT,
    OVERLAP,
    PREFIX,
    REJECTION,
    engine,
    random_params,
    result,
    with_good_drafts,
)

from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.engine.request_state import RequestState
from tandem.engine.rules import LogitRules
from tandem.errors import RequestError
from tandem.sampling.params import SamplingParams

EOS = 1
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
DRAWN = SamplingParams(temperature=1.0, seed=9, max_tokens=8, ignore_eos=True)
BANNED = float("-inf")


@pytest.fixture(scope="module")
def plain(tiny: Path) -> LLM:
    return engine(tiny, {})


@pytest.fixture(scope="module")
def drafts(tiny: Path) -> LLM:
    """Rejection with three drafts, two steps in flight, prompts in pieces, a prefix cache."""
    return engine(tiny, {**REJECTION, **OVERLAP, **CHUNKED, **PREFIX})


@pytest.fixture(params=[pytest.param("plain", marks=pytest.mark.slow), "drafts"])
def llm(request: pytest.FixtureRequest) -> LLM:
    found: LLM = request.getfixturevalue(request.param)
    assert found._assembly.eos_id == EOS
    return found


# -- penalties -----------------------------------------------------------------------------------------------


def test_penalties_count_prompt_output_and_drafts_before_the_row() -> None:
    """Prompt 5 5 7, output 7 9, drafts 9 3: repetition knows all of them, the others only output and drafts."""
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    rules, known = LogitRules(params, 3, ()), np.array([5, 5, 7, 7, 9], dtype=np.int32)
    assert rules.penalties(4, known, []) == [(4, 5, 2.0, 0.0), (4, 7, 2.0, 0.75), (4, 9, 2.0, 0.75)]
    assert rules.penalties(6, known, [9, 3]) == [
        (6, 3, 2.0, 0.75), (6, 5, 2.0, 0.0), (6, 7, 2.0, 0.75), (6, 9, 2.0, 1.0)
    ]  # fmt: skip
    alone = LogitRules(replace(params, repetition_penalty=1.0), 3, ())
    assert alone.penalties(0, known[:3], []) == []
    assert alone.penalties(0, known, [9]) == [(0, 7, 1.0, 0.75), (0, 9, 1.0, 1.0)]


FEW = {40: 14.0, 41: 12.0, 42: 14.0, 43: BANNED}  # the output is made of three tokens, which meet their penalties
PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 6.0, "logit_bias": FEW},
    {"presence_penalty": 2.0, "frequency_penalty": 1.0, "repetition_penalty": 0.8, "logit_bias": FEW},
    {"frequency_penalty": 2.0, "logit_bias": FEW},
]


def edited(logits: np.ndarray, prompt: list[int], output: list[int], params: SamplingParams) -> np.ndarray:
    """The definition, one token after another, in float32."""
    found = logits.astype(np.float32).copy()
    for token in {*prompt, *output}:
        scale = np.float32(params.repetition_penalty)
        found[token] = found[token] / scale if found[token] > 0 else found[token] * scale
    for token, count in Counter(output).items():
        found[token] -= np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * np.float32(count)
    for token, value in params.logit_bias.items():
        found[token] += np.float32(value)
    return found


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return wide - np.log(np.exp(wide).sum())


@pytest.fixture(scope="module")
def penalised(tiny: Path) -> list[tuple[SamplingParams, list[int], RequestOutput, dict[int, np.ndarray]]]:
    """Greedy requests with the logits they had before any rule."""
    asked = [replace(GREEDY, ignore_eos=True, logprobs=2, **more) for more in PENALTIES]
    prompts = [tokens(place, 12) for place in range(3)]
    traces = World(tiny).run([Job(prompt, params) for prompt, params in zip(prompts, asked, strict=True)])
    return [
        (params, prompt, trace.result, trace.logits)
        for params, prompt, trace in zip(asked, prompts, traces, strict=True)
    ]


def test_greedy_tokens_and_logprobs_follow_the_definition(penalised: list[Any]) -> None:
    changed = 0
    for params, prompt, output, logits in penalised:
        for place, token in enumerate(output.token_ids):
            raw = logits[len(prompt) + place]
            rules = edited(raw, prompt, list(output.token_ids[:place]), params)
            assert token == int(rules.argmax())
            changed += token != int(edited(raw, [], [], params).argmax())
            told, law = output.logprobs[place], log_softmax(rules)
            assert told.raw == pytest.approx(law[token], abs=1e-4)
            best = sorted(range(len(law)), key=lambda t: (-rules[t], t))[:2]
            assert list(told.top) == best
            assert list(told.top.values()) == pytest.approx(law[best], abs=1e-4)
    assert changed > 2  # the penalties matter


def test_drafts_see_the_same_penalties(drafts: LLM, penalised: list[Any]) -> None:
    """Greedy requests verify drafts whose rows count the drafts before them: one wrong count would show."""
    found = drafts.generate([prompt for _, prompt, *_ in penalised], [params for params, *_ in penalised])
    assert [result(output) for output in found] == [result(output) for _, _, output, _ in penalised]


def test_processed_logprobs_are_of_the_law_drawn_from(plain: LLM) -> None:
    """Temperature 2 halves differences; top_k 3 leaves three tokens whose probabilities sum to 1."""
    params = replace(DRAWN, temperature=2.0, top_k=3, logprobs=5, processed_logprobs=True)
    for item in plain.generate(tokens(1, 9), params)[0].logprobs or ():
        assert len(item.top) == 5 and len(item.top_processed) == 3 and item.token_id in item.top_processed
        assert list(item.top_processed) == list(item.top)[:3]
        assert sum(np.exp(list(item.top_processed.values()))) == pytest.approx(1, abs=1e-5)
        assert item.processed == item.top_processed[item.token_id]
        wide, narrow = (list(top.values()) for top in (item.top, item.top_processed))
        assert narrow[0] - narrow[2] == pytest.approx((wide[0] - wide[2]) / 2, abs=1e-4)


# -- least lengths, end tokens and forced tokens -------------------------------------------------------------


def test_nothing_ends_before_min_tokens(llm: LLM) -> None:
    """A bias makes an end token the likeliest everywhere: exactly min_tokens others come before it."""
    for end, more in ((EOS, {}), (77, {"stop_token_ids": (77,), "ignore_eos": True})):
        params = replace(GREEDY, logit_bias={end: 100.0}, min_tokens=5, **more)
        output = llm.generate(tokens(2, 5), params)[0]
        assert output.token_ids.index(end) == 5 == len(output.token_ids) - 1
        assert (output.finish_reason, output.stop_reason) == ("stop", end)


def test_an_ignored_end_token_is_like_any_other(llm: LLM) -> None:
    params = replace(GREEDY, logit_bias={EOS: 100.0}, min_tokens=5, ignore_eos=True)
    output = llm.generate(tokens(2, 5), params)[0]
    assert output.token_ids == (EOS,) * 8 and output.finish_reason == "length"


def test_a_forced_end_token_counts_from_min_tokens_on(llm: LLM) -> None:
    forced = replace(GREEDY, min_tokens=3, logit_bias={EOS: 100.0})
    early = llm.generate(tokens(2, 5), replace(forced, forced_token_ids=(EOS, -1, -1)))[0]
    assert [token == EOS for token in early.token_ids] == [True, False, False, True]
    last = llm.generate(tokens(2, 5), replace(forced, forced_token_ids=(-1, 8, EOS, 9)))[0]
    assert last.token_ids[1:] == (8, EOS) and last.finish_reason == "stop"


def test_forced_tokens_give_the_logprobs_of_having_drawn_them(plain: LLM, llm: LLM) -> None:
    """Teacher forcing of a text that was drawn; free places are drawn as they would be behind it."""
    params = replace(DRAWN, logprobs=2, presence_penalty=0.5)
    free = plain.generate(tokens(4, 20), params)[0]
    forced = llm.generate(tokens(4, 20), replace(params, forced_token_ids=free.token_ids))[0]
    assert result(forced) == result(free)
    # Every place forced but the third and the last, which are drawn: greedily, the same everywhere.
    holes = tuple(-1 if place in (2, 7) else token for place, token in enumerate(free.token_ids))
    greedy = replace(params, temperature=0.0, forced_token_ids=holes)
    want, found = plain.generate(tokens(4, 20), greedy)[0], llm.generate(tokens(4, 20), greedy)[0]
    assert result(found) == result(want)
    assert found.logprobs is not None and found.logprobs[2].raw == max(found.logprobs[2].top.values())
    assert all(found.token_ids[place] == token for place, token in enumerate(holes) if token >= 0)


def test_a_forced_token_wins_over_every_rule(llm: LLM) -> None:
    """A banned token that is forced comes, with a logprob of minus infinity."""
    word = llm.tokenizer.decode([70])
    params = replace(GREEDY, logprobs=1, bad_words=(word,), logit_bias={71: BANNED}, min_tokens=4)
    output = llm.generate(tokens(2, 5), replace(params, forced_token_ids=(70, 71, EOS, 72)))[0]
    assert output.token_ids[:4] == (70, 71, EOS, 72) and word in output.text
    assert [item.raw == BANNED for item in (output.logprobs or ())[:4]] == [True, True, True, False]


def test_a_forced_token_that_breaks_the_form_ends_its_request(llm: LLM) -> None:
    spec = {"kind": "choice", "schema": ["yes", "no"]}
    params = SamplingParams.from_dict({"structured": spec, "max_tokens": 6, "temperature": 0.0})
    y, n = (llm.tokenizer.encode(letter, add_bos=False)[0] for letter in "yn")
    results = llm.generate("Well?", [replace(params, forced_token_ids=(forced,)) for forced in (n,)])
    results += llm.generate(["Well?", "Well?"], [replace(params, forced_token_ids=(t,)) for t in (y, 300)])
    assert [output.text for output in results[:2]] == ["no", "yes"]
    assert results[2].finish_reason == "error" and isinstance(results[2].error, RequestError)


def test_every_row_behind_drafts_follows_the_rules_of_its_place(tiny: Path, plain: LLM) -> None:
    """End tokens come one row after the last that must not hold them; holes lie between forced tokens; and so on."""
    ends = {"logit_bias": {EOS: 100.0}, "stop_token_ids": (9,)}
    text = plain.generate(tokens(5, 8), replace(DRAWN, max_tokens=12))[0].text
    words = tuple(text[at : at + 2] for at in range(1, len(text) - 2, 2))
    params = [
        *(replace(GREEDY, max_tokens=12, min_tokens=least, **ends) for least in (2, 3, 7)),
        replace(DRAWN, max_tokens=12, forced_token_ids=(4, -1, 5, 6, -1, -1, 7, -1, 8, 9, 10, -1)),
        *(replace(DRAWN, max_tokens=12, seed=seed, bad_words=words) for seed in (9, 10)),
        replace(DRAWN, max_tokens=12, logprobs=2, processed_logprobs=True, frequency_penalty=2.0),
    ]
    work = [(tokens(5, 8), each) for each in params]
    want = [result(output) for output in plain.generate([prompt for prompt, _ in work], params)]
    assert [len(tokens) for tokens, *_ in want[:3]] == [3, 4, 8]
    assert with_good_drafts(tiny, work, want, 1) == want


# -- logprobs of prompts -------------------------------------------------------------------------------------


def test_prompt_logprobs_are_those_of_forcing_each_token(plain: LLM, llm: LLM) -> None:
    """Token k of the prompt, forced behind the k tokens before it, gets the same bits."""
    prompt = tokens(6, 14)
    found = llm.generate(prompt, replace(DRAWN, prompt_logprobs=2, max_tokens=1))[0].prompt_logprobs or ()
    forced = [replace(DRAWN, forced_token_ids=(token,), max_tokens=1, logprobs=2) for token in prompt[1:]]
    single = plain.generate([prompt[:place] for place in range(1, 14)], forced)
    assert [(item,) for item in found] == [output.logprobs for output in single]


def test_prompts_are_scored_once_and_take_nothing_from_the_cache(drafts: LLM, plain: LLM) -> None:
    assert drafts._assembly.prefix is not None
    params, prompt = replace(DRAWN, prompt_logprobs=1, max_tokens=2, temperature=0.0), tokens(8, 50)
    first = drafts.generate(prompt, params)[0]
    hits = drafts._assembly.prefix.stats().hits
    again = drafts.generate([prompt, prompt], params)
    assert drafts._assembly.prefix.stats().hits == hits
    want = plain.generate(prompt, params)[0]
    assert len(want.prompt_logprobs or ()) == 49
    assert all(result(output) == result(want) for output in (first, *again))
    assert drafts.generate(prompt, replace(params, prompt_logprobs=None))[0].token_ids == want.token_ids
    assert drafts._assembly.prefix.stats().hits == hits + 1
    none = plain.generate(prompt[:1], params)[0]
    assert none.prompt_logprobs == ()


def test_bounded_replay_refuses_prompt_logprobs(tiny: Path) -> None:
    llm = engine(tiny, {"model.swa_replay": "compact"})
    params = replace(DRAWN, prompt_logprobs=0, max_tokens=2)
    with pytest.raises(RequestError, match="swa_replay") as caught:
        llm.engine.add_request(tokens(1, 5), params)
    assert caught.value.where == "prompt_logprobs" and llm.engine.idle
    assert [r.finish_reason for r in llm.generate(tokens(1, 5), [params])] == ["error"]


# -- requests that move --------------------------------------------------------------------------------------


def moved(source: LLM, target: LLM, work: list[tuple[list[int], SamplingParams]], steps: int) -> list[Any]:
    """Results of requests that are taken to another engine, as bytes, after some steps."""
    ids, done = [source.engine.add_request(*job, cache_salt="s") for job in work], {}
    for _ in range(steps):
        done |= {piece.request_id: piece.output for piece in source.engine.step() if piece.output is not None}
    states = {}
    for request in ids:
        if request not in done:
            try:
                states[request] = source.engine.export_request(request).to_bytes()
            except RequestError:
                continue  # it ended in a step that was in flight
            source.engine.cancel(request)
    while not source.engine.idle:
        done |= {piece.request_id: piece.output for piece in source.engine.step() if piece.output is not None}
    there = {}
    for request, data in states.items():
        state = RequestState.from_bytes(data)
        assert state.cache_salt == "s"
        there[target.engine.import_request(state)] = request
    while not target.engine.idle:
        for piece in target.engine.step():
            if piece.output is not None:
                done[there[piece.request_id]] = piece.output
    return [result(done[request]) for request in ids]


def check_moves(plain: LLM, path: Path, seed: int, target: dict[str, Any], at: tuple[int, ...], longest: int) -> None:
    source = random.Random(seed)
    work = [(tokens(n, 4 + 7 * n), random_params(source, ["e", "t", "a", "an"], longest)) for n in range(5)]
    want = [result(output) for output in plain.generate(*zip(*work, strict=True))]  # type: ignore[arg-type]
    one, other = engine(path, EXACT["overlap-coupled-chunked-prefix"]), engine(path, target)
    for steps in at:
        assert moved(one, other, work, steps) == want


def test_requests_that_move_go_on_to_the_same_end(tiny: Path, plain: LLM) -> None:
    check_moves(plain, tiny, 3, {**COUPLED, "cache.block_size": 32}, (3,), 7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 8))
def test_requests_that_move_at_every_step(tiny: Path, plain: LLM, seed: int) -> None:
    for target in ({}, COUPLED, {**OVERLAP, **COUPLED, "scheduler.max_chunk": 3}):
        check_moves(plain, tiny, seed, target, (0, 1, 2, 4, 7, 11), 18)
