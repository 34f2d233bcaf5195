"""The model configuration: ``config.json`` as frozen, typed, validated dataclasses.

Field names are those of the file.  Values that the model graph does not implement are refused here by
name, so that nothing later has to guess.  Fields unknown to these classes (``transformers_version``,
``use_cache``, ...) are ignored.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tandem.errors import ConfigError
from tandem.model.config_fields import Rule, read_dataclass, write_dataclass
from tandem.model.config_rules import check_model

Size = Annotated[int, Rule(minimum=1)]
Count = Annotated[int, Rule(minimum=1, maximum=1 << 16)]  # things that are enumerated
Grouped = Annotated[int, Rule(minimum=32, multiple=32)]  # quantised in groups of 32
Index = Annotated[int, Rule(minimum=0)]
Layers = Annotated[tuple[int, ...], Rule(minimum=0)]
Positive = Annotated[float, Rule(above=0)]
RopeBase = Annotated[float, Rule(above=1)]

# Checkpoints may spell "no candidate pool" as null or as -1.
_NO_CANDIDATE_SOURCE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """YaRN parameters; they apply to layers with compressed KV only."""

    rope_type: Annotated[str, Rule(only=("yarn",))]
    factor: Annotated[float, Rule(minimum=1)]
    beta_fast: Positive
    beta_slow: Positive
    original_max_position_embeddings: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """The text model.  Sizes are element counts, ids are layer or token indices.

    Multiples of 32 are demanded wherever a dimension is quantised in groups of 32.
    """

    model_type: Annotated[str, Rule(only=("deepseek_v41_text",))]
    vocab_size: Size
    hidden_size: Grouped
    num_hidden_layers: Count
    hidden_act: Annotated[str, Rule(only=("silu",))]
    rms_norm_eps: Positive
    max_position_embeddings: Size
    tie_word_embeddings: Annotated[bool, Rule(only=(False,))] = False

    num_attention_heads: Count
    num_key_value_heads: Annotated[int, Rule(only=(1,))]
    head_dim: Grouped
    qk_rope_head_dim: Annotated[int, Rule(minimum=2, multiple=2)]
    q_lora_rank: Grouped
    o_groups: Count
    o_lora_rank: Grouped
    sliding_window: Count
    rope_theta: RopeBase
    compress_rope_theta: RopeBase
    rope_scaling: RopeScaling
    attention_bias: Annotated[bool, Rule(only=(False,))] = False
    attention_dropout: Annotated[float, Rule(only=(0.0,))] = 0.0

    compress_ratios: Annotated[tuple[int, ...], Rule(only=(0, 1, 2))]
    kv_source_layer_ids: Layers
    index_source_layer_ids: Layers
    index_k_source_layer_ids: Annotated[tuple[int, ...] | None, Rule(minimum=0)] = None
    candidate_source_layer_id: Annotated[int | None, Rule(minimum=_NO_CANDIDATE_SOURCE)] = None
    candidate_topk_blocks: Count
    candidate_block_size: Count
    index_n_heads: Count
    index_head_dim: Grouped
    index_topk: Size
    use_fp4_sparse_kv: Annotated[bool, Rule(only=(True,))] = True

    moe_intermediate_size: Grouped
    n_routed_experts: Count
    n_shared_experts: Annotated[int, Rule(only=(1,))]
    num_experts_per_tok: Count
    scoring_func: Annotated[str, Rule(only=("sqrtsoftplus",))]
    topk_method: Annotated[str, Rule(only=("noaux_tc",))]
    norm_topk_prob: Annotated[bool, Rule(only=(True,))]
    routed_scaling_factor: Positive
    swiglu_limit: Positive
    num_hash_layers: Annotated[int, Rule(only=(0,))] = 0

    hc_mult: Count
    hc_sinkhorn_iters: Count
    hc_eps: Positive
    hc_shifted: Annotated[bool, Rule(only=(True,))] = True

    engram_layer_ids: Layers
    engram_vocab_size: Annotated[int, Rule(minimum=2)]
    engram_num_embeddings: Annotated[tuple[int, ...], Rule(minimum=1)]
    engram_max_ngram_size: Annotated[int, Rule(minimum=2, maximum=64)]
    engram_n_heads: Count
    engram_head_dim: Grouped
    engram_pad_token_id: Index
    engram_compressed_vocab_size: Size

    num_nextn_predict_layers: Annotated[int, Rule(minimum=0, maximum=1 << 16)]
    dspark_block_size: Count
    dspark_noise_token_id: Index
    dspark_target_layer_ids: Layers
    dspark_target_attn_input: Annotated[bool, Rule(only=(True,))] = True
    dspark_markov_rank: Size
    dspark_n_routed_experts: Count
    dspark_num_experts_per_tok: Count

    def __post_init__(self) -> None:
        if self.candidate_source_layer_id == _NO_CANDIDATE_SOURCE:
            object.__setattr__(self, "candidate_source_layer_id", None)

    @property
    def n_prefill_layer(self) -> int:
        """Number of encoder layers: the index of the first layer with compression ratio 1."""
        layers = self.compress_ratios[: self.num_hidden_layers]
        return layers.index(1) if 1 in layers else self.num_hidden_layers

    def ratio(self, layer: int) -> int:
        """Compression ratio of a backbone layer; 0 means that it sees its window only."""
        return self.compress_ratios[layer]

    def kv_source(self, layer: int) -> int | None:
        """The layer whose compressed KV this layer attends to, None for window-only layers."""
        return self._source(self.kv_source_layer_ids, layer)

    def index_source(self, layer: int) -> int | None:
        """The layer whose top-k selection this layer uses, None for window-only layers."""
        return self._source(self.index_source_layer_ids, layer)

    def index_k_source(self, layer: int) -> int | None:
        """The layer whose index keys this layer's selection is made from, None for window-only layers."""
        sources = self.index_k_source_layer_ids
        return self._source(self.kv_source_layer_ids if sources is None else sources, layer)

    def is_kv_source(self, layer: int) -> bool:
        """True if this layer owns a compressor, a main cache and an index-key cache."""
        return layer in self.kv_source_layer_ids

    def is_index_source(self, layer: int) -> bool:
        """True if this layer owns the query side of an indexer."""
        return layer in self.index_source_layer_ids

    def engram_layer_index(self, layer: int) -> int | None:
        """Position of this layer among the Engram layers, None if it has no Engram table."""
        return self.engram_layer_ids.index(layer) if layer in self.engram_layer_ids else None

    def _source(self, sources: tuple[int, ...], layer: int) -> int | None:
        if self.ratio(layer) == 0:
            return None
        return sources[bisect_right(sources, layer) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """The image encoder and its aligner."""

    model_type: Annotated[str, Rule(only=("deepseek_v41_vision",))] = "deepseek_v41_vision"
    num_hidden_layers: Count
    hidden_size: Size
    num_attention_heads: Count
    intermediate_size: Size
    patch_size: Size
    downsample_ratio: Size
    rope_theta: RopeBase
    max_image_tokens: Annotated[int, Rule(minimum=4)]
    min_pixels: Index
    max_wh_ratio: Annotated[float | None, Rule(above=0)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationConfig:
    """The one quantisation scheme supported: fp8 weights in 32x32 blocks, fp4 experts."""

    quant_method: Annotated[str, Rule(only=("fp8",))]
    expert_dtype: Annotated[str, Rule(only=("fp4",))]
    activation_scheme: Annotated[str, Rule(only=("dynamic",))]
    weight_block_size: Annotated[tuple[int, ...], Rule(only=(32,), length=2)]
    scale_fmt: Annotated[str, Rule(only=("ue8m0",))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A whole ``config.json``.  The text, vision and quantisation objects drop their ``_config`` suffix."""

    architectures: Annotated[tuple[str, ...], Rule(only=("DeepseekV41ForCausalLM",), length=1)]
    model_type: Annotated[str, Rule(only=("deepseek_v41",))]
    dtype: Annotated[str, Rule(only=("bfloat16",))]
    bos_token_id: Index
    eos_token_id: Index
    pad_token_id: Index
    image_token_id: Index
    tokenizer_compatibility: Annotated[str, Rule(only=("release",))] = "release"
    text: Annotated[TextConfig, Rule(key="text_config")]
    vision: Annotated[VisionConfig | None, Rule(key="vision_config")] = None
    quantization: Annotated[QuantizationConfig, Rule(key="quantization_config")]

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Read and check a parsed ``config.json``.

        Raises:
            ConfigError: names the field, its value and what is allowed.
        """
        config = read_dataclass(cls, raw, "")
        check_model(config)
        return config

    @classmethod
    def from_file(cls, path: str | Path) -> ModelConfig:
        """Read and check a ``config.json`` file; see :meth:`from_dict`."""
        try:
            raw = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                "the model configuration cannot be read",
                where=str(path),
                why=error.strerror or str(error),
                fix="give the path of a config.json file",
            ) from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                "the model configuration is not valid JSON",
                where=str(path),
                why=str(error),
                fix="restore the file from the checkpoint's source",
            ) from error
        return cls.from_dict(raw)

    def to_dict(self) -> dict[str, Any]:
        """A JSON object that :meth:`from_dict` turns back into an equal configuration."""
        return write_dataclass(self)
