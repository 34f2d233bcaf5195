"""What a request gives back: tokens, stops, logprobs, errors; every expectation is derived from the logits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.engines import Job, Overlap, Trace, World, jobs, same, tokens

from tandem.errors import RequestError
from tandem.sampling.params import SamplingParams

PROMPT = tokens(21, 11)
EOS = 1


def run(world: World, **params: object) -> Trace:
    return world.run([Job(PROMPT, SamplingParams(**params))])[0]  # type: ignore[arg-type]


def logits_of(trace: Trace) -> list[npt.NDArray[np.float64]]:
    """Raw logits of each drawn token in float64."""
    return [trace.logits[position].astype(np.float64) for position in sorted(trace.logits)]


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    peak = logits.max()
    result: npt.NDArray[np.float64] = logits - peak - np.log(np.exp(logits - peak).sum())
    return result


# -- which token -------------------------------------------------------------------------------------------


def test_temperature_zero_takes_the_largest_logit(world: World) -> None:
    trace = run(world, temperature=0.0, max_tokens=25, ignore_eos=True, top_k=3, top_p=0.5)
    assert trace.result.token_ids == tuple(int(np.argmax(x)) for x in logits_of(trace))
    assert len(set(trace.result.token_ids)) > 3


def test_equal_logits_take_the_lowest_id(world: World) -> None:
    # 1e30 swallows every logit, so all three are exactly equal.
    trace = run(world, temperature=0.0, max_tokens=3, logit_bias={333: 1e30, 77: 1e30, 401: 1e30})
    assert trace.result.token_ids == (77, 77, 77)


def test_bias_and_bans(world: World) -> None:
    free = run(world, temperature=0.0, max_tokens=1)
    logits = logits_of(free)[0]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    banned = run(world, temperature=0.0, max_tokens=1, logit_bias=dict.fromkeys(order[:2], -math.inf))
    assert banned.result.token_ids == (order[2],)
    lifted = {order[5]: float(logits[order[0]] - logits[order[5]]) + 0.5}
    assert run(world, temperature=0.0, max_tokens=1, logit_bias=lifted).result.token_ids == (order[5],)
    lowered = {order[0]: float(logits[order[1]] - logits[order[0]]) - 0.5}
    assert run(world, temperature=0.0, max_tokens=1, logit_bias=lowered).result.token_ids == (order[1],)


def test_top_k_one_and_a_small_top_p_are_the_largest_logit(world: World) -> None:
    greedy = run(world, temperature=0.0, max_tokens=10, ignore_eos=True).result.token_ids
    for filtered in ({"top_k": 1}, {"top_p": 1e-6}):
        trace = run(world, temperature=5.0, seed=1, max_tokens=10, ignore_eos=True, **filtered)
        assert trace.result.token_ids == greedy


def test_top_k_draws_among_the_k_largest(world: World) -> None:
    trace = run(world, temperature=8.0, top_k=4, seed=3, max_tokens=30, ignore_eos=True)
    ranks = []
    for token, logits in zip(trace.result.token_ids, logits_of(trace), strict=True):
        ranks.append(int((logits > logits[token]).sum()))
    assert max(ranks) <= 3 and len(set(ranks)) == 4  # hot enough to meet all four in 30 draws


def test_seeds_decide_the_text(world: World) -> None:
    hot = {"temperature": 1.5, "max_tokens": 10, "ignore_eos": True}
    one, again, two = (run(world, seed=seed, **hot).result for seed in (1, 1, 2))
    assert (one.token_ids, one.text) == (again.token_ids, again.text)
    assert one.token_ids != two.token_ids
    # Seeds that differ in the highest bit only are different seeds.
    assert run(world, seed=1 + 2**63, **hot).result.token_ids != one.token_ids
    fresh = {run(world, **hot).result.token_ids for _ in range(3)}
    assert len(fresh) == 3


def test_a_text_does_not_depend_on_what_was_drawn_before_it(world: World) -> None:
    """Random numbers come from the absolute position: a prompt that holds the first tokens draws the rest."""
    params = SamplingParams(temperature=1.2, seed=77, max_tokens=16, ignore_eos=True)
    (whole,) = world.run([Job(PROMPT, params)])
    drawn = whole.result.token_ids
    (rest,) = world.run([Job([*PROMPT, *drawn[:6]], replace(params, max_tokens=10))])
    assert rest.result.token_ids == drawn[6:]


# -- where it ends -----------------------------------------------------------------------------------------


def test_length_and_end_token(world: World) -> None:
    trace = run(world, temperature=0.0, max_tokens=7, ignore_eos=True)
    assert (len(trace.result.token_ids), trace.result.finish_reason, trace.result.stop_reason) == (7, "length", None)
    ended = run(world, temperature=0.0, max_tokens=7, logit_bias={EOS: 1e4})
    assert (ended.result.token_ids, ended.result.finish_reason, ended.result.stop_reason) == ((EOS,), "stop", EOS)
    assert ended.result.text == ""
    ignored = run(world, temperature=0.0, max_tokens=3, logit_bias={EOS: 1e4}, ignore_eos=True)
    assert (ignored.result.token_ids, ignored.result.finish_reason) == ((EOS,) * 3, "length")


def test_min_tokens_bans_every_stop_token_until_then(world: World) -> None:
    trace = run(
        world, temperature=0.0, max_tokens=12, min_tokens=5, stop_token_ids=(9,), logit_bias={EOS: 1e4, 9: 2e4}
    )
    ids = trace.result.token_ids
    assert len(ids) == 6 and not {EOS, 9} & set(ids[:5]) and ids[5] == 9
    for token, logits in zip(ids[:5], logits_of(trace), strict=False):
        logits[[EOS, 9]] = -np.inf
        assert token == int(np.argmax(logits))
    assert (trace.result.finish_reason, trace.result.stop_reason) == ("stop", 9)


def test_stop_token_ids(world: World) -> None:
    free = run(world, temperature=0.0, max_tokens=20, ignore_eos=True).result.token_ids
    stop = free[8]
    cut = free.index(stop) + 1
    ended = run(world, temperature=0.0, max_tokens=20, ignore_eos=True, stop_token_ids=(5, stop)).result
    assert (ended.token_ids, ended.finish_reason, ended.stop_reason) == (free[:cut], "stop", stop)
    # On the last token allowed, a stop token is still the reason.
    last = run(world, temperature=0.0, max_tokens=cut, ignore_eos=True, stop_token_ids=(stop,)).result
    assert (last.finish_reason, last.stop_reason) == ("stop", stop)


def letters(world: World, text: str) -> dict[int, float]:
    """A bias under which only these letters are drawn, one a token."""
    return {world.llm.tokenizer.encode(letter)[-1]: 1e4 for letter in text}


def test_stop_strings_across_tokens(world: World) -> None:
    base = {"temperature": 1.0, "seed": 3, "max_tokens": 30, "ignore_eos": True, "logit_bias": letters(world, "xyz")}
    free = run(world, **base)
    text = free.result.text
    assert len(text) == len(free.result.token_ids) == 30 and set(text) == set("xyz")
    for length, start in ((1, 4), (3, 10), (5, 20)):
        stop = text[start : start + length]
        cut = text.index(stop)
        trace = run(world, **base, stop=("nowhere", stop))
        result = trace.result
        assert (result.text, result.finish_reason, result.stop_reason) == (text[:cut], "stop", stop)
        assert result.token_ids == free.result.token_ids[: cut + length]
        assert trace.text == result.text  # nothing of the stop string was shown and taken back
    held = run(world, **base, stop=(text[-2:] + "never",))
    assert held.result.text == text and held.text == text  # what was held back comes at the end


def test_a_stop_string_before_min_tokens_is_text(world: World) -> None:
    base = {"temperature": 1.0, "max_tokens": 30, "ignore_eos": True, "logit_bias": letters(world, "xyz")}
    drawn = ((seed, run(world, **base, seed=seed).result.text) for seed in range(20))
    base["seed"], text = next((seed, text) for seed, text in drawn if text[2:4] in text[9:])
    stop = text[2:4]
    later = text.index(stop, 9)  # its last letter is token 11 or later
    result = run(world, **base, stop=(stop,), min_tokens=11).result
    assert text.index(stop) < 9 and (result.text, result.stop_reason) == (text[:later], stop)


def test_streamed_pieces_join_to_the_text(world: World) -> None:
    """Bytes of characters of four bytes, one byte a token: no piece ends inside a character."""
    emoji = "\U0001f600\U0001f680é"
    ids = world.llm.tokenizer.encode(emoji)
    params = SamplingParams(temperature=1.0, seed=8, max_tokens=30, ignore_eos=True, logit_bias=dict.fromkeys(ids, 1e4))
    (trace,) = world.run([Job(PROMPT, params)])
    whole = world.llm.tokenizer.decode(list(trace.result.token_ids))
    assert trace.text == trace.result.text == whole
    assert len(trace.pieces) == 30 and any(not piece.text for piece in trace.pieces)
    assert tuple(t for piece in trace.pieces for t in piece.token_ids) == trace.result.token_ids


# -- logprobs ----------------------------------------------------------------------------------------------


def test_raw_logprobs_against_float64(world: World) -> None:
    bias = {200: 3.0, 201: -math.inf}
    trace = run(world, temperature=2.0, seed=2, top_k=40, max_tokens=12, logprobs=4, logit_bias=bias, ignore_eos=True)
    assert trace.result.logprobs is not None and len(trace.result.logprobs) == 12
    for token, entry, logits in zip(trace.result.token_ids, trace.result.logprobs, logits_of(trace), strict=True):
        logits[200] = np.float32(np.float32(logits[200]) + np.float32(3.0))
        logits[201] = -np.inf
        want = log_softmax(logits)
        assert entry.token_id == token and entry.processed is None
        assert entry.raw == pytest.approx(want[token], abs=2e-5)
        order = sorted(range(len(want)), key=lambda i: (-logits[i], i))[:4]
        assert list(entry.top) == order
        assert list(entry.top.values()) == pytest.approx([want[i] for i in order], abs=2e-5)


def test_processed_logprobs_against_float64(world: World) -> None:
    """The distribution a token was drawn from: temperature, then top-p, then top-k, then normalised."""
    settings = {"temperature": 0.6, "top_p": 0.8, "top_k": 6}
    trace = run(world, **settings, seed=4, max_tokens=20, logprobs=0, processed_logprobs=True, ignore_eos=True)
    sizes = set()
    for token, entry, logits in zip(trace.result.token_ids, trace.result.logprobs or (), logits_of(trace), strict=True):
        scaled = log_softmax(logits / 0.6)
        order = sorted(range(len(scaled)), key=lambda i: (-logits[i], i))
        before = np.cumsum([0.0, *np.exp(scaled[order])])[:-1]
        kept = [i for i, mass in zip(order, before, strict=True) if mass <= 0.8][:6]
        sizes.add(len(kept))
        assert token in kept and entry.top == {}
        total = np.logaddexp.reduce(scaled[kept])
        assert entry.processed == pytest.approx(scaled[token] - total, abs=2e-5)
        assert entry.raw == pytest.approx(log_softmax(logits)[token], abs=2e-5)
    assert len(sizes) > 1 and min(sizes) < 6  # both filters decide somewhere


def test_greedy_processed_logprob_is_certain(world: World) -> None:
    trace = run(world, temperature=0.0, max_tokens=3, logprobs=1, processed_logprobs=True, ignore_eos=True)
    for entry, logits in zip(trace.result.logprobs or (), logits_of(trace), strict=True):
        assert entry.processed == 0.0
        assert entry.top == {entry.token_id: pytest.approx(log_softmax(logits).max(), abs=2e-5)}


def test_logprobs_of_neighbours_do_not_mix(world: World) -> None:
    """Requests with different numbers of alternatives in one step each get their own."""
    several = [Job(PROMPT, SamplingParams(temperature=0.0, max_tokens=3, logprobs=n)) for n in (None, 0, 5, 1)]
    found = [trace.result.logprobs for trace in world.run(several)]
    assert found[0] is None
    assert [len(entry.top) for entry in found[1] or ()] == [0] * 3
    assert [len(entry.top) for entry in found[2] or ()] == [5] * 3
    assert [list(entry.top) for entry in found[3] or ()] == [list(entry.top)[:1] for entry in found[2] or ()]


# -- errors stay with their request ------------------------------------------------------------------------


def test_one_result_a_prompt_with_errors_in_place(world: World) -> None:
    good = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    prompts = [PROMPT, [], "hello", [3, 512], list(range(3, 256)), [-1], ["a"], PROMPT[:5]]
    results = world.llm.generate(prompts, good)
    assert [type(r.error).__name__ for r in results] == [
        "NoneType", "RequestError", "NoneType",
        "RequestError", "RequestError", "RequestError", "RequestError", "NoneType",
    ]  # fmt: skip
    assert [r.finish_reason for r in results] == ["error" if r.error else "length" for r in results]
    assert results[2].prompt_token_ids == tuple(world.llm.tokenizer.encode("hello"))
    for place in (0, 7):
        assert results[place].token_ids == world.llm.generate([prompts[place]], good)[0].token_ids
    for result, words in ((results[1], "empty"), (results[3], "512"), (results[4], "256"), (results[5], "-1")):
        assert words in str(result.error)


def test_parameters_for_each_prompt(world: World) -> None:
    each = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (2, 5)]
    assert [len(r.token_ids) for r in world.llm.generate([PROMPT, PROMPT], each)] == [2, 5]
    with pytest.raises(RequestError, match="2 prompts came with 1"):
        world.llm.generate([PROMPT, PROMPT], each[:1])
    assert world.llm.generate([], each[:0]) == []


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_nan_ends_its_own_request_only(world: World, alone: list[Trace], overlapped: bool) -> None:
    known = jobs()
    rows = np.zeros((1, 128), dtype=np.float32)
    rows[0, 17] = np.nan
    extras = {"embed_rows": rows, "embed_positions": [5]}
    poisoned = Job(tokens(30, 9), SamplingParams(temperature=0.7, seed=1, max_tokens=20), extras, arrival=2)
    traces = world.run([known[0], poisoned, known[1], known[4]], Overlap(world).step if overlapped else None)
    failed = traces[1].result
    assert failed.finish_reason == "error" and failed.token_ids == ()
    assert isinstance(failed.error, RequestError) and "NaN" in failed.error.why
    assert np.isnan(traces[1].logits[9]).any()
    for got, want in ((traces[0], alone[0]), (traces[2], alone[1]), (traces[3], alone[4])):
        same(got, want)
    # The slot and the blocks that held NaN serve the next requests.
    same(world.run([known[3]])[0], alone[3])


def test_banning_every_token_ends_the_request(world: World, alone: list[Trace]) -> None:
    everything = dict.fromkeys(range(512), -math.inf)
    traces = world.run([Job(PROMPT, SamplingParams(max_tokens=4, logit_bias=everything)), jobs()[3]])
    assert traces[0].result.finish_reason == "error" and "banned" in str(traces[0].result.error)
    same(traces[1], alone[3])


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        ({"embed_rows": np.zeros((1, 64), np.float32), "embed_positions": [0]}, "128"),
        ({"embed_rows": np.zeros((1, 128), np.float32), "embed_positions": [11]}, "positions"),
        ({"embed_rows": np.zeros((2, 128), np.float32), "embed_positions": [1]}, "positions"),
        ({"embed_rows": np.zeros((1, 128), np.float32)}, "positions"),
        ({"embed_rows": np.zeros((1, 128), np.float64), "embed_positions": [0]}, "float32"),
        ({"roles": [0, 1]}, "one value"),
        ({"roles": [0] * 10 + [256]}, "255"),
        ({"media_digest": b"short"}, "32 bytes"),
    ],
)
def test_request_parts_that_do_not_fit(world: World, extras: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        world.engine.add_request(PROMPT, SamplingParams(max_tokens=2), **extras)  # type: ignore[arg-type]
    world.check_clean()


def test_a_prompt_that_can_never_fit(tiny: Path, alone: list[Trace]) -> None:
    small = World(tiny, {"cache.num_blocks": 4})
    results = small.llm.generate([tokens(1, 70), jobs()[3].prompt], jobs()[3].params)
    assert type(results[0].error).__name__ == "CapacityError" and "4" in str(results[0].error)
    assert results[1].token_ids == alone[3].result.token_ids


def test_cancelling(world: World, alone: list[Trace]) -> None:
    ids = [world.add(job) for job in jobs()]
    for _ in range(4):
        world.step()
    output = world.engine.cancel(ids[1])
    assert output is not None and output.finish_reason == "cancelled"
    assert output.token_ids == alone[1].result.token_ids[: len(output.token_ids)] and output.token_ids
    world.finish()
    for place in (0, 2, 3, 4):
        same(world.recorder.trace(ids[place]), alone[place])
    assert world.engine.cancel(ids[0]) is None and world.engine.cancel(10**9) is None
