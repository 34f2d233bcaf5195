"""What the scripts of all peers share: the job, the rounds, the form of the answer.  Runs in a peer's environment."""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dims import MID
from stream import Stream, between


@dataclass(frozen=True)
class Job:
    """What to measure.

    Args:
        threads: of the engine.
        rounds: rounds after one that is not counted.
        steps: decode steps of a round.
        folder: where model files may lie.
        cases: (requests, prompt tokens of each).
    """

    threads: int
    rounds: int
    steps: int
    folder: Path
    cases: tuple[tuple[int, int], ...] = ((1, 512), (8, 128))

    @classmethod
    def from_argv(cls) -> Job:
        """The job given as JSON on the command line."""
        raw = json.loads(sys.argv[1])
        return cls(raw["threads"], raw["rounds"], raw["steps"], Path(raw["folder"]))


class Engine(Protocol):
    """One loaded model of a peer."""

    def prefill(self, prompts: list[list[int]]) -> None:
        """Forget everything, run the prompts, and choose the next token of each by argmax."""

    def step(self) -> None:
        """Run the chosen tokens and choose the next."""


def prompts(count: int, tokens: int, seed: int) -> list[list[int]]:
    """Random token ids."""
    generator = random.Random(seed)
    return [[generator.randrange(3, MID.vocab - 64) for _ in range(tokens)] for _ in range(count)]


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure(job: Job, open_engine: Callable[[int, int], Engine], most: int) -> dict[str, Any]:
    """Tokens per second of prompts and of decoding, and the stream bandwidth beside the latter.

    Args:
        job: what to measure.
        open_engine: makes an engine for so many requests of so many tokens.
        most: requests that the peer runs together; cases with more are left out.
    """
    found: dict[str, Any] = {}
    stream = Stream(job.threads)
    for count, tokens in job.cases:
        if count > most:
            continue
        engine = open_engine(count, tokens + job.steps + 8)
        prefill, decode, speeds = [], [], []
        for number in range(job.rounds + 1):
            texts = prompts(count, tokens, number)
            started = time.perf_counter()
            engine.prefill(texts)
            prefilled, speed = time.perf_counter(), stream.sample()
            begun = time.perf_counter()
            for _ in range(job.steps):
                engine.step()
            ended = time.perf_counter()
            if number:
                prefill.append(count * tokens / (prefilled - started))
                decode.append(count * job.steps / (ended - begun))
                speeds.append(between(speed, stream.sample()))
        for name, values in (("prefill", prefill), ("decode", decode), ("bandwidth", speeds)):
            found[f"{name}_{count}"] = spread(values)
    stream.close()
    return found


def weights(tensors: Iterable[tuple[str, int, int]]) -> dict[str, float]:
    """Parameters and bytes, those of routed experts apart; the embedding table is gathered, not read.

    Args:
        tensors: name, elements and bytes of each.
    """
    total = {"parameters": 0.0, "dense_parameters": 0.0, "dense_bytes": 0.0, "expert_parameters": 0.0,
             "expert_bytes": 0.0, "bytes": 0.0}  # fmt: skip
    for name, elements, nbytes in tensors:
        total["parameters"] += elements
        total["bytes"] += nbytes
        kind = "expert" if "exps" in name or ".experts." in name else "dense"
        if "embd" not in name and "embed" not in name and "tid2eid" not in name:
            total[f"{kind}_parameters"] += elements
            total[f"{kind}_bytes"] += nbytes
    return total


def answer(rows: list[dict[str, Any]]) -> None:
    """Print the rows as the last line."""
    print(json.dumps(rows))
