"""`tandem bench scheduler`: what the host does in a step of steady decoding, by the number of running requests."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from tandem.cli.fake_device import FIRST_TOKEN, Clock, fake_engine
from tandem.cli.options import positive
from tandem.cli.plots import new_figure, save
from tandem.sampling.params import SamplingParams

RUNNING = (1, 16, 64, 256, 1024, 4096)
ENGINE_PARTS = ("schedule", "prepare", "draws", "post")
ABOUT = {
    "schedule": "choose rows, take blocks",
    "prepare": "rows, tables and lengths for the device",
    "draws": "what is drawn, where, under which rules",
    "post": "ends, commit, blocks to the prefix cache, bookkeeping",
    "text": "detokenise, look for stop strings, let go of the pieces; off the engine's thread with overlap",
}
_WARM_UP = 16  # steps
_LONGEST_PROMPT = 192  # tokens; prompts differ, so that requests need new blocks in different steps


class Steady:
    """An engine with requests that decode.

    Args:
        running: requests.
        drafts: drafts of a request in a step.
        prefix: whether finished blocks go into the prefix cache.
        steps: steps that will be measured.
    """

    def __init__(self, running: int, drafts: int, prefix: bool, steps: int) -> None:
        per_step = max(2048, 2 * running * (1 + drafts))
        # Half of a step's rows are left for prompts while others decode, so no prompt takes more steps than it has
        # tokens.
        longest = (_LONGEST_PROMPT + _WARM_UP + steps) * (1 + drafts)
        self.running, self.drafts, self.prefix = running, drafts, prefix
        self._engine, self._parts, self._texts = fake_engine(
            {
                "model.max_model_len": _LONGEST_PROMPT + longest,
                "scheduler.max_slots": running,
                "scheduler.max_tokens_per_step": per_step,
                "speculation.draft_tokens": drafts,
                "cache.prefix": "on" if prefix else "off",
            }
        )
        self._clock = Clock()
        self._start(longest)
        self._time("schedule", self._parts.scheduler, "schedule")
        self._time("prepare", self._parts.builder, "prepare")
        self._time("draws", self._parts.runner.draws, "build")
        self._time("device", self._parts.runner, "_forward", "_draw")

    def _start(self, longest: int) -> None:
        random, vocabulary = np.random.default_rng(1), self._parts.vocab_size
        params = SamplingParams(max_tokens=longest, temperature=0.0, ignore_eos=True, stop=("\n\n\n",))
        for length in random.integers(8, _LONGEST_PROMPT, self.running).tolist():
            self._engine.add_request(random.integers(FIRST_TOKEN, vocabulary, length).tolist(), params)
        table = self._parts.table
        while (table.num_tokens == table.prompt_len).any():
            self._step()
        for _ in range(_WARM_UP):
            self._step()

    def _time(self, part: str, owner: object, *names: str) -> None:
        for name in names:
            setattr(owner, name, self._clock.timed(part, getattr(owner, name)))

    def _step(self) -> dict[str, float]:
        """Seconds of a step in the engine's thread (also by the clock on the wall), and of its text."""
        before, started = time.perf_counter(), time.thread_time()
        pieces = self._engine.step()
        stepped, after = time.thread_time(), time.perf_counter()
        del pieces  # whoever takes them lets them go
        self._texts.run()
        return {"step": stepped - started, "wall": after - before, "text": time.thread_time() - stepped}

    def measure(self, steps: int) -> list[dict[str, float]]:
        """Seconds of the parts of some steps."""
        found = []
        for _ in range(steps):
            totals = self._step()
            parts = dict(self._clock.take())
            device = parts.pop("device")
            totals["step"] -= device
            totals["wall"] -= device
            parts["post"] = totals["step"] - sum(parts.values())
            found.append(parts | totals)
        if self._parts.table.num_free:
            raise AssertionError("a request ended while it was measured")
        return found

    def close(self) -> None:
        """Let go of the backend."""
        self._parts.close()


