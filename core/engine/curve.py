"""The cost curve of an engine: measured once for its hardware, kernels, model and options, then kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tandem.config import EngineConfig
from tandem.engine.assembly import Assembly
from tandem.engine.engine import Engine
from tandem.engine.stats import StepStats
from tandem.sampling.params import SamplingParams
from tandem.speculation.curve import CostCurve, measure
from tandem.speculation.curve_cache import CurveKey, code_hash, load, save


def use_curve(engine: Engine, parts: Assembly, options: EngineConfig, folder: Path | None = None) -> None:
    """Give an idle engine that schedules verification its curve, measured where it is not on disk.

    A step of n rows is a prompt of n tokens, so that experts and caches are used as in service; decode rows are of
    many requests and read more of the caches, which the running correction adds.

    Args:
        folder: where curves are kept; default: the cache folder.
    """
    if parts.book is None or options.speculation.verify != "scheduled":
        return
    scheduler = options.scheduler
    key = CurveKey(
        hardware=parts.plan.backend.fingerprint(),
        kernels=code_hash([parts.plan.backend, parts.model]),
        model=repr(parts.config),
        flags={
            "max_slots": str(scheduler.max_slots),
            "max_tokens_per_step": str(scheduler.max_tokens_per_step),
            "max_model_len": str(parts.max_model_len),
            "draft_tokens": str(parts.book.count),
            "swa_replay": options.model.swa_replay,
        },
    )
    points = load(key, folder)
    if points is None:
        most = min(scheduler.max_slots * (1 + parts.book.count), scheduler.max_tokens_per_step)
        points = measure(_prompt_step(engine, parts), most)
        save(key, points, folder)
        _forget(engine, parts)
    parts.book.budget.curve = CostCurve(points)


def _prompt_step(engine: Engine, parts: Assembly) -> Callable[[int], float | None]:
    generator = np.random.default_rng(0)
    held = parts.pools.main.num_blocks * parts.tables.main.block_size  # a longer prompt does not fit into the caches
    vocab, longest = engine.vocab_size, min(parts.max_model_len - 1, parts.scheduler.limits.max_chunk, held)

    def run(rows: int) -> float | None:
        """Seconds of the forward part of one step with so many rows, of prompts that no other request shares.

        None if they did not fit into a step.
        """
        before = replace(engine.stats)
        for first in range(0, rows, longest):
            prompt = generator.integers(0, vocab, min(longest, rows - first)).tolist()
            params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, seed=0)
            engine.add_request(prompt, params, cache_salt=f"cost curve {generator.integers(1 << 62)}")
        while not engine.idle:
            engine.step()
        return engine.stats.forward_s - before.forward_s if engine.stats.steps == before.steps + 1 else None

    return run


def _forget(engine: Engine, parts: Assembly) -> None:
    """Leave nothing of the measured steps behind."""
    engine.stats = StepStats()
    if parts.prefix is not None:
        parts.prefix.clear()
    if parts.book is not None:
        parts.book.budget.restart()
