"""Where the memory of a process that serves goes.

Resident pages are private (weights, caches, heap: they exist nowhere else) or pages of files, which the system drops
whenever it wants memory.  Of these there are the checkpoint's, while it is loaded and of the Engram tables that stay
mapped, and the code of libraries that imports have mapped and that becomes resident as it is first run.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from benchmarks.cpu import runs
from benchmarks.cpu.settings import Settings
from tandem import LLM
from tandem.checkpoint.inventory import TensorGroup, tensor_inventory
from tandem.contract.backend import Backend
from tandem.contract.registry import open_backend
from tandem.model.config import ModelConfig

BATCH, PROMPT = 8, 512  # requests that decode; tokens of the prompt that joins them
LONGEST = 1024
STEPS = 32  # tokens of each request that decodes: enough to outlast the prompt
KINDS = {"private": ("RssAnon", "RssShmem"), "file": ("RssFile",)}


class Watch:
    """Peaks of an engine's steps.

    The system keeps the peak of all resident pages only.  Pages of files become more, not fewer, within a step; so the
    private ones were never more than its peak less the pages of files before it.
    """

    def __init__(self, llm: LLM) -> None:
        self.llm, self.peak, self.private = llm, 0, 0

    def step(self) -> None:
        """A step of the engine."""
        reset_peak()
        files = resident()["file"]
        self.llm.engine.step()
        peak = status_bytes("VmHWM")
        self.peak, self.private = max(self.peak, peak), max(self.private, peak - files)


def memory(model: Path, settings: Settings) -> dict[str, Any]:
    """Peak resident memory over what imports take, against stored weights and caches.

    All pages of the tables are made resident before anything is served, so that they are the same at its peak.
    """
    backend = open_backend("cpu")  # imports what serving imports
    gc.collect()
    reset_peak()
    before = resident()
    base = sum(before.values())
    llm = runs.open_llm(model, LONGEST, BATCH + 1, backend)
    try:
        loading, loaded = status_bytes("VmHWM"), resident()
        tables, watch = touch_tables(llm), Watch(llm)
        serve(watch)
        served = watch.peak, watch.private
        burst(watch)
        caches, packed = cache_bytes(llm), int(llm._assembly.model.packed_bytes)
    finally:
        llm.close()
    found = {
        "weight_bytes": stored_bytes(model),
        "held_bytes": packed - tables,
        "cache_bytes": caches,
        "table_bytes": tables,
        "baseline_bytes": base,
        "loading_bytes": loading - base,
        "loaded_bytes": loaded["private"] - before["private"],
        "peak_bytes": max(loading, served[0] - tables) - base,
        "private_bytes": max(loaded["private"], served[1]) - before["private"],
        "burst_bytes": max(loaded["private"], watch.private) - before["private"],
    }
    return {"memory": found}


def serve(watch: Watch) -> None:
    """Eight requests decode, whose prompts came one after the other; then a longer prompt joins them."""
    llm, stats = watch.llm, watch.llm.engine.stats
    for place in range(BATCH):
        expected = stats.tokens + place + 1
        llm.submit(runs.prompt(llm, runs.PROMPT_TOKENS, place), runs.params(STEPS))
        while stats.tokens < expected:
            watch.step()
    llm.submit(runs.prompt(llm, PROMPT, BATCH), runs.params(2))
    while not llm.engine.idle:
        watch.step()


def burst(watch: Watch) -> None:
    """Eight prompts come at once."""
    for place in range(BATCH):
        watch.llm.submit(runs.prompt(watch.llm, runs.PROMPT_TOKENS, BATCH + 1 + place), runs.params(2))
    while not watch.llm.engine.idle:
        watch.step()


def touch_tables(llm: LLM) -> int:
    """Read all Engram tables; returns their bytes."""
    backend: Backend = llm.backend
    found = 0
    for engram in getattr(llm._assembly.model, "engrams", {}).values():
        stored = backend.unpack_weight(engram.table)
        for part in (stored.data, stored.scale):
            if part is not None:
                part.max()
                found += part.numel() * part.element_size()
    return found


def stored_bytes(model: Path) -> int:
    """Bytes that the text model's weights take in the checkpoint, Engram tables left out."""
    specs = tensor_inventory(ModelConfig.from_file(model / "config.json"))
    return sum(s.nbytes for s in specs if s.group is TensorGroup.TEXT and ".engram.embed." not in s.name)


def cache_bytes(llm: Any) -> int:
    """Bytes of all caches and state arrays of an engine."""
    caches = llm._assembly.model.caches
    paged = [*caches.main.values(), *caches.index.values(), *caches.window.values()]
    arrays = [cache.data for cache in paged] + list(caches.compressor.values())
    arrays += [] if caches.history is None else [caches.history]
    return sum(array.numel() * array.element_size() for array in arrays)


def resident() -> dict[str, int]:
    """Resident bytes of this process by kind."""
    return {kind: sum(map(status_bytes, names)) for kind, names in KINDS.items()}


def reset_peak() -> None:
    """Let the system's peak of resident pages begin again."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def status_bytes(name: str) -> int:
    """A memory size of this process from /proc, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")
