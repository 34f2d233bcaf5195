"""A tiny checkpoint on which details matter that an ordinary random one hides.

It has the shapes of the tiny model.  Its residual trunk and everything that a norm reads are 4096 times
smaller than usual, which changes nothing but the weight of the norms' epsilon; some sub-layers are pushed to where
clamps, floors and cancellation decide.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from oracle.load import load_tensors
from safetensors.torch import save_file

from tandem.checkpoint.quantize import quantize_fp8_blocks
from tandem.checkpoint.tiny import make_tiny

Tensor = torch.Tensor

FAINT = 12  # powers of two
PAD = 300  # unlike token 2 it is not its own compressed id
OVERRIDES = {"engram_pad_token_id": PAD, "engram_layer_ids": [0, 2]}
COMMON, LEVEL = 0, 60.0  # a channel that every token shares, fifteen times as large as the others

FAINT_BY_SCALE = ("attn.wq_a.scale", "attn.wkv.scale", "attn.wo_b.scale", "engram.wkv.scale", ".w2.scale")
FAINT_BF16 = ("embed.weight", "attn.compressor.wkv.weight", "attn.indexer.wk.weight")

NEGATIVE_ROUTER = 5  # its router logits are near -17: softplus cancels, weights compare with their epsilon
OFFSET_ROUTER = 6  # its router biases share an offset of 64, which bf16 cannot hold together with them
CLAMPED = 2  # its shared expert meets both ends of the clamp often
CLOSED = 3  # its shared expert's gates are near -24: a product of 1e-9, and a clamp of the gate from below shows
HEAVY_SINKS = 4  # its sinks are the largest logits
SILENT_KEY = 0  # its Engram keys of the last stream are zero: the floor of the gate's square root shows


def make_edge(directory: Path, seed: int) -> None:
    """Write the checkpoint."""
    make_tiny(directory, seed, {"text_config": OVERRIDES})
    config, tensors = load_tensors(directory)
    for name in list(tensors):
        _fade(name, tensors)
    tensors["embed.weight"][:, COMMON] = LEVEL * 2.0**-FAINT
    tensors[f"layers.{NEGATIVE_ROUTER}.ffn.gate.weight"][:, COMMON] = -2.5
    for bias in ("bias", "bias_vl"):
        tensors[f"layers.{OFFSET_ROUTER}.ffn.gate.{bias}"] += 64.0
    for matrix in ("w1", "w3"):
        _rescale(tensors, f"layers.{CLAMPED}.ffn.shared_experts.{matrix}.scale", 2)
    _rescale(tensors, f"layers.{CLAMPED}.ffn.shared_experts.w2.scale", -3)
    _close(tensors, f"layers.{CLOSED}.ffn.shared_experts")
    tensors[f"layers.{HEAVY_SINKS}.attn.attn_sink"] += 5.3
    hidden, m = config["text_config"]["hidden_size"], config["text_config"]["hc_mult"]
    wkv = tensors[f"layers.{SILENT_KEY}.engram.wkv.weight"].view(torch.uint8)
    wkv[(m - 1) * hidden : m * hidden] = 0
    values = tensors[f"layers.{SILENT_KEY}.engram.wkv.scale"].view(torch.uint8)
    values[m * hidden // 32 :] += 3
    _save(directory, tensors)


def _fade(name: str, tensors: dict[str, Tensor]) -> None:
    if not name.startswith("layers.") and name != "embed.weight":
        return
    if name.endswith(FAINT_BY_SCALE):
        _rescale(tensors, name, -FAINT)
    elif name.endswith(FAINT_BF16) and ".engram." not in name:
        tensors[name] = tensors[name] * 2.0**-FAINT


def _rescale(tensors: dict[str, Tensor], name: str, powers: int) -> None:
    tensors[name].view(torch.uint8).add_(powers % 256)


def _close(tensors: dict[str, Tensor], expert: str) -> None:
    """Gates of about -24 for every token, and a second matrix that brings the faint product back to size."""
    rows, columns = tensors[f"{expert}.w1.weight"].shape
    gate = 0.02 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    gate[:, COMMON] = -2.7
    codes, scale = quantize_fp8_blocks(gate)
    tensors[f"{expert}.w1.weight"] = codes.view(torch.float8_e4m3fn)
    tensors[f"{expert}.w1.scale"] = scale.view(torch.float8_e8m0fnu)
    _rescale(tensors, f"{expert}.w2.scale", 30)


def _save(directory: Path, tensors: dict[str, Tensor]) -> None:
    for shard in directory.glob("*.safetensors"):
        shard.unlink()
    file = "model-00001-of-00001.safetensors"
    save_file(tensors, directory / file)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(tensors, file)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
