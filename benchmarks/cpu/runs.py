"""Rounds on an engine: decoding, prompts, single steps.  Greedy, without drafts and without cached prefixes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu.machine import summary
from benchmarks.cpu.native_time import NativeClock, cost_s
from benchmarks.cpu.peers.stream import Stream, between
from tandem import LLM, SamplingParams
from tandem.contract.backend import Backend
from tandem.engine.turns import MOST

PLAIN = {"backend.name": "cpu", "speculation.draft_tokens": 0, "cache.prefix": "off"}
PROMPT_TOKENS = 128  # of each request that decodes
MOST_ROWS = 2048  # of a step, an engine's default
WARM = 2  # steps after a pass of the stream, which leaves nothing of a model in the caches
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


def spare(batch: int) -> int:
    """Tokens that a request may have before all of them decode together; the prompts of many take several steps."""
    return 4 + 2 * -(-batch * PROMPT_TOKENS // MOST_ROWS) + 2 * MOST  # turns do not end where a count does


def start(llm: LLM, batch: int, steps: int, seed: int) -> None:
    """Submit prompts and run until all requests decode; then so many steps are left in which none of them ends."""
    engine, stats = llm.engine, llm.engine.stats
    for place in range(batch):
        llm.submit(prompt(llm, PROMPT_TOKENS, seed * 1000 + place), params(steps + spare(batch)))
    while True:
        rows, tokens = stats.rows, stats.tokens
        engine.step()
        if (stats.rows - rows, stats.tokens - tokens) == (batch, batch):
            return


def together(llm: LLM, batch: int, steps: int) -> tuple[float, int]:
    """Seconds of steps in which all requests decode, and how many there were: so many, and the rest of a turn.

    Raises:
        RuntimeError: one of them did not.
    """
    engine, stats = llm.engine, llm.engine.stats
    rows, before, started = stats.rows, stats.steps, time.perf_counter()
    while stats.steps < before + steps:
        engine.step()
    seconds, ran = time.perf_counter() - started, stats.steps - before
    if stats.rows - rows != batch * ran:
        raise RuntimeError(f"{ran} steps of {batch} requests ran {stats.rows - rows} rows")
    return seconds, ran


def finish(llm: LLM) -> None:
    """Let all requests end."""
    while not llm.engine.idle:
        llm.engine.step()


def decode_round(
    llm: LLM, batch: int, steps: int, seed: int, stream: Stream | None = None, clock: NativeClock | None = None
) -> dict[str, float]:
    """One round of pure decoding: tokens a second, seconds a step, and its parts as the engine counts them.

    Args:
        stream: read before and after the round, if its bandwidth is asked for.
        clock: of the native kernels, if the time in them is asked for.
    """
    stats = llm.engine.stats
    start(llm, batch, steps + WARM, seed)
    speed = stream.sample() if stream else 0.0
    together(llm, batch, WARM)
    before = {name: getattr(stats, name) for name in PARTS}
    inside, calls = (clock.seconds, clock.calls) if clock else (0.0, 0)
    seconds, ran = together(llm, batch, steps)
    found = {name: (getattr(stats, name) - before[name]) / ran for name in PARTS}
    if clock:
        native = clock.seconds - inside
        found |= {"native_s": native / ran, "native_calls": (clock.calls - calls) / ran}
        found["outside"] = 1 - native / seconds
    if stream:
        found["bandwidth"] = between(speed, stream.sample())
    finish(llm)
    return {"tokens_per_s": batch * ran / seconds, "step_s": seconds / ran} | found


def decode(llm: LLM, batch: int, steps: int, rounds: int, stream: Stream, clock: NativeClock | None) -> dict[str, Any]:
    """Median and range over rounds after one that is not counted; ``context`` is the mean length of a request."""
    found = [decode_round(llm, batch, steps, number, stream, clock) for number in range(rounds + 1)][1:]
    result: dict[str, Any] = {name: summary([one[name] for one in found]) for name in found[0]}
    result["rounds"] = {"seconds": [one["step_s"] for one in found], "bandwidth": [one["bandwidth"] for one in found]}
    if clock:
        result["clock_s"] = cost_s() * result["native_calls"]["median"]
    return result | {"batch": batch, "steps": steps, "context": PROMPT_TOKENS + 2 + WARM + steps // 2}


def first_token_s(llm: LLM, tokens: int, seed: int) -> float:
    """Seconds from the submission of a prompt to its first token."""
    engine, expected = llm.engine, llm.engine.stats.tokens + 1
    ids = prompt(llm, tokens, seed)
    started = time.perf_counter()
    llm.submit(ids, params(1))
    while engine.stats.tokens < expected:
        engine.step()
    seconds = time.perf_counter() - started
    finish(llm)
    return seconds


def beside(llm: LLM, count: int, tokens: int, steps: int, rounds: int, stream: Stream) -> dict[str, dict[str, float]]:
    """Tokens a second of prompts run together and of decoding behind them, as the peers' scripts measure it."""
    engine, prefills, decodes, speeds = llm.engine, [], [], []
    for number in range(rounds + 1):
        expected, started = engine.stats.tokens + count, time.perf_counter()
        for place in range(count):
            llm.submit(prompt(llm, tokens, number * 1000 + place), params(steps + 1))
        while engine.stats.tokens < expected:
            engine.step()
        prefilled, speed = time.perf_counter(), stream.sample()
        before, begun = engine.stats.tokens, time.perf_counter()
        while not engine.idle:
            engine.step()
        ended = time.perf_counter()
        if number:
            prefills.append(count * tokens / (prefilled - started))
            decodes.append((engine.stats.tokens - before) / (ended - begun))
            speeds.append(between(speed, stream.sample()))
    found = {"prefill": prefills, "decode": decodes, "bandwidth": speeds}
    return {f"{name}_{count}": summary(values) for name, values in found.items()}


def prefill(llm: LLM, tokens: int, rounds: int, budget_s: float) -> dict[str, Any]:
    """Prompts of one length; fewer rounds (at least one) where they take longer than ``budget_s`` together."""
    times: list[float] = []
    while len(times) < rounds and sum(times) < budget_s:
        times.append(first_token_s(llm, tokens, len(times) + 1))
    return {"tokens": tokens, "rounds": len(times), "first_token_s": summary(times)} | {
        "tokens_per_s": summary([tokens / seconds for seconds in times])
    }
