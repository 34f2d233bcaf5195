"""What is measured of one size in a process of its own; each function returns plain values."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cpu import floors, runs, sizes
from benchmarks.cpu.meter import Meter, open_metered, overhead_s
from benchmarks.cpu.settings import Settings
from tandem.model.config import ModelConfig

CASES = ((1, 512), (8, 128))  # requests and prompt tokens, as in peers/common.py


def info(model: Path, settings: Settings) -> dict[str, Any]:
    """Parameters, bytes, and what the backend says of itself."""
    config = ModelConfig.from_file(model / "config.json")
    llm = runs.open_llm(model, 256, 1)
    try:
        graphs = llm.backend.caps.graphs
        return {"parameters": sizes.parameters(config), "backend": llm.backend.fingerprint(), "graphs": graphs}
    finally:
        llm.close()


def decode(model: Path, settings: Settings) -> dict[str, Any]:
    """Decode at each batch."""
    longest = runs.PROMPT_TOKENS + settings.steps + 8
    llm = runs.open_llm(model, longest, max(settings.batches))
    try:
        return {"decode": [runs.decode(llm, batch, settings.steps, settings.rounds) for batch in settings.batches]}
    finally:
        llm.close()


def prefill(model: Path, settings: Settings) -> dict[str, Any]:
    """Prompts of each length, with the work and the least time of each."""
    text = ModelConfig.from_file(model / "config.json").text
    lengths = [length for length in settings.prompts if length < text.max_position_embeddings]
    llm = runs.open_llm(model, max(lengths) + 8, 1)
    rows = []
    try:
        runs.first_token_s(llm, min(lengths), 0)
        for length in lengths:
            row = runs.prefill(llm, length, settings.rounds, settings.budget_s)
            rows.append(row | {"flops": floors.prefill_flops(text, length)})
    finally:
        llm.close()
    return {"prefill": rows}


def beside(model: Path, settings: Settings) -> dict[str, Any]:
    """What the peers' scripts measure, of Tandem, with its weights counted in the same way."""
    found: dict[str, Any] = floors.weights_read(ModelConfig.from_file(model / "config.json"))
    for count, tokens in CASES:
        llm = runs.open_llm(model, tokens + settings.steps + 8, count)
        try:
            found |= runs.beside(llm, count, tokens, settings.steps, settings.rounds)
        finally:
            llm.close()
    return {"beside": {"variant": "fp4 experts, fp8 dense"} | found}


def ops(model: Path, settings: Settings) -> dict[str, Any]:
    """Each op's calls, time and least time: of decode steps at each batch, and of a prompt."""
    backend, meter = open_metered(settings.bandwidth, settings.peak)
    llm = runs.open_llm(model, 512 + 128, max(settings.batches), backend, scheduler__overlap="off")
    found: dict[str, Any] = {"call_overhead_s": overhead_s(meter), "decode": [], "prefill": []}
    try:
        for batch in settings.batches:
            found["decode"].append({"batch": batch} | _decode_ops(llm, meter, batch, settings))
        found["prefill"].append({"tokens": 512} | _prefill_ops(llm, meter, 512))
    finally:
        llm.close()
    return {"ops": found}


def _decode_ops(llm: Any, meter: Meter, batch: int, settings: Settings) -> dict[str, Any]:
    engine, counted = llm.engine, 2
    runs.start(llm, batch, settings.steps + counted + 1, 0)
    meter.start("count")
    for _ in range(counted):
        engine.step()
    experts, costs = list(meter.experts), {name: asdict(row) for name, row in meter.rows.items()}
    meter.start("time")
    steps = engine.stats.steps
    started = time.perf_counter()
    while not engine.idle:
        engine.step()
    took = time.perf_counter() - started
    steps = engine.stats.steps - steps
    layers = len(experts) // counted
    return {
        "step_s": took / steps,
        "in_ops_s": meter.outermost_s / steps,
        "calls": meter.calls / steps,
        "experts": floors.mean_experts([experts[i * layers : (i + 1) * layers] for i in range(counted)]),
        "rows": _merge(costs, counted, {name: asdict(row) for name, row in meter.rows.items()}, steps),
    }


def _prefill_ops(llm: Any, meter: Meter, tokens: int) -> dict[str, Any]:
    meter.start("count")
    runs.first_token_s(llm, tokens, 0)
    costs = {name: asdict(row) for name, row in meter.rows.items()}
    meter.start("off")
    runs.first_token_s(llm, tokens, 1)
    meter.start("time")
    took = runs.first_token_s(llm, tokens, 2)
    timed = {name: asdict(row) for name, row in meter.rows.items()}
    return {"step_s": took, "in_ops_s": meter.outermost_s, "calls": meter.calls, "rows": _merge(costs, 1, timed, 1)}


def _merge(costs: dict[str, Any], counted: int, times: dict[str, Any], timed: int) -> list[dict[str, Any]]:
    """Rows of one step, by falling time."""
    rows = []
    for name, row in times.items():
        cost = costs.get(name, {"nbytes": 0.0, "flops": 0.0, "floor_s": 0.0})
        own = {"op": name, "calls": row["calls"] / timed, "seconds": row["seconds"] / timed}
        rows.append(own | {key: cost[key] / counted for key in ("nbytes", "flops", "floor_s")})
    return sorted(rows, key=lambda row: -row["seconds"])
