"""Trainable parameters: which there are, how they start, and how they relate to stored tensors.

Names are those of the checkpoint without ``.weight``; the experts of a layer are stacked in one parameter
``...ffn.experts.w1`` [E, I, H].  The router bias is state, not a parameter: it follows the load.
"""

from __future__ import annotations

import math
import zlib

import torch

from tandem.checkpoint.inventory import TensorSpec, tensor_inventory
from tandem.model.config import ModelConfig
from tools.train_nano.fakequant import round_bf16, round_mxfp8, stored_fp4_rows, stored_fp8_blocks

Tensor = torch.Tensor

_EMBED = 0.3  # standard deviation of embeddings; sub-layers start by adding less than that
_GATE_GAIN = 0.1  # experts start nearly equal, so that the biases can keep their loads even
_PRE_BIAS = 3.0
_COMB_BIAS = 3.0


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name -> (shape in elements, stored dtype) of every trainable tensor, router biases included."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    for spec in tensor_inventory(config):
        if spec.dtype == "F8_E8M0" or spec.name.endswith("bias_vl"):
            continue
        name, shape = spec.name.removesuffix(".weight"), spec.shape
        if spec.dtype == "I8":
            prefix, _, rest = name.partition(".experts.")
            number, _, matrix = rest.partition(".")
            name, shape = f"{prefix}.experts.{matrix}", (int(number) + 1, shape[0], shape[1] * 2)
        shapes[name] = (shape, spec.dtype)
    return shapes


def initial_parameters(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Start values f32; a tensor's values depend on its name and the seed only."""
    layers = config.text.num_hidden_layers
    return {
        name: _initial(name, shape, layers, seed) for name, (shape, _) in parameter_shapes(config).items()
    }


def _initial(name: str, shape: tuple[int, ...], layers: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    if name.endswith("_base"):
        return _hc_base(name, shape[0])
    if name.endswith("_scale"):
        return torch.full(shape, 0.1)
    if name.endswith(("attn_sink", "gate.bias")):
        return torch.zeros(shape)
    if name.endswith(("q_weight", "k_weight")) or len(shape) == 1:
        return torch.ones(shape)
    noise = torch.randn(shape, generator=generator)
    if name in ("embed", "engram.embed") or name.endswith((".engram.embed", "markov_head.embed")):
        return noise * _EMBED
    deviation: float = shape[-1] ** -0.5
    if name.endswith("ffn.gate"):
        deviation *= _GATE_GAIN
    if name.endswith((".w2", ".wo_b", "engram.wkv")):
        deviation /= math.sqrt(2 * layers)  # what sub-layers add together stays near the embedding's size
    return noise * deviation


def _hc_base(name: str, size: int) -> Tensor:
    """Read one stream, write all, keep streams apart."""
    streams = round((size + 1) ** 0.5) - 1  # size = streams**2 + 2 * streams
    layer = int(name.split(".")[1])
    base = torch.zeros(size)
    base[:streams] = -_PRE_BIAS
    base[layer % streams] = _PRE_BIAS
    comb = torch.full((streams, streams), -_COMB_BIAS).fill_diagonal_(_COMB_BIAS)
    base[2 * streams :] = comb.flatten()
    return base


def stored_value(name: str, value: Tensor, dtype: str) -> Tensor:
    """The value a checkpoint holds for a parameter, f32."""
    if dtype == "I8":
        return stored_fp4_rows(value)
    if dtype == "F8_E4M3":
        return round_mxfp8(value) if name.endswith("engram.embed") else stored_fp8_blocks(value)
    return round_bf16(value) if dtype == "BF16" else value


def expert_tensor(spec: TensorSpec) -> tuple[str, int] | None:
    """Stacked parameter and index of an expert's stored weight, None for other tensors."""
    prefix, found, rest = spec.name.removesuffix(".weight").partition(".experts.")
    if not found:
        return None
    number, _, matrix = rest.partition(".")
    return f"{prefix}.experts.{matrix}", int(number)
