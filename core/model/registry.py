"""Models by architecture name: one more model is one more entry here and one more file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from tandem.contract.plan import Plan
from tandem.errors import ConfigError
from tandem.model.caches import CacheSpec, ModelCaches, allocate
from tandem.model.config import ModelConfig
from tandem.model.deepseek_v41 import DeepseekV41
from tandem.model.engram_tables import engram_vocabulary_map
from tandem.model.step import StepInput
from tandem.model.weights import TensorSource, WeightLoader

Tensor = torch.Tensor
Progress = Callable[[str], None]


class Model(Protocol):
    """What the engine needs of a model."""

    caches: ModelCaches
    packed_bytes: int  # held by weights on the backend

    def forward(self, step: StepInput) -> Tensor:
        """Hidden rows bf16 [T, H]; writes caches and state."""

    def logits(self, hidden: Tensor, index: Tensor) -> Tensor:
        """Logits f32 [N, V] of chosen rows."""


def _build_v41(
    plan: Plan,
    source: TensorSource,
    config: ModelConfig,
    tokenizer_json: Path,
    spec: CacheSpec,
    max_rows: int,
    max_positions: int,
    progress: Progress,
) -> Model:
    text = config.text
    vocabulary = engram_vocabulary_map(text, tokenizer_json)
    caches = allocate(plan.backend, text, spec)
    load = WeightLoader(source, plan.backend, plan.shard)
    return DeepseekV41(plan, load, config, vocabulary, caches, max_rows, max_positions, progress)


MODELS = {"DeepseekV41ForCausalLM": _build_v41}


def build_model(
    plan: Plan,
    source: TensorSource,
    config: ModelConfig,
    tokenizer_json: Path,
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
        tokenizer_json: needed for the Engram vocabulary.
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
    return build(plan, source, config, tokenizer_json, spec, max_rows, max_positions, progress)
