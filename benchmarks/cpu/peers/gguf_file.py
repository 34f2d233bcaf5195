"""Writes a GGUF file of arch ``deepseek4`` with random weights at the dimensions of `dims`.

Names and keys are those that llama.cpp's loader asks for (src/llama-arch.cpp, src/models/deepseek4.cpp in 0.3.36).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from dims import MID

ARCH = "deepseek4"
SQRT_SOFTPLUS = 4  # of expert_gating_func
BF16 = gguf.GGMLQuantizationType.BF16


def write(path: Path) -> Path:
    """Write the file in bf16 (vectors, router and hyper-connections in f32), if it is not there."""
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, ARCH)
    _keys(writer)
    rng = np.random.default_rng(0)
    for name, shape, kind in tensors():
        _add(writer, name, shape, kind, rng)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)
    return path


def _keys(writer: Any) -> None:
    integers = {
        "vocab_size": MID.vocab,
        "context_length": 65536,
        "embedding_length": MID.hidden,
        "embedding_length_out": MID.hidden * MID.streams,
        "block_count": MID.layers,
        "feed_forward_length": MID.ffn,
        "attention.head_count": MID.heads,
        "attention.head_count_kv": 1,
        "attention.key_length": MID.head_dim,
        "attention.value_length": MID.head_dim,
        "attention.q_lora_rank": MID.q_lora,
        "attention.sliding_window": MID.window,
        "attention.indexer.head_count": MID.index_heads,
        "attention.indexer.key_length": MID.index_dim,
        "attention.indexer.top_k": MID.index_topk,
        "attention.output_group_count": MID.o_groups,
        "attention.output_lora_rank": MID.o_lora,
        "rope.dimension_count": MID.rope_dim,
        "expert_count": MID.experts,
        "expert_used_count": MID.top_k,
        "expert_shared_count": 1,
        "expert_feed_forward_length": MID.ffn,
        "expert_gating_func": SQRT_SOFTPLUS,
        "hyper_connection.count": MID.streams,
        "hyper_connection.sinkhorn_iterations": 20,
        "hash_layer_count": MID.hash_layers,
    }
    floats = {
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.compress_rope_freq_base": 160000.0,
        "rope.freq_base": 10000.0,
        "expert_weights_scale": 1.5,
        "hyper_connection.epsilon": 1e-6,
    }
    for key, number in integers.items():
        writer.add_uint32(f"{ARCH}.{key}", number)
    for key, value in floats.items():
        writer.add_float32(f"{ARCH}.{key}", value)
    writer.add_bool(f"{ARCH}.expert_weights_norm", True)
    writer.add_array(f"{ARCH}.attention.compress_ratios", list(MID.ratios))
    for key in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
        writer.add_array(f"{ARCH}.{key}", [10.0] * MID.layers)
    _vocabulary(writer)


def _vocabulary(writer: Any) -> None:
    """Enough of a vocabulary that loaders count its tokens; no text is ever encoded."""
    tokens = [f"<token {i}>" for i in range(MID.vocab)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("deepseek-v3")
    writer.add_token_list(tokens)
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * MID.vocab)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def tensors() -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape (rows first) and kind of every tensor: bf16, f32, or ids of the token-routed layers."""
    width = MID.streams * MID.hidden
    yield "token_embd.weight", (MID.vocab, MID.hidden), "bf16"
    yield "output_norm.weight", (MID.hidden,), "f32"
    yield "output.weight", (MID.vocab, MID.hidden), "bf16"
    yield "output_hc_fn.weight", (MID.streams, width), "f32"
    yield "output_hc_base.weight", (MID.streams,), "f32"
    yield "output_hc_scale.weight", (1,), "f32"
    for layer in range(MID.layers):
        for name, shape, kind in _layer(layer):
            yield f"blk.{layer}.{name}", shape, kind


def _layer(layer: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden, dim, mixes = MID.hidden, MID.head_dim, (2 + MID.streams) * MID.streams
    yield "attn_norm.weight", (hidden,), "f32"
    yield "attn_sinks.weight", (MID.heads,), "f32"
    yield "attn_q_a.weight", (MID.q_lora, hidden), "bf16"
    yield "attn_q_a_norm.weight", (MID.q_lora,), "f32"
    yield "attn_q_b.weight", (MID.heads * dim, MID.q_lora), "bf16"
    yield "attn_kv.weight", (dim, hidden), "bf16"
    yield "attn_kv_a_norm.weight", (dim,), "f32"
    yield "attn_output_a.weight", (MID.o_groups * MID.o_lora, MID.heads * dim // MID.o_groups), "bf16"
    yield "attn_output_b.weight", (hidden, MID.o_groups * MID.o_lora), "bf16"
    for part in ("attn", "ffn"):
        yield f"hc_{part}_fn.weight", (mixes, MID.streams * hidden), "f32"
        yield f"hc_{part}_base.weight", (mixes,), "f32"
        yield f"hc_{part}_scale.weight", (3,), "f32"
    yield from _compressor(MID.ratios[layer])
    yield "ffn_norm.weight", (hidden,), "f32"
    yield "ffn_gate_inp.weight", (MID.experts, hidden), "f32"
    if layer < MID.hash_layers:
        yield "ffn_gate_tid2eid.weight", (MID.vocab, MID.top_k), "ids"
    else:
        yield "exp_probs_b.bias", (MID.experts,), "f32"
    for name in ("gate", "up"):
        yield f"ffn_{name}_exps.weight", (MID.experts, MID.ffn, hidden), "bf16"
        yield f"ffn_{name}_shexp.weight", (MID.ffn, hidden), "bf16"
    yield "ffn_down_exps.weight", (MID.experts, hidden, MID.ffn), "bf16"
    yield "ffn_down_shexp.weight", (hidden, MID.ffn), "bf16"


def _compressor(ratio: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    if not ratio:
        return
    wide, index = (2 if ratio == 4 else 1) * MID.head_dim, 2 * MID.index_dim
    yield "attn_compressor_kv.weight", (wide, MID.hidden), "bf16"
    yield "attn_compressor_gate.weight", (wide, MID.hidden), "bf16"
    yield "attn_compressor_ape.weight", (ratio, wide), "f32"
    yield "attn_compressor_norm.weight", (MID.head_dim,), "f32"
    if ratio == 4:
        yield "indexer.proj.weight", (MID.index_heads, MID.hidden), "bf16"
        yield "indexer.attn_q_b.weight", (MID.index_heads * MID.index_dim, MID.q_lora), "bf16"
        yield "indexer_compressor_kv.weight", (index, MID.hidden), "bf16"
        yield "indexer_compressor_gate.weight", (index, MID.hidden), "bf16"
        yield "indexer_compressor_ape.weight", (ratio, index), "f32"
        yield "indexer_compressor_norm.weight", (MID.index_dim,), "f32"


def _add(writer: Any, name: str, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> None:
    if kind == "ids":
        order = rng.permuted(np.tile(np.arange(MID.experts, dtype=np.int32), (shape[0], 1)), axis=1)
        writer.add_tensor(name, np.ascontiguousarray(order[:, : shape[1]]))
        return
    values = rng.standard_normal(shape, dtype=np.float32)
    values = 1 + values * 0.1 if "norm" in name else values * np.float32(shape[-1] ** -0.5)
    if kind == "f32":
        writer.add_tensor(name, values.astype(np.float32))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, BF16), raw_dtype=BF16)
