"""Decode speed of the CPU backend: native kernels beside composites alone, and the share of a step spent in ops.

The two variants take turns, round by round, so that a drift of the machine hits both.  Prints medians with the
range over rounds; ``--json`` for machines.

Usage: python benchmarks/decode.py [--model DIR] [--batches 1 8 64] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from typing import Any

import numpy as np
import torch

from tandem import LLM, SamplingParams
from tandem.backends.cpu.backend import CpuBackend
from tandem.contract.opspec import OpFunction

STEPS = 48
PROMPT_TOKENS = 64
PLAIN = {"speculation.draft_tokens": 0}  # a step is one row a request


class TimedBackend(CpuBackend):
    """The CPU backend with a clock around outermost ops."""

    def __init__(self, use_native: bool) -> None:
        super().__init__(use_native)
        self.seconds, self._depth = 0.0, 0

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - started

        return timed


def decode_round(llm: LLM, batch: int) -> tuple[float, float]:
    """One round of pure decoding: seconds per step, and the share of them outside ops (of a `TimedBackend`)."""
    params = SamplingParams(max_tokens=STEPS + 1, temperature=0.0, ignore_eos=True)
    generator, engine = np.random.default_rng(0), llm.engine
    prompted = engine.stats.tokens + batch
    for _ in range(batch):
        llm.submit(generator.integers(3, 256, PROMPT_TOKENS).tolist(), params)
    while engine.stats.tokens < prompted:
        engine.step()
    clock = llm.backend if isinstance(llm.backend, TimedBackend) else None
    steps, started, in_ops = engine.stats.steps, time.perf_counter(), clock.seconds if clock else 0.0
    while not engine.idle:
        engine.step()
    seconds = time.perf_counter() - started
    outside = 1.0 - (clock.seconds - in_ops) / seconds if clock else 0.0
    return seconds / (engine.stats.steps - steps), outside


def measure(model: str | None, batches: list[int], rounds: int) -> list[dict[str, Any]]:
    """One row per batch size and variant."""
    native, composites = CpuBackend(True), CpuBackend(False)
    variants = {
        "native": LLM(model, backend=native, options=PLAIN),
        "composites": LLM(model, backend=composites, options=PLAIN),
    }
    timed = LLM(model, backend=TimedBackend(True), options=PLAIN)
    rows = []
    for batch in batches:
        times: dict[str, list[float]] = {name: [] for name in variants}
        outside = []
        for number in range(rounds + 1):
            for name, llm in variants.items():
                step, _ = decode_round(llm, batch)
                if number:
                    times[name].append(step)
            _, share = decode_round(timed, batch)
            if number:
                outside.append(share)
        for name, found in times.items():
            row = {
                "batch": batch,
                "variant": name,
                "step_ms": 1e3 * statistics.median(found),
                "step_ms_range": [1e3 * min(found), 1e3 * max(found)],
                "tokens_per_s": batch / statistics.median(found),
            }
            if name == "native":
                row["outside_ops"] = statistics.median(outside)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", metavar="DIR", help="default: the small model that comes with Tandem")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(arguments.model, arguments.batches, arguments.rounds)
    threads = torch.get_num_threads()
    machine = f"{platform.machine()}, {os.cpu_count()} processors, {threads} threads, torch {torch.__version__}"
    if arguments.json:
        print(json.dumps({"machine": machine, "rows": rows}))
        return
    print(machine)
    print("batch  variant      step ms              range  tokens/s  vs batch 1  outside ops")
    first = {row["variant"]: row["step_ms"] for row in rows if row["batch"] == rows[0]["batch"]}
    for row in rows:
        low, high = row["step_ms_range"]
        share = f"{row['outside_ops']:.1%}" if "outside_ops" in row else ""
        print(
            f"{row['batch']:>5}  {row['variant']:10}  {row['step_ms']:8.2f}  {low:8.2f}-{high:8.2f}  "
            f"{row['tokens_per_s']:8.1f}  {row['step_ms'] / first[row['variant']]:9.2f}x  {share}"
        )


if __name__ == "__main__":
    main()
