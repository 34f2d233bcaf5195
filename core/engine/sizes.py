"""Turns options and a model into sizes, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.cache.pool import BlockPool
from tandem.cache.prefix import PrefixLimits
from tandem.cache.space import Pools, Tables
from tandem.cache.tables import BlockTable, WindowGeometry, WindowTable, blocks_for
from tandem.config import EngineConfig
from tandem.engine.plan import SchedulerLimits
from tandem.engine.prefix_plan import plan_prefix
from tandem.errors import ConfigError
from tandem.model.caches import CacheSpec, global_bytes_per_token, window_layers, window_layout
from tandem.model.config import TextConfig
from tandem.model.dspark import check_draft_count
from tandem.model.replay import Replay, plan_replay

# Enough for interactive use; the caches of a longer limit are asked for by name.
DEFAULT_MODEL_LEN = 4096
# One step runs while the next can be scheduled.
STEPS_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Everything sized, before anything is allocated."""

    max_model_len: int
    spec: CacheSpec
    geometry: WindowGeometry
    limits: SchedulerLimits
    replay: Replay
    prefix: PrefixLimits | None


def size_engine(options: EngineConfig, text: TextConfig) -> Sizes:
    """Turn options and model into sizes.

    Raises:
        ConfigError: the limit on the model length is beyond what the model was made for, or bounded replay cannot be
            used with these options or this model.
    """
    scheduler, cache = options.scheduler, options.cache
    longest = options.model.max_model_len or min(text.max_position_embeddings, DEFAULT_MODEL_LEN)
    if longest > text.max_position_embeddings:
        raise ConfigError(
            "the engine's length limit is beyond the model's",
            where="model.max_model_len",
            why=f"{longest} is more than max_position_embeddings {text.max_position_embeddings}",
            fix="lower it",
        )
    drafts = _draft_tokens(options, text)
    geometry = WindowGeometry(
        window=text.sliding_window,
        block_size=cache.window_block,
        longest_chunk=scheduler.max_tokens_per_step,
        steps_in_flight=STEPS_IN_FLIGHT,
        max_draft=drafts,
    )
    limits = SchedulerLimits(
        max_tokens_per_step=scheduler.max_tokens_per_step,
        max_chunk=scheduler.max_chunk,
        max_running=scheduler.max_slots,
        max_in_flight=STEPS_IN_FLIGHT,
        draft_tokens=drafts,
    )
    needed = scheduler.max_slots * blocks_for(longest, cache.block_size)
    spec = CacheSpec(
        block_size=cache.block_size,
        window_block=cache.window_block,
        num_blocks=cache.num_blocks or needed,
        num_window_blocks=geometry.pool_blocks(scheduler.max_slots, scheduler.max_tokens_per_step),
        max_slots=scheduler.max_slots,
        backtrack=geometry.rollback,
        draft_tokens=drafts,
    )
    block, page = _block_bytes(text, spec), _page_bytes(text, spec)
    replay = plan_replay(options.model.swa_replay, _kept_rows(options, text, geometry), text, geometry.rollback)
    prefix = plan_prefix(options, spec, geometry, longest, page, block, replay.keep)
    spec = replace(
        spec, num_blocks=spec.num_blocks + prefix.blocks, num_window_blocks=spec.num_window_blocks + prefix.pages
    )
    if cache.memory_mib is not None:
        most = needed if prefix.limits is None else ((1 << 31) - 1) // cache.block_size
        spec = replace(spec, num_blocks=min(most, _blocks_in(cache.memory_mib, spec, page, block)))
    return Sizes(longest, spec, geometry, limits, replay, prefix.limits)


def _drafts_made(text: TextConfig) -> int:
    """Drafts that the checkpoint makes after each token."""
    return text.dspark_block_size if text.num_nextn_predict_layers else 0


def _kept_rows(options: EngineConfig, text: TextConfig, geometry: WindowGeometry) -> int | None:
    """Rows of a prompt that bounded replay keeps.

    By default they are enough for all drafts that the checkpoint makes, however many are in use: these change no text.
    """
    if options.model.swa_keep is not None or options.model.swa_replay == "off":
        return options.model.swa_keep
    return text.sliding_window + replace(geometry, max_draft=_drafts_made(text)).rollback


def _draft_tokens(options: EngineConfig, text: TextConfig) -> int:
    """Drafts that a step verifies per request.

    Raises:
        ConfigError: the checkpoint does not draft so many, a step has no room for them, or they are to be scheduled
            and there are none.
    """
    made = _drafts_made(text)
    wanted = options.speculation.draft_tokens
    if options.speculation.verify == "scheduled" and 0 in (made, wanted):
        raise ConfigError(
            "verification cannot be scheduled without drafts",
            where=f"speculation.verify, from {options.origins.get('speculation.verify', 'argument')}",
            why="speculation.draft_tokens is 0" if made else "the checkpoint has no draft stages",
            fix="set it to all, or let drafts be made",
        )
    drafts = made if wanted is None else wanted
    check_draft_count(text, drafts, "speculation.draft_tokens")
    scheduler = options.scheduler
    if scheduler.max_tokens_per_step < scheduler.max_slots * (1 + drafts):
        raise ConfigError(
            "a step has no room for the drafts of all requests",
            where="scheduler.max_tokens_per_step",
            why=f"{scheduler.max_slots} requests of 1 + {drafts} rows need {scheduler.max_slots * (1 + drafts)}, "
            f"it has {scheduler.max_tokens_per_step}",
            fix="raise it, or lower scheduler.max_slots or speculation.draft_tokens",
        )
    return drafts


def _block_bytes(text: TextConfig, spec: CacheSpec) -> int:
    """Memory of a block in all main and index caches."""
    return int(global_bytes_per_token(text, spec.block_size) * spec.block_size)


def _page_bytes(text: TextConfig, spec: CacheSpec) -> int:
    """Memory of a page in all window caches."""
    return window_layout(text, spec.window_block).block_bytes * window_layers(text, spec)


def _blocks_in(memory_mib: int, spec: CacheSpec, page_bytes: int, block_bytes: int) -> int:
    """Main blocks that fit beside the window caches."""
    window = spec.num_window_blocks * page_bytes
    left = (memory_mib << 20) - window
    if left < block_bytes:
        raise ConfigError(
            "the cache memory holds no block",
            where="cache.memory_mib",
            why=f"{memory_mib} MiB; window caches take {window >> 20} MiB and one block {block_bytes} bytes",
            fix="raise it, or lower scheduler.max_slots, scheduler.max_tokens_per_step or cache.prefix_mib",
        )
    return left // block_bytes


def pools_and_tables(sizes: Sizes) -> tuple[Pools, Tables]:
    """Empty pools and tables."""
    spec = sizes.spec
    return Pools(BlockPool(spec.num_blocks), BlockPool(spec.num_window_blocks)), Tables(
        BlockTable(spec.max_slots, sizes.max_model_len, spec.block_size), WindowTable(spec.max_slots, sizes.geometry)
    )
