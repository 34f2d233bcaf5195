"""A checkpoint as training parameters: what is stored, dequantised."""

from __future__ import annotations

from pathlib import Path

import torch

from tandem.checkpoint.reader import Checkpoint
from tandem.contract.types import CanonicalWeight, QFormat
from tandem.model.config import ModelConfig
from tandem.ops.numerics import decode_weight
from tools.train_nano.parameters import expert_tensor, parameter_shapes

Tensor = torch.Tensor


def read_parameters(directory: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Configuration and f32 parameters by training name, experts stacked."""
    with Checkpoint.open(directory) as source:
        parameters = {name: torch.empty(shape) for name, (shape, _) in parameter_shapes(source.config).items()}
        for name in source.names():
            spec = source.spec(name)
            if spec.dtype == "F8_E8M0" or name.endswith("bias_vl"):
                continue
            value = _value(source, name, spec.dtype)
            expert = expert_tensor(spec)
            target = parameters[name.removesuffix(".weight")] if expert is None else parameters[expert[0]][expert[1]]
            target.copy_(value)
        return source.config, parameters


def _value(source: Checkpoint, name: str, dtype: str) -> Tensor:
    data = source.read(name).clone()
    if dtype not in ("I8", "F8_E4M3"):
        return data.to(torch.float32)
    scale = source.read(name.removesuffix("weight") + "scale").clone()
    if dtype == "I8":
        return decode_weight(CanonicalWeight(data, scale, QFormat.MXFP4))
    fmt = QFormat.MXFP8 if name.endswith("engram.embed.weight") else QFormat.FP8_BLOCK32
    return decode_weight(CanonicalWeight(data, scale, fmt))
