"""The model configuration: what is read, what is derived, what is refused."""

from __future__ import annotations

import copy
import dataclasses
import json
from importlib import resources
from typing import Any

import pytest

from tandem.errors import ConfigError
from tandem.model.config import ModelConfig

OFFICIAL: dict[str, Any] = json.loads(
    (resources.files("tandem") / "assets" / "official_config.json").read_text(encoding="utf-8")
)
MISSING = object()


def changed(path: str, value: object) -> dict[str, Any]:
    """The official configuration with one field set, or removed."""
    raw = copy.deepcopy(OFFICIAL)
    *parents, last = path.split(".")
    target = raw
    for name in parents:
        target = target[name]
    if value is MISSING:
        del target[last]
    else:
        target[last] = value
    return raw


def refused(path: str, value: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(changed(path, value))
    return caught.value


def test_official_values_are_read() -> None:
    config = ModelConfig.from_dict(OFFICIAL)
    assert config.image_token_id == 129264
    assert config.text.rms_norm_eps == 1e-20
    assert config.text.rope_scaling.original_max_position_embeddings == 65536
    assert config.text.compress_ratios == (0,) * 2 + (2,) * 18 + (1,) * 20 + (0,) * 3
    assert config.vision is not None and config.vision.min_pixels == 544 * 544
    assert config.vision.max_wh_ratio is None
    assert config.quantization.weight_block_size == (32, 32)


def test_layer_roles_of_the_official_model() -> None:
    # The published table: encoder segments start at 2, 8, 14; the decoder has one KV, made by layer 20,
    # and selects anew every fourth layer.
    text = ModelConfig.from_dict(OFFICIAL).text
    kv = [None] * 2 + [2] * 6 + [8] * 6 + [14] * 6 + [20] * 20
    index = [None] * 2 + [2] * 6 + [8] * 6 + [14] * 6 + [20] * 4 + [24] * 4 + [28] * 4 + [32] * 4 + [36] * 4
    assert text.n_prefill_layer == 20
    assert [text.kv_source(layer) for layer in range(40)] == kv
    assert [text.index_k_source(layer) for layer in range(40)] == kv
    assert [text.index_source(layer) for layer in range(40)] == index
    assert [layer for layer in range(40) if text.is_kv_source(layer)] == [2, 8, 14, 20]
    assert [layer for layer in range(40) if text.is_index_source(layer)] == [2, 8, 14, 20, 24, 28, 32, 36]
    assert [text.engram_layer_index(layer) for layer in (0, 1, 2, 14)] == [None, 0, None, 1]
    assert text.candidate_source_layer_id == 20


def test_round_trip_and_immutability() -> None:
    config = ModelConfig.from_dict(OFFICIAL)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.text.hidden_size = 1  # type: ignore[misc]


def test_unknown_fields_are_ignored() -> None:
    raw = changed("transformers_version", "5.0")
    raw["text_config"]["use_cache"] = True
    assert ModelConfig.from_dict(raw) == ModelConfig.from_dict(OFFICIAL)


def test_vision_is_optional() -> None:
    assert ModelConfig.from_dict(changed("vision_config", MISSING)).vision is None
    assert ModelConfig.from_dict(changed("vision_config", None)).vision is None


@pytest.mark.parametrize("value", [None, -1, MISSING])
def test_candidate_pool_can_be_absent(value: object) -> None:
    config = ModelConfig.from_dict(changed("text_config.candidate_source_layer_id", value))
    assert config.text.candidate_source_layer_id is None


OPTIONAL_TEXT = {"tie_word_embeddings", "attention_bias", "attention_dropout", "candidate_source_layer_id"}


@pytest.mark.parametrize(
    "path",
    [name for name in OFFICIAL if name != "vision_config"]
    + [f"text_config.{name}" for name in OFFICIAL["text_config"] if name not in OPTIONAL_TEXT]
    + [f"text_config.rope_scaling.{name}" for name in OFFICIAL["text_config"]["rope_scaling"]]
    + [f"quantization_config.{name}" for name in OFFICIAL["quantization_config"]],
)
def test_missing_field_is_named(path: str) -> None:
    error = refused(path, MISSING)
    assert error.where == path
    assert "lacks a required field" in error.what


def test_missing_field_points_at_a_misspelt_one() -> None:
    raw = changed("text_config.hidden_size", MISSING)
    raw["text_config"]["hiden_size"] = 5120
    with pytest.raises(ConfigError, match="'hiden_size' is present"):
        ModelConfig.from_dict(raw)


@pytest.mark.parametrize(
    ("path", "value", "allowed"),
    [
        ("text_config.num_hidden_layers", True, "an integer"),
        ("text_config.hidden_size", "5120", "an integer"),
        ("text_config.hidden_size", 5120.0, "an integer"),
        ("text_config.rms_norm_eps", "1e-20", "a finite number"),
        ("text_config.rms_norm_eps", float("nan"), "a finite number"),
        ("text_config.swiglu_limit", float("inf"), "a finite number"),
        ("text_config.norm_topk_prob", 1, "true or false"),
        ("text_config.compress_ratios", 2, "a list"),
        ("text_config.kv_source_layer_ids", [2, 8, 14, "20"], "an integer"),
        ("text_config.rope_scaling", None, "an object"),
        ("text_config", [], "an object"),
        ("text_config.hidden_size", None, "an integer"),
        ("vision_config.patch_size", "14", "an integer"),
        ("eos_token_id", [1], "an integer"),
    ],
)
def test_wrong_type_is_refused(path: str, value: object, allowed: str) -> None:
    error = refused(path, value)
    assert error.where.startswith(path)
    assert f"allowed: {allowed}" in error.why


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("architectures", ["DeepseekV4ForCausalLM"]),
        ("architectures", ["DeepseekV41ForCausalLM", "DeepseekV41ForCausalLM"]),
        ("model_type", "deepseek_v4"),
        ("dtype", "float16"),
        ("text_config.model_type", "deepseek_v3"),
        ("text_config.scoring_func", "sigmoid"),
        ("text_config.topk_method", "greedy"),
        ("text_config.norm_topk_prob", False),
        ("text_config.hidden_act", "gelu"),
        ("text_config.num_key_value_heads", 8),
        ("text_config.n_shared_experts", 2),
        ("text_config.num_hash_layers", 3),
        ("text_config.hc_shifted", False),
        ("text_config.tie_word_embeddings", True),
        ("text_config.attention_bias", True),
        ("text_config.use_fp4_sparse_kv", False),
        ("text_config.dspark_target_attn_input", False),
        ("text_config.rope_scaling.rope_type", "linear"),
        ("text_config.hidden_size", 5121),
        ("text_config.qk_rope_head_dim", 63),
        ("text_config.num_hidden_layers", 0),
        ("text_config.sliding_window", -128),
        ("text_config.rms_norm_eps", 0.0),
        ("quantization_config.quant_method", "int8"),
        ("quantization_config.expert_dtype", "fp8"),
        ("quantization_config.activation_scheme", "static"),
        ("quantization_config.weight_block_size", [128, 128]),
        ("quantization_config.weight_block_size", [32]),
        ("quantization_config.scale_fmt", "float"),
    ],
)
def test_unsupported_value_is_refused_by_name(path: str, value: object) -> None:
    error = refused(path, value)
    assert error.where.startswith(path)
    assert "allowed: " in error.why


