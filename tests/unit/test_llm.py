"""`LLM`: prompts as text or ids, chat, and streams that may overlap."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engines import ROOMY, jobs, tokens

import tandem
from tandem.config import load_config
from tandem.engine.llm import LLM
from tandem.errors import CheckpointError, ConfigError, RequestError
from tandem.sampling.params import SamplingParams
from tandem.tokenizer.chat import render_chat

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LLM:
    return LLM(tiny, backend="cpu", options=ROOMY)


def idle(llm: LLM) -> None:
    parts = llm._assembly
    assert llm.engine.idle and not llm._boxes
    assert parts.pools.main.num_available == parts.pools.main.num_blocks
    assert parts.table.num_free == parts.table.max_slots


def test_the_package_offers_what_it_names(tiny: Path) -> None:
    assert tandem.LLM is LLM and tandem.SamplingParams is SamplingParams
    with pytest.raises(AttributeError, match="LLMM"):
        tandem.LLMM  # noqa: B018


def test_text_and_ids_are_the_same_prompt(llm: LLM) -> None:
    text = "The quick brown fox"
    ids = llm.tokenizer.encode(text)
    by_text, by_ids = llm.generate(text, GREEDY), llm.generate(ids, GREEDY)
    assert len(by_text) == len(by_ids) == 1
    assert by_text[0].token_ids == by_ids[0].token_ids and by_text[0].text == by_ids[0].text
    assert by_text[0].prompt_token_ids == tuple(ids)
    mixed = llm.generate([ids, text, ids[:3]], GREEDY)
    assert [r.token_ids for r in mixed[:2]] == [by_text[0].token_ids] * 2
    assert mixed[2].prompt_token_ids == tuple(ids[:3])
    idle(llm)


def test_more_prompts_than_slots(llm: LLM) -> None:
    prompts = [tokens(n, 3 + n) for n in range(20)]
    results = llm.generate(prompts, GREEDY)
    assert [r.prompt_token_ids for r in results] == [tuple(p) for p in prompts]
    assert results[19].token_ids == llm.generate(prompts[19], GREEDY)[0].token_ids
    idle(llm)


def test_chat_is_the_rendered_prompt(llm: LLM) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    answer = llm.chat(messages, GREEDY)
    assert answer.prompt_token_ids == tuple(render_chat(messages, llm.tokenizer))
    assert answer.prompt_token_ids != llm.chat(messages, GREEDY, thinking=True).prompt_token_ids
    with pytest.raises(RequestError, match="messages"):
        llm.chat([{"role": "wizard", "content": "Hi"}], GREEDY)
    with pytest.raises(RequestError, match="messages"):
        llm.chat([], GREEDY)


def test_a_stream_joins_to_the_result(llm: LLM) -> None:
    want = llm.generate("one two", DRAWN)[0]
    pieces = list(llm.stream("one two", DRAWN))
    assert "".join(piece.text for piece in pieces) == want.text
    assert len(pieces) > 2 and all(piece.token_ids for piece in pieces)
    assert tuple(token for piece in pieces for token in piece.token_ids) == want.token_ids
    assert [piece.output is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert pieces[-1].output is not None and pieces[-1].output.token_ids == want.token_ids


def test_leaving_a_stream_cancels_it(llm: LLM) -> None:
    stream = llm.stream(tokens(1, 30), DRAWN)
    next(stream)
    next(stream)
    assert not llm.engine.idle
    stream.close()
    idle(llm)


def test_streams_read_in_turn_and_a_batch_in_between(llm: LLM) -> None:
    """A step serves every reader: nothing is lost to whoever made it run."""
    want = [r.token_ids for r in llm.generate(["alpha", "beta", "gamma"], DRAWN)]
    first, second = llm.stream("alpha", DRAWN), llm.stream("beta", DRAWN)
    heads = [next(first), next(second), next(first)]
    assert llm.generate("gamma", DRAWN)[0].token_ids == want[2]
    drawn = {0: list(heads[0].token_ids + heads[2].token_ids), 1: list(heads[1].token_ids)}
    for which, stream in ((1, second), (0, first)):
        for piece in stream:
            drawn[which] += piece.token_ids
    assert [tuple(drawn[0]), tuple(drawn[1])] == want[:2]
    idle(llm)


def test_a_stream_whose_request_is_cancelled_elsewhere_ends(llm: LLM) -> None:
    stream = llm.stream("alpha", DRAWN)
    piece = next(stream)
    llm.engine.cancel(piece.request_id)
    assert list(stream) == []
    idle(llm)


def test_a_failing_step_leaves_no_request_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no power")

    with monkeypatch.context() as patch:
        patch.setattr(llm._assembly.runner, "launch", fails)
        with pytest.raises(RuntimeError, match="no power"):
            llm.generate(["a", "b"], GREEDY)
    idle(llm)
    assert llm.generate("a", GREEDY)[0].error is None


def test_bad_prompts(llm: LLM) -> None:
    for prompt in ("", [], [512], tokens(1, 250)):
        with pytest.raises(RequestError):
            next(llm.stream(prompt, GREEDY))
    assert [r.finish_reason for r in llm.generate(["", "x"], GREEDY)] == ["error", "length"]
    idle(llm)


def test_construction(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "engine.toml"
    file.write_text("[scheduler]\nmax_slots = 2\nmax_tokens_per_step = 32\n[model]\nmax_model_len = 64\n")
    llm = LLM(tiny, backend="cpu:0", config_file=file, options={"scheduler.max_slots": 3})
    assert (llm.config.scheduler.max_slots, llm.config.scheduler.max_tokens_per_step) == (3, 32)
    assert llm._assembly.table.max_slots == 3 and llm._assembly.max_model_len == 64
    assert llm.backend.name == "cpu"
    shared = LLM(config=load_config(env={}, args={**ROOMY, "model.path": str(tiny)}), backend=llm.backend)
    assert shared.backend is llm.backend
    assert shared.generate(jobs()[0].prompt, GREEDY)[0].token_ids == llm.generate(jobs()[0].prompt, GREEDY)[0].token_ids
    with pytest.raises(ConfigError, match="no model was given"):
        LLM("", backend="cpu")
    with pytest.raises(CheckpointError, match="does not exist"):
        LLM(tmp_path / "nowhere", backend="cpu")
    with pytest.raises(ConfigError, match="2048"):
        LLM(tiny, backend="cpu", options={"model.max_model_len": 2048})  # the tiny model was made for 1024
    with pytest.raises(ConfigError, match="memory"):
        LLM(tiny, backend="cpu", options={"cache.memory_mib": 1, "scheduler.max_slots": 512})


def test_cache_memory_decides_the_blocks(tiny: Path) -> None:
    """Four MiB less the window caches, in blocks of 128 tokens: 36 + 17 bytes at ratio 1, and half that at ratio 2."""
    options = {**ROOMY, "cache.memory_mib": 4, "cache.block_size": 128, "cache.window_block": 32}
    llm = LLM(tiny, backend="cpu", options={**options, "model.max_model_len": 1024, "scheduler.max_slots": 64})
    pools = llm._assembly.pools
    window = pools.window.num_blocks * 32 * 66 * 8
    block = 128 * (36 + 17) * 3 // 2
    assert pools.main.num_blocks == ((4 << 20) - window) // block
    assert pools.main.num_blocks < 64 * 1024 // 128
