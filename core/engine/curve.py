"""The cost curve of an engine: measured once for its hardware, kernels, model and options, then kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tandem.config import EngineConfig
from tandem.engine.assembly import Assembly
from tandem.engine.engine import Engine
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
        flags={"max_slots": str(scheduler.max_slots), "swa_replay": options.model.swa_replay},
    )
    points = load(key, folder)
    if points is None:
        points = measure(_prompt_step(engine), scheduler.max_slots * (1 + parts.book.count))
        save(key, points, folder)
    parts.book.budget.curve = CostCurve(points)


def _prompt_step(engine: Engine) -> Callable[[int], float]:
    generator = np.random.default_rng(0)
    vocab, longest = engine.vocab_size, engine.longest_chunk

    def run(rows: int) -> float:
        """Seconds of the forward part of one step with so many rows, of prompts that no other request shares."""
        left = rows
        while left:
            part = min(left, longest)
            left -= part
            params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
            salt = f"cost curve {generator.integers(1 << 62)}"
            engine.add_request(generator.integers(0, vocab, part).tolist(), params, cache_salt=salt)
        before = engine.stats.forward_s
        while not engine.idle:
            engine.step()
        return engine.stats.forward_s - before

    return run