RATIOS = OFFICIAL["text_config"]["compress_ratios"]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("compress_ratios", RATIOS[:-1], "43 values"),
        ("compress_ratios", [*RATIOS[:5], 3, *RATIOS[6:]], "0 or 1 or 2"),
        ("compress_ratios", [*RATIOS[:-1], 1], "DSpark stage"),
        ("compress_ratios", [*RATIOS[:30], 2, *RATIOS[31:]], "starts the decoder half"),
        ("compress_ratios", [2, *RATIOS[1:]], "at or before layer 0"),
        ("kv_source_layer_ids", [2, 14, 8, 20], "strictly increasing"),
        ("kv_source_layer_ids", [2, 8, 14, 40], "less than num_hidden_layers"),
        ("kv_source_layer_ids", [2, 8, 14, 20, 22], "layer 22 is missing"),
        ("kv_source_layer_ids", [2, 8, 14], "ratio of its KV source, layer 14"),
        ("index_source_layer_ids", [1, 2, 8, 14, 20, 24, 28, 32, 36], "layer 1 has 0"),
        ("index_k_source_layer_ids", [2, 8, 14], "equal to kv_source_layer_ids"),
        ("candidate_source_layer_id", 21, "one of index_source_layer_ids"),
        ("candidate_source_layer_id", 14, "layer 20 does not"),
        ("candidate_topk_blocks", 63, "at least index_topk"),
        ("engram_layer_ids", [1, 20], "number of encoder layers"),
        ("engram_num_embeddings", [384006168], "one row count"),
        ("engram_pad_token_id", 129280, "less than vocab_size"),
        ("engram_compressed_vocab_size", 129281, "at most vocab_size"),
        ("num_experts_per_tok", 385, "at most n_routed_experts"),
        ("dspark_num_experts_per_tok", 129, "at most dspark_n_routed_experts"),
        ("dspark_target_layer_ids", [37, 38, 40], "less than num_hidden_layers"),
        ("dspark_target_layer_ids", [], "at least one layer"),
        ("dspark_noise_token_id", 129280, "less than vocab_size"),
        ("qk_rope_head_dim", 130, "index_head_dim (128)"),
        ("o_groups", 7, "a divisor of num_attention_heads"),
    ],
)
def test_contradiction_between_fields_is_refused(field: str, value: object, why: str) -> None:
    assert why in refused(f"text_config.{field}", value).why


def test_token_ids_must_lie_in_the_vocabulary() -> None:
    assert refused("image_token_id", 129280).where == "image_token_id"


def test_files_that_cannot_be_read(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        ModelConfig.from_file(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        ModelConfig.from_file(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="allowed: an object"):
        ModelConfig.from_file(tmp_path / "config.json")
