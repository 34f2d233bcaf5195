"""Every tensor of the official checkpoint format, derived from a model configuration.

The reader checks files against this list, the writer lays shards out from it, and its totals are the
published size of the model.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass

from tandem.model.config import ModelConfig, TextConfig, VisionConfig

INDEX_NAME = "model.safetensors.index.json"
GROUP = 32  # elements that share a scale
ITEMSIZE = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


class TensorGroup(enum.Enum):
    """Parts of a checkpoint; a model without DSpark or vision tensors is still complete as text."""

    TEXT = "text"
    DSPARK = "dspark"
    VISION = "vision"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of one stored tensor.

    Args:
        name: tensor name without a ``model.`` prefix.
        shape: stored shape; packed fp4 counts bytes, that is pairs of elements.
        dtype: safetensors dtype: ``F32 BF16 F8_E4M3 F8_E8M0`` or ``I8`` (two fp4 codes).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def params(self) -> int:
        """Parameters held: a packed fp4 byte counts as two, a scale as none."""
        per_element = {"I8": 2, "F8_E8M0": 0}.get(self.dtype, 1)
        return math.prod(self.shape) * per_element

    @property
    def group(self) -> TensorGroup:
        """Which part of the model the tensor belongs to."""
        return group_of(self.name)


def group_of(name: str) -> TensorGroup:
    """The part of the model that a tensor name belongs to."""
    if name.startswith("mtp."):
        return TensorGroup.DSPARK
    if name.startswith(("vision.", "aligner.", "image_")):
        return TensorGroup.VISION
    return TensorGroup.TEXT


def tensor_inventory(config: ModelConfig) -> list[TensorSpec]:
    """All tensors a complete checkpoint of ``config`` holds, in layer order."""
    text = config.text
    out = [
        _bf16("embed.weight", text.vocab_size, text.hidden_size),
        _bf16("head.weight", text.vocab_size, text.hidden_size),
        _bf16("norm.weight", text.hidden_size),
    ]
    for layer in range(text.num_hidden_layers):
        prefix = f"layers.{layer}."
        out += _block(prefix, text, text.n_routed_experts)
        out += _compressor(prefix, text, layer)
        out += _indexer(prefix, text, layer)
        out += _engram(prefix, text, layer)
    out += _dspark(text)
    if config.vision is not None:
        out += _vision(config.vision, text.hidden_size)
    return out


def _bf16(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, "BF16")


def _f32(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, "F32")


def _fp8(name: str, rows: int, columns: int) -> Iterator[TensorSpec]:
    """A dense fp8 matrix with one scale for each block of 32x32."""
    yield TensorSpec(f"{name}.weight", (rows, columns), "F8_E4M3")
    yield TensorSpec(f"{name}.scale", (-(-rows // GROUP), -(-columns // GROUP)), "F8_E8M0")


def _fp4(name: str, rows: int, columns: int) -> Iterator[TensorSpec]:
    """A packed fp4 matrix with one scale for each 32 elements of a row."""
    yield TensorSpec(f"{name}.weight", (rows, columns // 2), "I8")
    yield TensorSpec(f"{name}.scale", (rows, columns // GROUP), "F8_E8M0")


def _block(prefix: str, text: TextConfig, experts: int) -> Iterator[TensorSpec]:
    """What a backbone layer and a DSpark stage have in common."""
    hidden, streams = text.hidden_size, text.hc_mult
    mixes = streams * streams + 2 * streams
    for sub in ("attn", "ffn"):
        yield _f32(f"{prefix}hc_{sub}_fn", mixes, streams * hidden)
        yield _f32(f"{prefix}hc_{sub}_base", mixes)
        yield _f32(f"{prefix}hc_{sub}_scale", 3)
        yield _bf16(f"{prefix}{sub}_norm.weight", hidden)
    heads = text.num_attention_heads
    group_width = heads // text.o_groups * text.head_dim
    yield _f32(f"{prefix}attn.attn_sink", heads)
    yield from _fp8(f"{prefix}attn.wq_a", text.q_lora_rank, hidden)
    yield _bf16(f"{prefix}attn.q_norm.weight", text.q_lora_rank)
    yield from _fp8(f"{prefix}attn.wq_b", heads * text.head_dim, text.q_lora_rank)
    yield from _fp8(f"{prefix}attn.wkv", text.head_dim, hidden)
    yield _bf16(f"{prefix}attn.kv_norm.weight", text.head_dim)
    yield from _fp8(f"{prefix}attn.wo_a", text.o_groups * text.o_lora_rank, group_width)
    yield from _fp8(f"{prefix}attn.wo_b", hidden, text.o_groups * text.o_lora_rank)
    inter = text.moe_intermediate_size
    yield _bf16(f"{prefix}ffn.gate.weight", experts, hidden)
    yield _f32(f"{prefix}ffn.gate.bias", experts)
    yield _f32(f"{prefix}ffn.gate.bias_vl", experts)
    for name, rows, columns in (("w1", inter, hidden), ("w3", inter, hidden), ("w2", hidden, inter)):
        yield from _fp8(f"{prefix}ffn.shared_experts.{name}", rows, columns)
        for expert in range(experts):
            yield from _fp4(f"{prefix}ffn.experts.{expert}.{name}", rows, columns)


def _compressor(prefix: str, text: TextConfig, layer: int) -> Iterator[TensorSpec]:
    if not text.is_kv_source(layer):
        return
    yield _bf16(f"{prefix}attn.compressor.wkv.weight", text.head_dim, text.hidden_size)
    yield _bf16(f"{prefix}attn.compressor.norm.weight", text.head_dim)
    if text.ratio(layer) > 1:  # a group of one token needs no gate
        yield _bf16(f"{prefix}attn.compressor.wgate.weight", text.head_dim, text.hidden_size)
    yield _bf16(f"{prefix}attn.indexer.wk.weight", text.index_head_dim, text.head_dim)
    yield _bf16(f"{prefix}attn.indexer.k_norm.weight", text.index_head_dim)


def _indexer(prefix: str, text: TextConfig, layer: int) -> Iterator[TensorSpec]:
    if not text.is_index_source(layer):
        return
    yield from _fp8(f"{prefix}attn.indexer.wq_b", text.index_n_heads * text.index_head_dim, text.q_lora_rank)
    yield _bf16(f"{prefix}attn.indexer.weights_proj.weight", text.index_n_heads, text.hidden_size)


def _engram(prefix: str, text: TextConfig, layer: int) -> Iterator[TensorSpec]:
    index = text.engram_layer_index(layer)
    if index is None:
        return
    rows, dim = text.engram_num_embeddings[index], text.engram_head_dim
    gathered = (text.engram_max_ngram_size - 1) * text.engram_n_heads * dim
    yield TensorSpec(f"{prefix}engram.embed.weight", (rows, dim), "F8_E4M3")
    yield TensorSpec(f"{prefix}engram.embed.scale", (rows, dim // GROUP), "F8_E8M0")
    yield from _fp8(f"{prefix}engram.wkv", (text.hc_mult + 1) * text.hidden_size, gathered)
    yield _bf16(f"{prefix}engram.q_weight", text.hc_mult, text.hidden_size)
    yield _bf16(f"{prefix}engram.k_weight", text.hc_mult, text.hidden_size)


def _dspark(text: TextConfig) -> Iterator[TensorSpec]:
    stages = text.num_nextn_predict_layers
    if not stages:
        return
    hidden, rank = text.hidden_size, text.dspark_markov_rank
    for stage in range(stages):
        yield from _block(f"mtp.{stage}.", text, text.dspark_n_routed_experts)
    yield from _fp8("mtp.0.main_proj", hidden, len(text.dspark_target_layer_ids) * hidden)
    yield _bf16("mtp.0.main_norm.weight", hidden)
    last = f"mtp.{stages - 1}."
    yield _bf16(f"{last}norm.weight", hidden)
    yield _bf16(f"{last}markov_head.embed.weight", text.vocab_size, rank)
    yield _bf16(f"{last}markov_head.head.weight", text.vocab_size, rank)
    yield _bf16(f"{last}confidence_head.proj.weight", 1, hidden + rank)


def _vision(vision: VisionConfig, hidden: int) -> Iterator[TensorSpec]:
    width, inter = vision.hidden_size, vision.intermediate_size
    for name in ("image_start", "image_end", "image_newline"):
        yield _bf16(name, hidden)
    yield _bf16("vision.patch_embed.proj.weight", width, 3 * vision.patch_size**2)
    yield _bf16("vision.patch_embed.proj.bias", width)
    for block in range(vision.num_hidden_layers):
        prefix = f"vision.blocks.{block}."
        yield _bf16(f"{prefix}norm1.weight", width)
        yield _bf16(f"{prefix}attn.wqkv.weight", 3 * width, width)
        yield _bf16(f"{prefix}attn.wqkv.bias", 3 * width)
        yield _bf16(f"{prefix}attn.wo.weight", width, width)
        yield _bf16(f"{prefix}attn.wo.bias", width)
        yield _bf16(f"{prefix}norm2.weight", width)
        yield _bf16(f"{prefix}mlp.w1.weight", 2 * inter, width)
        yield _bf16(f"{prefix}mlp.w2.weight", width, inter)
    yield _bf16("vision.norm.weight", width)
    yield _bf16("aligner.w1.weight", hidden, width * vision.downsample_ratio**2)
    yield _bf16("aligner.w1.bias", hidden)
    yield _bf16("aligner.w2.weight", hidden, hidden)
    yield _bf16("aligner.w2.bias", hidden)
