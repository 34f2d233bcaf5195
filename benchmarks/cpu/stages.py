"""What is measured of one size in a process of its own; each function returns plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.cpu import floors, runs, sizes
from benchmarks.cpu.meter import Meter, OpRow, open_metered, overhead_s
from benchmarks.cpu.native_time import native_clock
from benchmarks.cpu.peers.stream import Stream, between
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
    """Decode at each batch, with the time inside native kernels, which takes next to nothing to note."""
    steps, rounds, most = settings.steps, settings.rounds, max(settings.batches)
    longest = runs.PROMPT_TOKENS + steps + runs.WARM + runs.spare(most)
    llm, stream = runs.open_llm(model, longest, most), Stream(settings.threads)
    try:
        with native_clock(getattr(llm.backend, "_library", None)) as clock:
            return {"decode": [runs.decode(llm, batch, steps, rounds, stream, clock) for batch in settings.batches]}
    finally:
        stream.close()
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
    stream = Stream(settings.threads)
    for count, tokens in CASES:
        llm = runs.open_llm(model, tokens + settings.steps + 8, count)
        try:
            found |= runs.beside(llm, count, tokens, settings.steps, settings.rounds, stream)
        finally:
            llm.close()
    stream.close()
    return {"beside": {"variant": "fp4 experts, fp8 dense"} | found}


def ops(model: Path, settings: Settings) -> dict[str, Any]:
    """Each op's calls, time and least time: of decode steps at each batch, and of a prompt."""
    backend, meter = open_metered()
    stream = Stream(settings.threads)
    llm = runs.open_llm(model, 512 + 128, max(settings.batches), backend, scheduler__overlap="off")
    found: dict[str, Any] = {"call_overhead_s": overhead_s(meter), "decode": [], "prefill": []}
    try:
        for batch in settings.batches:
            found["decode"].append({"batch": batch} | _decode_ops(llm, meter, stream, batch, settings))
        found["prefill"].append({"tokens": 512} | _prefill_ops(llm, meter, stream, 512, settings))
    finally:
        stream.close()
        llm.close()
    return {"ops": found}


def _decode_ops(llm: Any, meter: Meter, stream: Stream, batch: int, settings: Settings) -> dict[str, Any]:
    steps, counted = settings.steps, 2
    runs.start(llm, batch, steps + counted + runs.WARM, 0)
    meter.start("count")
    runs.together(llm, batch, counted)
    experts, costs = meter.experts, meter.rows
    meter.start("off")
    speed = stream.sample()
    runs.together(llm, batch, runs.WARM)
    meter.start("time")
    took, _ = runs.together(llm, batch, steps)  # who counts ops sees single steps
    bandwidth, layers = between(speed, stream.sample()), len(experts) // counted
    found = {
        "step_s": took / steps,
        "in_ops_s": meter.outermost_s / steps,
        "calls": meter.calls / steps,
        "bandwidth": bandwidth,
        "experts": floors.mean_experts([experts[i * layers : (i + 1) * layers] for i in range(counted)]),
        "rows": _merge(_costs(costs, counted, bandwidth, settings.peak), meter.rows, steps),
    }
    meter.start("off")
    runs.finish(llm)
    return found


def _prefill_ops(llm: Any, meter: Meter, stream: Stream, tokens: int, settings: Settings) -> dict[str, Any]:
    meter.start("count")
    runs.first_token_s(llm, tokens, 0)
    costs = meter.rows
    meter.start("off")
    runs.first_token_s(llm, tokens, 1)
    speed = stream.sample()
    meter.start("time")
    took = runs.first_token_s(llm, tokens, 2)
    bandwidth = between(speed, stream.sample())
    rows = _merge(_costs(costs, 1, bandwidth, settings.peak), meter.rows, 1)
    return {"step_s": took, "in_ops_s": meter.outermost_s, "calls": meter.calls, "bandwidth": bandwidth, "rows": rows}


def _costs(rows: dict[str, OpRow], counted: int, bandwidth: float, peak: float) -> dict[str, dict[str, float]]:
    """Bytes, FLOPs and least seconds of one step by kind of call."""
    totals = {name: row.cost(bandwidth, peak) for name, row in rows.items()}
    return {name: {key: value / counted for key, value in total.items()} for name, total in totals.items()}


def _merge(costs: dict[str, dict[str, float]], times: dict[str, OpRow], steps: int) -> list[dict[str, Any]]:
    """Rows of one step, by falling time."""
    nothing = OpRow().cost(1.0, 1.0)
    rows = [
        {"op": name, "calls": row.calls / steps, "seconds": row.seconds / steps} | costs.get(name, nothing)
        for name, row in times.items()
    ]
    return sorted(rows, key=lambda row: -row["seconds"])
