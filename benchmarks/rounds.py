"""What benchmarks that compare engines round by round share: prompts, one round of steady decoding, medians."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tandem import LLM, SamplingParams
from tandem.config import load_config

OPENINGS = ("In the beginning", "He said to them,", "Blessed is the man who", "Then the king", "Woe to those who")
TURNS = ("", " It happened in those days.", " The people answered.", " Hear this word.", " Behold, a voice.",
         " There was a man in the land.", " My son, listen.")  # fmt: skip
PROMPTS = [f"{opening}{turn}" if not turn else f"{turn.strip()} {opening}" for turn in TURNS for opening in OPENINGS]


def open_llm(model: str | None, slots: int, tokens: int, options: Mapping[str, Any]) -> LLM:
    """An engine for rounds of ``tokens`` output tokens of up to ``slots`` requests."""
    own = {"model.path": model, "scheduler.max_slots": slots, "model.max_model_len": tokens + 64, "cache.prefix": "off"}
    return LLM(config=load_config(args=own | dict(options)))


@dataclass(frozen=True)
class Round:
    """Steady decoding: from the step after which every request has a token to the first that is complete.

    Args:
        seconds, steps, tokens: of that time.
        cpu_seconds: processor time of all threads in it, which other processes hardly disturb.
        parts: seconds of all steps by part.
        first_tokens: the first tokens of each request.
    """

    seconds: float
    steps: int
    tokens: int
    cpu_seconds: float
    parts: dict[str, float]
    first_tokens: list[tuple[int, ...]]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def decode(llm: LLM, batch: int, tokens: int, temperature: float, seed: int) -> Round:
    """Run one round of ``batch`` requests, which never stop before ``tokens`` tokens."""
    engine, encode = llm.engine, llm.tokenizer.encode
    texts: dict[int, list[int]] = {}
    for place in range(batch):
        params = SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed + place, ignore_eos=True)
        prompt = PROMPTS[(seed + place) % len(PROMPTS)]
        texts[engine.add_request(encode(prompt), params)] = []
    while not all(texts.values()):
        _take(llm, texts)
    before, started, cpu_started = engine.metrics()["steps"], time.perf_counter(), time.process_time()
    while not _take(llm, texts):
        pass
    seconds, cpu, after = time.perf_counter() - started, time.process_time() - cpu_started, engine.metrics()["steps"]
    for request in texts:
        engine.cancel(request)
    while not engine.idle:
        engine.step()
    change = {name: after[name] - before[name] for name in after}
    parts = {name: change[f"{name}_s"] for name in ("schedule", "forward", "sample", "deliver")}
    least = min(map(len, texts.values()))
    return Round(seconds, change["steps"], change["tokens"], cpu, parts, [tuple(t[:least]) for t in texts.values()])


def _take(llm: LLM, texts: dict[int, list[int]]) -> bool:
    """Run a step; whether a request has ended."""
    ended = False
    for piece in llm.engine.step():
        texts[piece.request_id] += piece.token_ids
        ended |= piece.output is not None
    return ended


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def machine() -> str:
    """What is measured on."""
    threads = torch.get_num_threads()
    return f"{platform.machine()}, {os.cpu_count()} processors, {threads} threads, torch {torch.__version__}"
