"""`tandem bench`: tokens per second of prefill or decode, and where a step's time goes; and what needs no model."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from tandem.cli import bench_prefix, bench_scheduler, bench_verify
from tandem.cli.options import add_engine_flags, engine_config, positive
from tandem.engine.llm import LLM
from tandem.engine.stats import StepStats
from tandem.errors import ConfigError
from tandem.sampling.params import SamplingParams

PARTS = ("schedule", "forward", "sample", "deliver")


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("bench", help="measure speed")
    subjects = parser.add_subparsers(dest="phase", required=True, metavar="SUBJECT")
    for phase in ("prefill", "decode"):
        _add_phase(subjects.add_parser(phase, help=f"tokens per second of {phase}"))
    bench_prefix.add_parser(subjects)
    bench_verify.add_parser(subjects)
    bench_scheduler.add_parser(subjects)


def _add_phase(parser: argparse.ArgumentParser) -> None:
    add_engine_flags(parser)
    parser.add_argument("--batch", type=positive, default=1, help="requests at once (%(default)s)")
    parser.add_argument("--prompt-tokens", type=positive, default=128, help="length of each prompt (%(default)s)")
    parser.add_argument("--steps", type=positive, default=64, help="decode: tokens of a request a round (%(default)s)")
    parser.add_argument("--rounds", type=positive, default=5, help="rounds after one warm-up (%(default)s)")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print medians with spread.

    Raises:
        ConfigError: so many requests do not run at once.
    """
    config = engine_config(arguments)
    if arguments.batch > config.scheduler.max_slots:
        raise ConfigError(
            "requests would wait for one another",
            where=f"--batch {arguments.batch}",
            why=f"{config.scheduler.max_slots} requests run at once (scheduler.max_slots)",
            fix="lower it, or raise scheduler.max_slots and scheduler.max_tokens_per_step",
        )
    llm = LLM(config=config)
    try:
        rounds = [_round(llm, arguments, number) for number in range(arguments.rounds + 1)][1:]
        metrics = llm.engine.metrics()
    finally:
        llm.close()
    result = summarise(rounds) | {
        "phase": arguments.phase,
        "batch": arguments.batch,
        "prompt_tokens": arguments.prompt_tokens,
        "backend": llm.backend.fingerprint(),
        "metrics": metrics,
    }
    print(json.dumps(result) if arguments.json else _table(result))
    return 0


def _round(llm: LLM, arguments: argparse.Namespace, number: int) -> dict[str, float]:
    """One measured round: seconds per step, its parts, tokens per second.  The prefix cache has none of its prompts."""
    decode = arguments.phase == "decode"
    params = SamplingParams(max_tokens=arguments.steps + 1 if decode else 1, temperature=0.0, ignore_eos=True)
    engine, generator = llm.engine, np.random.default_rng(number)
    for _ in range(arguments.batch):
        llm.submit(generator.integers(3, 256, arguments.prompt_tokens).tolist(), params)
    expected = engine.stats.tokens + arguments.batch
    while decode and engine.stats.tokens < expected:
        engine.step()
    before, started = StepStats(**_as_dict(engine.stats)), time.perf_counter()
    while not engine.idle:
        engine.step()
    seconds = time.perf_counter() - started
    steps = engine.stats.steps - before.steps
    tokens = (engine.stats.tokens - before.tokens) if decode else engine.stats.rows - before.rows
    parts = {p: (getattr(engine.stats, f"{p}_s") - getattr(before, f"{p}_s")) / steps for p in PARTS}
    return {"tokens_per_s": tokens / seconds, "step_s": seconds / steps, "steps": steps, **parts}


def _as_dict(stats: StepStats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in StepStats.__slots__}


def summarise(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Median, minimum and maximum over rounds of every figure."""
    return {
        name: {
            "median": statistics.median(r[name] for r in rounds),
            "min": min(r[name] for r in rounds),
            "max": max(r[name] for r in rounds),
        }
        for name in rounds[0]
    }


def _table(result: dict[str, Any]) -> str:
    rate, step = result["tokens_per_s"], result["step_s"]
    lines = [
        f"{result['phase']}, batch {result['batch']}, prompt {result['prompt_tokens']}, "
        f"{result['backend']['backend']} ({result['backend']['machine']}, {result['backend']['threads']} threads)",
        f"  tokens/s   {rate['median']:10.1f}   ({rate['min']:.1f} to {rate['max']:.1f})",
        f"  step       {step['median'] * 1e3:10.3f} ms ({step['min'] * 1e3:.3f} to {step['max'] * 1e3:.3f})",
    ]
    for name in PARTS:
        share = result[name]["median"] / step["median"]
        lines.append(f"    {name:9}{result[name]['median'] * 1e3:9.3f} ms  {share:6.1%}")
    drafts = result["metrics"]["speculation"]
    if result["phase"] == "decode" and drafts is not None and drafts["mean_accepted"] is not None:
        taken, tested = drafts["mean_accepted"], drafts["mean_tested"]
        lines.append(f"  drafts     {taken:10.2f}   accepted of {tested:.2f} verified, a request and step")
    return "\n".join(lines)
