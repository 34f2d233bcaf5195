"""Models by architecture name: one more model is one more entry here and one more file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer

from tandem.contract.plan import Plan
from tandem.contract.types import Rows
from tandem.errors import ConfigError
from tandem.model.caches import CacheSpec, ModelCaches, allocate
from tandem.model.config import ModelConfig
from tandem.model.deepseek_v41 import DeepseekV41
from tandem.model.dspark import check_drafts
from tandem.model.engram_tables import engram_vocabulary_map
from tandem.model.heap import give_back
from tandem.model.step import StepInput
from tandem.model.weights import TensorSource, WeightLoader

Tensor = torch.Tensor
Progress = Callable[[str], None]


class Model(Protocol):
    """What the engine needs of a model."""

    caches: ModelCaches
    packed_bytes: int  # held by weights on the backend
    drafts: int  # drafts made after each drawn token; 0: `draft_block` and `draft_head` are not to be called

    def forward(self, step: StepInput) -> Tensor:
        """Hidden rows bf16 [T, H]; writes caches and state."""

    def logits(self, hidden: Tensor, index: Tensor) -> Tensor:
        """Logits f32 [N, V] of chosen rows."""

    def draw_tokens(self, hidden: Tensor, index: Tensor, *numbers: Any) -> Tensor:
        """Tokens int32 [N], -1 for none, that `sample` draws from the logits of chosen rows, which may never be made.

        Args:
            hidden, index: as in `logits`.
            numbers: what the op `head_sample` takes behind the head.
        """

    def draft_block(
        self, anchors: Tensor, positions: Tensor, slots: Tensor, window_table: Tensor, window_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run the draft blocks of N requests, whose rows up to the anchors were given to `forward`.

        Args:
            anchors: int32 [N], the newest tokens, drawn and not yet given to `forward`; -1 where none was drawn.
            positions: int32 [N], their positions.
            slots: int32 [N], -1 for padding, no other value twice.
            window_table: as in `StepInput`; it holds the window before each anchor.
            window_first: as in `StepInput`, the bound of decoder layers where they have one of their own.
        Returns:
            hidden bf16 [N, drafts, H] and base logits f32 [N, drafts, V], for `draft_head`.
            Rows of a request without slot or anchor hold anything finite.  Writes nothing that outlives the call.
        """

    def draft_head(self, base: Tensor, hidden: Tensor, previous: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """What draft i is drawn from, once the token before it is known.

        Args:
            base, hidden: parts [:, i] of what `draft_block` returned, f32 [N, V] and bf16 [N, H].
            previous: int32 [N], the anchor for draft 0, else draft i - 1; -1 for none.
        Returns:
            logits f32 [N, V] of the token at the anchor's position + 1 + i, and the confidence f32 [N] that the draft
            will be accepted if those before it are.  Without a token before: -inf and 0.
        """

    def remember(self, rows: Rows) -> None:
        """Write the state that follows from the tokens of rows alone, without running them."""


def _build_v41(
    plan: Plan,
    source: TensorSource,
    config: ModelConfig,
    tokenizer: Path | Tokenizer,
    spec: CacheSpec,
    max_rows: int,
    max_positions: int,
    progress: Progress,
) -> Model:
    text = config.text
    check_drafts(text, source.names(), spec.draft_tokens)
    vocabulary = engram_vocabulary_map(text, tokenizer)
    give_back()  # what tokenizers were parsed from, before weights are added to it
    caches = allocate(plan.backend, text, spec)
    load = WeightLoader(source, plan.backend, plan.shard)
    return DeepseekV41(plan, load, config, vocabulary, caches, max_rows, max_positions, progress)


MODELS = {"DeepseekV41ForCausalLM": _build_v41}


def build_model(
    plan: Plan,
    source: TensorSource,
    config: ModelConfig,
    tokenizer: Path | Tokenizer,
    spec: CacheSpec,
    *,
    max_rows: int,
    max_positions: int,
    progress: Progress,
) -> Model:
    """Load the model named by ``config.architectures`` onto the plan's backend.

    Args:
        plan: binds ops and owns the shard.
        source: an open checkpoint.
        config: its configuration.
        tokenizer: ``tokenizer.json``, or what was read from it; needed for the Engram vocabulary.
        spec: cache sizes.
        max_rows: most rows of one step.
        max_positions: longest sequence.
        progress: called with each module's name as it is loaded.
    Raises:
        ConfigError: the architecture is not registered.
    """
    name = config.architectures[0]
    build = MODELS.get(name)
    if build is None:
        raise ConfigError(
            f"architecture '{name}' is not known",
            where="config.json, architectures",
            why=f"registered: {', '.join(sorted(MODELS))}",
            fix="use a checkpoint of a registered architecture",
        )
    return build(plan, source, config, tokenizer, spec, max_rows, max_positions, progress)
