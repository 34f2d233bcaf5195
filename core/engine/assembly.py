"""Puts an engine together: backend, checkpoint, caches sized to fit, scheduler, model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tandem.cache.pool import BlockPool
from tandem.cache.prefix import PrefixCache, PrefixLimits
from tandem.cache.space import Pools, Tables
from tandem.cache.tables import BlockTable, WindowGeometry, WindowTable, blocks_for
from tandem.checkpoint.progress import LoadProgress
from tandem.checkpoint.reader import Checkpoint
from tandem.checkpoint.shipped import shipped_model
from tandem.config import EngineConfig
from tandem.contract.backend import Backend
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend
from tandem.contract.types import ShardSpec
from tandem.engine.plan import SchedulerLimits
from tandem.engine.prefix_plan import cache_fingerprint, plan_prefix
from tandem.engine.requests import RequestTable
from tandem.engine.runner import ModelRunner
from tandem.engine.scheduler import Scheduler
from tandem.engine.step import StepBuilder
from tandem.errors import ConfigError
from tandem.model.caches import CacheSpec, global_bytes_per_token, window_layers, window_layout
from tandem.model.config import ModelConfig, TextConfig
from tandem.model.registry import Model, build_model
from tandem.model.replay import Replay, plan_replay
from tandem.tokenizer.tokenizer import Tokenizer


@dataclass(slots=True)
class Assembly:
    """The parts of an engine; nothing in them is shared with another engine."""

    config: ModelConfig
    plan: Plan
    model: Model
    tokenizer: Tokenizer
    table: RequestTable
    scheduler: Scheduler
    pools: Pools
    tables: Tables
    builder: StepBuilder
    runner: ModelRunner
    prefix: PrefixCache | None
    checkpoint: Checkpoint
    max_model_len: int

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table."""
        return self.config.text.vocab_size

    @property
    def eos_id(self) -> int:
        """The model's end token."""
        return self.config.eos_token_id

    def close(self) -> None:
        """Release the backend and the mapped files."""
        self.plan.backend.close()
        self.checkpoint.close()


def _model_directory(options: EngineConfig) -> Path:
    """The configured model, or the one that comes with the package.

    An empty path is no wish for the default: it is what a script passes whose variable is not set.
    """
    if options.model.path is None:
        return shipped_model()
    if not options.model.path:
        raise ConfigError(
            "no model was given",
            where=f"model.path, from {options.origins.get('model.path', 'argument')}",
            why="it is empty",
            fix="name a checkpoint directory, or leave it out: then the small model that comes with Tandem runs",
        )
    return Path(options.model.path)


def _open(options: EngineConfig) -> Backend:
    name, device = options.backend.name, options.backend.device
    selector = f"{name}:{device}" if device else name
    return open_backend(selector, origin=options.origins.get("backend.name", "argument"))


class ProgressSource:
    """A checkpoint that reports to a progress bar what is read from it."""

    def __init__(self, checkpoint: Checkpoint, bar: LoadProgress) -> None:
        self._checkpoint, self._bar, self._module = checkpoint, bar, ""

    def enter(self, module: str) -> None:
        """Name the module whose tensors are read next."""
        self._module = module

    def names(self) -> list[str]:
        """As the checkpoint."""
        return self._checkpoint.names()

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """As the checkpoint, counted."""
        tensor = self._checkpoint.read(name, rows)
        self._bar.advance(tensor.numel() * tensor.element_size(), self._module)
        return tensor

    def release(self, name: str) -> None:
        """As the checkpoint."""
        self._checkpoint.release(name)


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
    geometry = WindowGeometry(
        window=text.sliding_window,
        block_size=cache.window_block,
        longest_chunk=scheduler.max_tokens_per_step,
        steps_in_flight=STEPS_IN_FLIGHT,
    )
    limits = SchedulerLimits(
        max_tokens_per_step=scheduler.max_tokens_per_step,
        max_chunk=scheduler.max_chunk,
        max_running=scheduler.max_slots,
        max_in_flight=STEPS_IN_FLIGHT,
    )
    needed = scheduler.max_slots * blocks_for(longest, cache.block_size)
    spec = CacheSpec(
        block_size=cache.block_size,
        window_block=cache.window_block,
        num_blocks=cache.num_blocks or needed,
        num_window_blocks=geometry.pool_blocks(scheduler.max_slots, scheduler.max_tokens_per_step),
        max_slots=scheduler.max_slots,
        backtrack=geometry.rollback,
    )
    block, page = _block_bytes(text, spec), _page_bytes(text, spec)
    prefix = plan_prefix(options, spec, geometry, longest, page, block)
    spec = replace(
        spec, num_blocks=spec.num_blocks + prefix.blocks, num_window_blocks=spec.num_window_blocks + prefix.pages
    )
    if cache.memory_mib is not None:
        most = needed if prefix.limits is None else ((1 << 31) - 1) // cache.block_size
        spec = replace(spec, num_blocks=min(most, _blocks_in(cache.memory_mib, spec, page, block)))
    replay = plan_replay(options.model.swa_replay, options.model.swa_keep, text, geometry.rollback)
    return Sizes(longest, spec, geometry, limits, replay, prefix.limits)


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


