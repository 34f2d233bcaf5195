"""The sections of an engine's options, with bounds and meanings; `tandem.config` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MODES = ("off", "mask", "compact")  # of bounded replay; here, since `tandem doctor` reads options without torch


def _option(
    default: Any, text: str, minimum: int | None = None, maximum: int = 1 << 31, choices: tuple[str, ...] = ()
) -> Any:
    about = {"help": text, "minimum": minimum, "maximum": maximum, "choices": choices}
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, and how long a request may get."""

    path: str | None = _option(
        None, "folder with config.json and the weights; default: the small model that comes with Tandem"
    )
    max_model_len: int | None = _option(
        None, "most tokens of a request, prompt and output; default: the model's, at most 4096", 2
    )
    swa_replay: str = _option(
        "off",
        "decoder layers run on every row of a prompt (off), on its last rows only (compact), or on every row with "
        "the windows of compact (mask)",
        choices=MODES,
    )
    swa_keep: int | None = _option(
        None, "last rows of a prompt that run through all layers; default: the least that swa_replay can do with", 1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """Where it runs."""

    name: str = _option("auto", "registered backend, or auto")
    device: int = _option(0, "index of the device", 0)
    batch_invariant: str = _option(
        "any",
        "take any backend, or only one whose conformance run proves that no row depends on its batch (required)",
        choices=("any", "required"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """How much is kept of what was computed."""

    block_size: int = _option(128, "tokens in a block of the main and index caches", 1, 1 << 16)
    window_block: int = _option(32, "tokens in a block of the window caches", 1, 1 << 16)
    num_blocks: int | None = _option(None, "blocks of the main and index caches; default from memory_mib", 1)
    memory_mib: int | None = _option(None, "memory for all caches in MiB; default from what is needed", 1)
    prefix: str = _option("on", "keep what was computed for requests that begin alike", choices=("on", "off"))
    prefix_mib: int | None = _option(
        None, "most MiB kept for later requests, half in blocks, half in window pages; default: what is free", 1
    )
    prefix_state: str = _option(
        "stored",
        "windows of a cached prefix: stored pages, or replay of its last rows, which gives slightly other numbers",
        choices=("stored", "replay"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """What runs together in a step."""

    max_slots: int = _option(64, "requests that run at the same time", 1, 1 << 16)
    max_tokens_per_step: int = _option(2048, "rows in a step", 1, 1 << 18)
    max_chunk: int = _option(512, "rows of one prompt in a step", 1, 1 << 18)
    overlap: str = _option(
        "off", "queue a step while the one before runs (on), or run one after another (off)", choices=("on", "off")
    )
    turn_ms: int = _option(
        40,
        "milliseconds that steps may run one after another before their tokens are handed out, where all requests "
        "decode without drafts and rules; 0: one step",
        0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions:
    """How drafts are made and verified."""

    draft_tokens: int | None = _option(
        None, "drafts of a request that a step verifies, 0 for none; default: as many as the checkpoint drafts", 0, 64
    )
    accept: str = _option(
        "rejection",
        "a draft is taken by rejection sampling, which keeps the law of the tokens (rejection), or where drawing anew "
        "gives the same token, which keeps every text (coupled)",
        choices=("rejection", "coupled"),
    )
    verify: str = _option(
        "all",
        "verify every draft (all), or as many as give the most tokens per second by measured step times and the "
        "drafter's confidence (scheduled); then texts drawn by rejection depend on the load",
        choices=("all", "scheduled"),
    )
    step_ms: int | None = _option(None, "with scheduled: longest step in milliseconds", 1)
    token_ms: int | None = _option(None, "with scheduled: longest expected time per token in milliseconds", 1)
