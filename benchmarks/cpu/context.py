"""Time of a decoded token behind long contexts, whose cache entries are imported, not computed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.cpu import floors, runs
from benchmarks.cpu.machine import summary
from benchmarks.cpu.peers.stream import Stream, between
from benchmarks.cpu.settings import Settings
from tandem.contract.types import KVLayout, QFormat
from tandem.engine.request_state import RequestState, Sampling
from tandem.engine.transfer import Transfer
from tandem.engine.turns import MOST
from tandem.model.config import ModelConfig

WARM = 4  # steps before those that count: kernels and graphs are ready then


def context(model: Path, settings: Settings) -> dict[str, Any]:
    """Seconds of a step at each context, with the bytes it must read, and cache bytes per token."""
    stream = Stream(settings.threads)
    config = ModelConfig.from_file(model / "config.json")
    lengths = [length for length in settings.contexts if length <= config.text.max_position_embeddings // 2]
    rows, found = [], {}
    for length in lengths:
        llm = runs.open_llm(model, length + 256, 1)
        try:
            rows.append(_at(llm, config, length, settings, stream))
            found = {"bytes_per_token": _bytes_per_token(llm), "layout": floors.cache_bytes_per_token(config.text)}
        finally:
            llm.close()
    stream.close()
    return {"context": {"rows": rows, "cache": found}}


def _at(llm: Any, config: ModelConfig, length: int, settings: Settings, stream: Stream) -> dict[str, Any]:
    """One row: a request of ``length`` tokens is imported once a round and goes on for some steps."""
    state = synthetic(llm, config, length, settings.steps + WARM + 1)
    engine, times, speeds = llm.engine, [], []
    for number in range(settings.rounds + 1):
        computed = engine.stats.rows
        engine.import_request(state)
        speed = stream.sample()
        while engine.stats.rows < computed + WARM:
            engine.step()
        if engine.stats.rows - computed >= WARM + MOST:
            raise RuntimeError(f"the imported context of {length} tokens was computed again")
        steps, started = engine.stats.steps, time.perf_counter()
        while not engine.idle:
            engine.step()
        if number:
            times.append((time.perf_counter() - started) / (engine.stats.steps - steps))
            speeds.append(between(speed, stream.sample()))
    rounds = {"seconds": times, "bandwidth": speeds}
    nbytes = floors.cache_read_bytes(config.text, length)
    return {"context": length, "step_s": summary(times), "rounds": rounds, "cache_bytes": nbytes}


def synthetic(llm: Any, config: ModelConfig, length: int, more: int) -> RequestState:
    """A request whose first ``length`` tokens are in the caches, as random entries; the last token is to be run."""
    rng = np.random.default_rng(0)
    transfer = Transfer(llm._assembly)
    start = int(llm._assembly.tables.window.keep_from(length))
    tokens = np.asarray(runs.prompt(llm, length + 1, 1), dtype=np.int32)
    device: dict[str, npt.NDArray[Any]] = {}
    for name, cache, ratio in transfer._caches():
        count = length - start if ratio is None else length // ratio
        device[name] = _entries(cache.layout, count, rng)
    for name, array in transfer._rings():
        size = min(int(array.shape[1]), length)
        values = rng.standard_normal((size, *array.shape[2:]), dtype=np.float32)
        device[name] = values if array.is_floating_point() else tokens[length - size : length].copy()
    return RequestState(
        tokens=tokens,
        prompt_len=length + 1,
        num_computed=length,
        rng_position=length + 1,
        sampling=Sampling(max_tokens=more, temperature=0.0, ignore_eos=True),
        device=device,
        window_start=start,
    )


def _entries(layout: KVLayout, count: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Random codes with scales that make numbers of about 1."""
    low, high = {QFormat.NVFP4: (0x28, 0x34)}.get(layout.fmt, (124, 127))  # e4m3 0.25 to 0.75; powers of two
    codes = rng.integers(0, 256, (count, layout.data_bytes), dtype=np.uint8)
    if layout.fmt is QFormat.MXFP8:
        codes &= 0x80
        codes |= rng.integers(0x20, 0x38, codes.shape, dtype=np.uint8)
    scales = rng.integers(low, high, (count, layout.scale_bytes), dtype=np.uint8)
    return np.concatenate((codes, scales), axis=1)


def _bytes_per_token(llm: Any) -> float:
    """Bytes of the allocated main and index caches by token, the scratch entry of each left out."""
    caches, spec = llm._assembly.model.caches, llm._assembly.model.caches.spec
    held = 0.0
    for cache in (*caches.main.values(), *caches.index.values()):
        held += cache.data.numel() * cache.data.element_size() * (1 - 1 / cache.data.shape[0])
    return float(held / (spec.num_blocks * spec.block_size))