# Enough for interactive use; the caches of a longer limit are asked for by name.
DEFAULT_MODEL_LEN = 4096
# One step runs while the next can be scheduled.
STEPS_IN_FLIGHT = 2


def _pools_and_tables(sizes: Sizes) -> tuple[Pools, Tables]:
    spec = sizes.spec
    return Pools(BlockPool(spec.num_blocks), BlockPool(spec.num_window_blocks)), Tables(
        BlockTable(spec.max_slots, sizes.max_model_len, spec.block_size), WindowTable(spec.max_slots, sizes.geometry)
    )


def assemble(
    options: EngineConfig,
    backend: Backend | None = None,
    show_progress: bool | None = None,
    make_plan: Callable[[Backend, ShardSpec], Plan] = Plan,
) -> Assembly:
    """Open, load and size everything.

    Args:
        options: the engine configuration.
        backend: an open backend; None opens the configured one.
        show_progress: see `tandem.checkpoint.progress.LoadProgress`.
        make_plan: makes the plan, for callers that watch what is bound.
    Raises:
        CheckpointError, TokenizerError, ConfigError, BackendLoadError, OpUnsupported: before any step has run.
    """
    directory = _model_directory(options)
    checkpoint = Checkpoint.open(directory)
    checkpoint.validate()
    tokenizer = Tokenizer.load(directory)
    config = checkpoint.config
    sizes = size_engine(options, config.text)
    opened = backend or _open(options)
    plan = make_plan(opened, ShardSpec())
    spec, max_rows = sizes.spec, sizes.limits.max_tokens_per_step
    with LoadProgress(checkpoint.nbytes, show_progress) as bar:
        source = ProgressSource(checkpoint, bar)
        model = build_model(
            plan,
            source,
            config,
            tokenizer.path,
            spec,
            max_rows=max_rows,
            max_positions=sizes.max_model_len,
            progress=source.enter,
        )
    checkpoint.release_all()
    table = RequestTable(spec.max_slots, sizes.max_model_len)
    pools, tables = _pools_and_tables(sizes)
    mark = cache_fingerprint(plan, checkpoint, spec, model.caches)
    ratios = sorted({r for r in config.text.compress_ratios[: config.text.num_hidden_layers] if r})
    builder = StepBuilder(plan, table, tables, ratios, spec.block_size, max_rows, sizes.replay)
    return Assembly(
        config=config,
        plan=plan,
        model=model,
        tokenizer=tokenizer,
        table=table,
        scheduler=Scheduler(table, pools, tables, sizes.limits),
        pools=pools,
        tables=tables,
        builder=builder,
        runner=ModelRunner(model, plan, builder, table),
        prefix=None if sizes.prefix is None else PrefixCache(pools, tables, table.tokens, mark, sizes.prefix),
        checkpoint=checkpoint,
        max_model_len=sizes.max_model_len,
    )
