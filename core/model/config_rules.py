"""Checks between fields of a model configuration: lengths, ranges, and how source layers nest."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tandem.errors import ConfigError
from tandem.model.config_fields import refuse

if TYPE_CHECKING:
    from tandem.model.config import ModelConfig, TextConfig, VisionConfig


def check_model(config: ModelConfig) -> None:
    """Raise ConfigError for the first field that contradicts another one."""
    text = config.text
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"):
        _below(name, getattr(config, name), text.vocab_size, "vocab_size")
    _check_attention(text)
    _check_sources(text)
    _check_candidates(text)
    _check_experts(text)
    _check_engram(text)
    _check_dspark(text)
    if config.vision is not None:
        _check_vision(config.vision)


def _fail(field: str, value: object, allowed: str) -> ConfigError:
    return refuse(f"text_config.{field}", value, allowed)


def _below(path: str, value: int, limit: int, limit_name: str) -> None:
    if value >= limit:
        raise refuse(path, value, f"0 to {limit - 1} (less than {limit_name})")


def _check_increasing(field: str, ids: tuple[int, ...], limit: int, limit_name: str) -> None:
    for position, layer in enumerate(ids):
        _below(f"text_config.{field}[{position}]", layer, limit, limit_name)
    if any(a >= b for a, b in pairwise(ids)):
        raise _fail(field, list(ids), "strictly increasing layer ids")


def _check_attention(text: TextConfig) -> None:
    if text.qk_rope_head_dim > min(text.head_dim, text.index_head_dim):
        allowed = f"at most head_dim ({text.head_dim}) and index_head_dim ({text.index_head_dim})"
        raise _fail("qk_rope_head_dim", text.qk_rope_head_dim, allowed)
    if text.num_attention_heads % text.o_groups:
        allowed = f"a divisor of num_attention_heads ({text.num_attention_heads})"
        raise _fail("o_groups", text.o_groups, allowed)
    expected = text.num_hidden_layers + text.num_nextn_predict_layers
    if len(text.compress_ratios) != expected:
        found = len(text.compress_ratios)
        allowed = f"{expected} values (num_hidden_layers + num_nextn_predict_layers), found {found}"
        raise _fail("compress_ratios", list(text.compress_ratios), allowed)
    for layer in range(text.num_hidden_layers, expected):
        if text.compress_ratios[layer] != 0:
            raise _fail(f"compress_ratios[{layer}]", text.compress_ratios[layer], "0 for a DSpark stage")
    for layer in range(text.n_prefill_layer, text.num_hidden_layers):
        if text.compress_ratios[layer] != 1:
            allowed = f"1, because layer {text.n_prefill_layer} starts the decoder half"
            raise _fail(f"compress_ratios[{layer}]", text.compress_ratios[layer], allowed)


def _check_sources(text: TextConfig) -> None:
    layers = text.num_hidden_layers
    for field in ("kv_source_layer_ids", "index_source_layer_ids"):
        _check_increasing(field, getattr(text, field), layers, "num_hidden_layers")
    # An index-key source needs the latent that only a compressor makes, so no other choice has a meaning.
    index_k = text.index_k_source_layer_ids
    if index_k is not None and index_k != text.kv_source_layer_ids:
        raise _fail("index_k_source_layer_ids", list(index_k), "absent, or equal to kv_source_layer_ids")
    for source in text.kv_source_layer_ids:
        if source not in text.index_source_layer_ids:
            allowed = f"a list that holds every KV source; layer {source} is missing"
            raise _fail("index_source_layer_ids", list(text.index_source_layer_ids), allowed)
    for source in text.index_source_layer_ids:
        if text.ratio(source) == 0:
            allowed = f"layers with a compression ratio above 0; layer {source} has 0"
            raise _fail("index_source_layer_ids", list(text.index_source_layer_ids), allowed)
    for layer in range(layers):
        _check_consumer(text, layer)


def _check_consumer(text: TextConfig, layer: int) -> None:
    ratio = text.ratio(layer)
    if ratio == 0:
        return
    if not text.kv_source_layer_ids or layer < text.kv_source_layer_ids[0]:
        allowed = f"a list with a source at or before layer {layer}, whose ratio is {ratio}"
        raise _fail("kv_source_layer_ids", list(text.kv_source_layer_ids), allowed)
    source = text.kv_source(layer)
    if source is not None and text.ratio(source) != ratio:
        allowed = f"the ratio of its KV source, layer {source}: {text.ratio(source)}"
        raise _fail(f"compress_ratios[{layer}]", ratio, allowed)


def _check_candidates(text: TextConfig) -> None:
    source = text.candidate_source_layer_id
    if source is None:
        return
    if source not in text.index_source_layer_ids:
        allowed = f"null, or one of index_source_layer_ids {list(text.index_source_layer_ids)}"
        raise _fail("candidate_source_layer_id", source, allowed)
    for layer in text.index_source_layer_ids:
        if layer > source and text.kv_source(layer) != text.kv_source(source):
            allowed = f"a layer that shares its KV with every later index source; layer {layer} does not"
            raise _fail("candidate_source_layer_id", source, allowed)
    if text.candidate_topk_blocks * text.candidate_block_size < text.index_topk:
        allowed = f"a pool (blocks x candidate_block_size) of at least index_topk ({text.index_topk}) entries"
        raise _fail("candidate_topk_blocks", text.candidate_topk_blocks, allowed)


def _check_experts(text: TextConfig) -> None:
    for chosen, available in (
        ("num_experts_per_tok", "n_routed_experts"),
        ("dspark_num_experts_per_tok", "dspark_n_routed_experts"),
    ):
        limit = getattr(text, available)
        if getattr(text, chosen) > limit:
            raise _fail(chosen, getattr(text, chosen), f"at most {available} ({limit})")


def _check_engram(text: TextConfig) -> None:
    ids = text.engram_layer_ids
    # The decoder half may run on a suffix of the prompt only, where n-grams would be cut.
    _check_increasing("engram_layer_ids", ids, text.n_prefill_layer, "the number of encoder layers")
    if len(text.engram_num_embeddings) != len(ids):
        allowed = f"one row count for each of the {len(ids)} engram_layer_ids"
        raise _fail("engram_num_embeddings", list(text.engram_num_embeddings), allowed)
    _below("text_config.engram_pad_token_id", text.engram_pad_token_id, text.vocab_size, "vocab_size")
    if text.engram_compressed_vocab_size > text.vocab_size:
        allowed = f"at most vocab_size ({text.vocab_size})"
        raise _fail("engram_compressed_vocab_size", text.engram_compressed_vocab_size, allowed)


def _check_dspark(text: TextConfig) -> None:
    ids = text.dspark_target_layer_ids
    _check_increasing("dspark_target_layer_ids", ids, text.num_hidden_layers, "num_hidden_layers")
    if text.num_nextn_predict_layers and not ids:
        raise _fail("dspark_target_layer_ids", [], "at least one layer, as there are DSpark stages")
    _below("text_config.dspark_noise_token_id", text.dspark_noise_token_id, text.vocab_size, "vocab_size")


def _check_vision(vision: VisionConfig) -> None:
    if vision.hidden_size % vision.num_attention_heads:
        allowed = f"a divisor of hidden_size ({vision.hidden_size})"
        raise refuse("vision_config.num_attention_heads", vision.num_attention_heads, allowed)
