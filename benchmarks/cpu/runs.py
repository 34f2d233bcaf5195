"""Rounds on an engine: decoding, prompts, single steps.  Greedy, without drafts and without cached prefixes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu.machine import summary
from tandem import LLM, SamplingParams
from tandem.contract.backend import Backend

PLAIN = {"backend.name": "cpu", "speculation.draft_tokens": 0, "cache.prefix": "off"}
PROMPT_TOKENS = 128  # of each request that decodes
FIRST_ID = 3  # ids below are special
PARTS = ("schedule_s", "forward_s", "sample_s", "deliver_s")


def open_llm(model: Path, longest: int, slots: int, backend: Backend | None = None, **options: Any) -> LLM:
    """An engine for up to ``slots`` requests of up to ``longest`` tokens."""
    sized = {"model.max_model_len": longest, "scheduler.max_slots": slots}
    plain = {key: value for key, value in PLAIN.items() if backend is None or key != "backend.name"}
    chosen: Mapping[str, Any] = plain | sized | {key.replace("__", "."): value for key, value in options.items()}
    return LLM(model, backend=backend, options=chosen, show_progress=False)


def prompt(llm: LLM, tokens: int, seed: int) -> list[int]:
    """Random token ids; special tokens at the end of the vocabulary are left out."""
    upper = max(FIRST_ID + 1, llm.engine.vocab_size - 64)
    return [int(token) for token in np.random.default_rng(seed).integers(FIRST_ID, upper, tokens)]


def params(tokens: int) -> SamplingParams:
    """Greedy, exactly so many tokens."""
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)


def start(llm: LLM, batch: int, tokens: int, seed: int) -> None:
    """Submit prompts and run until each has its first token."""
    engine = llm.engine
    expected = engine.stats.tokens + batch
    for place in range(batch):
        llm.submit(prompt(llm, PROMPT_TOKENS, seed * 1000 + place), params(tokens))
    while engine.stats.tokens < expected:
        engine.step()


def decode_round(llm: LLM, batch: int, steps: int, seed: int) -> dict[str, float]:
    """One round of pure decoding: tokens a second, seconds a step, and its parts as the engine counts them."""
    engine = llm.engine
    start(llm, batch, steps + 1, seed)
    before = {name: getattr(engine.stats, name) for name in ("steps", *PARTS)}
    started = time.perf_counter()
    while not engine.idle:
        engine.step()
    seconds = time.perf_counter() - started
    count = engine.stats.steps - before["steps"]
    parts = {name: (getattr(engine.stats, name) - before[name]) / count for name in PARTS}
    return {"tokens_per_s": batch * count / seconds, "step_s": seconds / count} | parts


def decode(llm: LLM, batch: int, steps: int, rounds: int) -> dict[str, Any]:
    """Median and range over rounds after one that is not counted; ``context`` is the mean length of a request."""
    found = [decode_round(llm, batch, steps, number) for number in range(rounds + 1)][1:]
    result: dict[str, Any] = {name: summary([one[name] for one in found]) for name in found[0]}
    return result | {"batch": batch, "steps": steps, "context": PROMPT_TOKENS + steps // 2}


def first_token_s(llm: LLM, tokens: int, seed: int) -> float:
    """Seconds from the submission of a prompt to its first token."""
    engine, expected = llm.engine, llm.engine.stats.tokens + 1
    ids = prompt(llm, tokens, seed)
    started = time.perf_counter()
    llm.submit(ids, params(1))
    while engine.stats.tokens < expected:
        engine.step()
    seconds = time.perf_counter() - started
    while not engine.idle:
        engine.step()
    return seconds


def beside(llm: LLM, count: int, tokens: int, steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """Tokens a second of prompts run together and of decoding behind them, as the peers' scripts measure it."""
    engine, prefills, decodes = llm.engine, [], []
    for number in range(rounds + 1):
        expected, started = engine.stats.tokens + count, time.perf_counter()
        for place in range(count):
            llm.submit(prompt(llm, tokens, number * 1000 + place), params(steps + 1))
        while engine.stats.tokens < expected:
            engine.step()
        before, between = engine.stats.tokens, time.perf_counter()
        while not engine.idle:
            engine.step()
        ended = time.perf_counter()
        if number:
            prefills.append(count * tokens / (between - started))
            decodes.append((engine.stats.tokens - before) / (ended - between))
    return {f"prefill_{count}": summary(prefills), f"decode_{count}": summary(decodes)}


def prefill(llm: LLM, tokens: int, rounds: int, budget_s: float) -> dict[str, Any]:
    """Prompts of one length; fewer rounds (at least one) where they take longer than ``budget_s`` together."""
    times: list[float] = []
    while len(times) < rounds and sum(times) < budget_s:
        times.append(first_token_s(llm, tokens, len(times) + 1))
    return {"tokens": tokens, "rounds": len(times), "first_token_s": summary(times)} | {
        "tokens_per_s": summary([tokens / seconds for seconds in times])
    }
