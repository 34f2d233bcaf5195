"""Reading an official-format checkpoint directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from .model import Oracle
from .vocabulary import compressed_vocabulary


def load_tensors(directory: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The parsed config.json and every tensor of the indexed shards in its storage dtype.

    A leading "model." of a name is dropped.
    """
    directory = Path(directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    index = json.loads((directory / "model.safetensors.index.json").read_text(encoding="utf-8"))
    by_shard: dict[str, list[str]] = {}
    for name, shard in index["weight_map"].items():
        by_shard.setdefault(shard, []).append(name)
    tensors = {}
    for shard, names in sorted(by_shard.items()):
        with safe_open(directory / shard, framework="pt") as reader:
            for name in names:
                tensors[name.removeprefix("model.")] = reader.get_tensor(name)
    return config, tensors


def load_oracle(
    directory: str | Path, accumulate: torch.dtype = torch.float32, reorder_seed: int | None = None
) -> Oracle:
    """An oracle over a checkpoint directory, with the compressed vocabulary of its tokenizer.json."""
    config, tensors = load_tensors(directory)
    compressed = compressed_vocabulary(Path(directory) / "tokenizer.json")
    return Oracle(config, tensors, compressed, accumulate, reorder_seed)