def add_parser(subjects: Any) -> None:
    """Register the subject."""
    parser: argparse.ArgumentParser = subjects.add_parser(
        "scheduler", help="what the host does in a step, by running requests; the device does nothing"
    )
    parser.add_argument(
        "--running", type=positive, nargs="+", default=list(RUNNING), help="requests that decode (%(default)s)"
    )
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 5], help="drafts of a request (%(default)s)")
    parser.add_argument(
        "--prefix", choices=("on", "off"), nargs="+", default=["off", "on"], help="prefix cache (%(default)s)"
    )
    parser.add_argument("--steps", type=positive, default=50, help="steps in a round (%(default)s)")
    parser.add_argument("--rounds", type=positive, default=5, help="rounds; the sizes take turns (%(default)s)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--plot", metavar="FILE", help="also draw the cost of a request by requests; needs matplotlib")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    rows: list[dict[str, Any]] = []
    cells = [(drafts, prefix == "on") for drafts in arguments.drafts for prefix in arguments.prefix]
    with tqdm(total=len(cells) * arguments.rounds, unit=" rounds", disable=None) as bar:
        for drafts, prefix in cells:
            rows += measure(arguments.running, drafts, prefix, arguments.steps, arguments.rounds, bar.update)
    result = {"machine": machine(), "steps": arguments.steps, "rounds": arguments.rounds, "rows": rows}
    print(json.dumps(result) if arguments.json else table(result))
    if arguments.plot:
        plot(rows, arguments.plot)
    return 0


def machine() -> str:
    """What was measured on."""
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{platform.machine()}, {os.cpu_count()} processors, {versions}"


def measure(
    running: Sequence[int], drafts: int, prefix: bool, steps: int, rounds: int, done: Any = lambda: None
) -> list[dict[str, Any]]:
    """A row for each number of requests: seconds of each part, median and 10th and 90th percentile of the steps."""
    engines = [Steady(count, drafts, prefix, steps * rounds) for count in running]
    found: list[list[dict[str, float]]] = [[] for _ in engines]
    for _ in range(rounds):
        for engine, taken in zip(engines, found, strict=True):
            taken += engine.measure(steps)
        done()
    for engine in engines:
        engine.close()
    return [
        {"running": count, "drafts": drafts, "prefix": "on" if prefix else "off", "seconds": summarise(taken)}
        for count, taken in zip(running, found, strict=True)
    ]


def summarise(steps: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Median and spread by part."""
    found = {}
    for part in (*ENGINE_PARTS, "step", "wall", "text"):
        values = [step.get(part, 0.0) for step in steps]
        low, high = np.percentile(values, (10, 90)).tolist()
        found[part] = {"median": statistics.median(values), "p10": low, "p90": high}
    return found


def table(result: Mapping[str, Any]) -> str:
    """A line for each measurement."""
    lines = [
        f"{result['machine']}; {result['rounds']} rounds of {result['steps']} steps",
        "CPU time of a step in ms, medians; wall: by the clock on the wall, other processes' turns included",
        f"{'running':>7} {'drafts':>6} {'prefix':>6} "
        + " ".join(f"{part:>8}" for part in ENGINE_PARTS)
        + f" {'step':>8} {'(p10 to p90)':>17} {'wall':>8} {'us/request':>10} {'text':>8}",
    ]
    for row in result["rows"]:
        seconds = row["seconds"]
        step = seconds["step"]
        lines.append(
            f"{row['running']:7d} {row['drafts']:6d} {row['prefix']:>6} "
            + " ".join(f"{seconds[part]['median'] * 1e3:8.3f}" for part in ENGINE_PARTS)
            + f" {step['median'] * 1e3:8.3f} {step['p10'] * 1e3:8.3f}-{step['p90'] * 1e3:8.3f}"
            + f" {seconds['wall']['median'] * 1e3:8.3f} {step['median'] * 1e6 / row['running']:10.3f}"
            + f" {seconds['text']['median'] * 1e3:8.3f}"
        )
    lines += [f"{part:>8}: {about}" for part, about in ABOUT.items()]
    lines.append("    step: the first four together, one thread")
    return "\n".join(lines)


def plot(rows: Sequence[Mapping[str, Any]], file: str) -> None:
    """Draw the time of a step for each request, a line for each configuration.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = new_figure()
    axes = figure.add_subplot()
    for drafts, prefix in dict.fromkeys((row["drafts"], row["prefix"]) for row in rows):
        own = [row for row in rows if (row["drafts"], row["prefix"]) == (drafts, prefix)]
        cost = [row["seconds"]["step"]["median"] * 1e6 / row["running"] for row in own]
        axes.plot(
            [row["running"] for row in own], cost, marker="o", label=f"{drafts} drafts, prefix cache {prefix}"
        )
    axes.set(xscale="log", yscale="log", xlabel="running requests", ylabel="us of a step for each request")
    axes.legend()
    save(figure, file)
