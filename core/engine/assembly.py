"""Puts an engine together: backend, checkpoint, caches sized to fit, scheduler, model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.cache.hashing import Identity
from tandem.cache.prefix import PrefixCache
from tandem.cache.space import Pools, Tables
from tandem.checkpoint.progress import LoadProgress
from tandem.checkpoint.reader import Checkpoint
from tandem.checkpoint.shipped import shipped_model
from tandem.config import EngineConfig
from tandem.contract.backend import Backend
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend
from tandem.contract.standing import require_invariance
from tandem.contract.types import ShardSpec
from tandem.engine.lane import InlineLane, Lane, ThreadLane
from tandem.engine.prefix_plan import cache_fingerprint, identity_of
from tandem.engine.requests import RequestTable
from tandem.engine.runner import ModelRunner
from tandem.engine.scheduler import Scheduler
from tandem.engine.sizes import Sizes, pools_and_tables, size_engine
from tandem.engine.speculation import SpeculationBook
from tandem.engine.step import DraftState, StepBuilder
from tandem.engine.turns import Turns
from tandem.errors import ConfigError
from tandem.model.config import ModelConfig
from tandem.model.heap import give_back
from tandem.model.registry import Model, build_model
from tandem.speculation.budget import Objective
from tandem.speculation.verify import VerifyBudget
from tandem.structured.compiler import Compiler
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
    book: SpeculationBook | None
    compiler: Compiler
    device_lane: Lane
    text_lane: Lane
    overlap: bool
    turns: Turns

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
        self.device_lane.close()
        self.text_lane.close()
        self.compiler.close()
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
        # Around what is read the system maps more of the file than is released with it.
        self._checkpoint.release_all()

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
    if options.backend.batch_invariant == "required":
        require_invariance(type(opened), options.origins.get("backend.batch_invariant", "argument"))
    plan = make_plan(opened, ShardSpec())
    spec, max_rows = sizes.spec, sizes.limits.max_tokens_per_step
    with LoadProgress(checkpoint.nbytes, show_progress) as bar:
        source = ProgressSource(checkpoint, bar)
        model = build_model(
            plan,
            source,
            config,
            tokenizer.library,  # reading the file once more leaves as much behind in the heap
            spec,
            max_rows=max_rows,
            max_positions=sizes.max_model_len,
            progress=source.enter,
        )
    checkpoint.release_all()
    give_back()
    return connect(options, checkpoint, tokenizer, plan, model, sizes)


def connect(
    options: EngineConfig, checkpoint: Checkpoint, tokenizer: Tokenizer, plan: Plan, model: Model, sizes: Sizes
) -> Assembly:
    """Put the parts around a loaded model together."""
    config, spec = checkpoint.config, sizes.spec
    vocab, drafts = config.text.vocab_size, spec.draft_tokens
    table = RequestTable(spec.max_slots, sizes.max_model_len)
    pools, tables = pools_and_tables(sizes)
    state = DraftState(plan, spec.max_slots + 1, drafts, vocab) if drafts else None
    overlap = options.scheduler.overlap == "on"
    book = SpeculationBook(spec.max_slots, drafts, _budget(options, sizes)) if drafts else None
    ratios = sorted({r for r in config.text.compress_ratios[: config.text.num_hidden_layers] if r})
    ring = 0 if model.caches.history is None else int(model.caches.history.shape[1])
    max_rows = sizes.limits.max_tokens_per_step
    builder = StepBuilder(plan, table, tables, ratios, spec.block_size, max_rows, sizes.replay, ring, state)
    prefix = None
    if sizes.prefix is not None:
        mark = cache_fingerprint(plan, checkpoint, spec, model.caches)
        prefix = PrefixCache(pools, tables, table.tokens, mark, sizes.prefix)

    def identify(slot: int) -> tuple[Identity, int]:
        return identity_of(table, slot, table.salt(slot)), table.reusable(slot, sizes.replay)

    coupled = options.speculation.accept == "coupled"
    lane = ThreadLane("tandem-device") if overlap else InlineLane()
    return Assembly(
        config=config,
        plan=plan,
        model=model,
        tokenizer=tokenizer,
        table=table,
        scheduler=Scheduler(
            table, pools, tables, sizes.limits, None if book is None else book.budget, prefix, identify
        ),
        pools=pools,
        tables=tables,
        builder=builder,
        runner=ModelRunner(model, plan, builder, table, vocab, book, coupled, lane),
        prefix=prefix,
        checkpoint=checkpoint,
        max_model_len=sizes.max_model_len,
        book=book,
        compiler=Compiler(tokenizer, vocab),
        device_lane=lane,
        text_lane=ThreadLane("tandem-text") if overlap else InlineLane(),
        overlap=overlap,
        # Without graphs the host is busy with every op of every step.
        turns=Turns(options.scheduler.turn_ms / 1e3 if plan.graphs else 0.0),
    )


def _budget(options: EngineConfig, sizes: Sizes) -> VerifyBudget:
    """The choice of rows to verify; without a cost curve, which a running engine measures, every draft is verified."""
    speculation, drafts = options.speculation, sizes.spec.draft_tokens
    return VerifyBudget(
        sizes.spec.max_slots,
        drafts,
        objective=Objective(speculation.step_ms, speculation.token_ms),
        overlapped=options.scheduler.overlap == "on",
    )
