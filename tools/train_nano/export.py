"""Write trained parameters as an official-format checkpoint: ``python -m tools.train_nano.export``."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from tandem.checkpoint.inventory import TensorSpec, tensor_inventory
from tandem.checkpoint.quantize import quantize_fp4_rows, quantize_fp8_blocks, quantize_fp8_rows
from tandem.checkpoint.writer import TORCH_DTYPES, CheckpointWriter
from tandem.model.config import ModelConfig
from tools.train_nano.dataset import DEFAULT_DIR
from tools.train_nano.parameters import expert_tensor, initial_parameters, parameter_shapes
from tools.train_nano.settings import nano_config
from tools.train_nano.state import load_state

Tensor = torch.Tensor


def export(config: ModelConfig, parameters: Mapping[str, Tensor], tokenizer_json: Path, out: Path) -> None:
    """Write config, tokenizer, shards (Engram tables in their own) and index.

    Args:
        parameters: f32 by training name, draft module included if the configuration has one.  The router bias of
            image tokens, never trained, is a copy of that of text.

    Raises:
        SystemExit: parameters are missing or have other shapes; nothing has been written.
    """
    _check(config, parameters)
    specs = tensor_inventory(config)
    with CheckpointWriter(out, specs, max_shard_bytes=1 << 30) as writer:
        for spec in specs:
            if spec.dtype != "F8_E8M0":  # scales come with their weight
                _write(writer, spec, _value(spec, parameters))
    (out / "config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8")
    if tokenizer_json.resolve() != (out / "tokenizer.json").resolve():
        shutil.copyfile(tokenizer_json, out / "tokenizer.json")


def _check(config: ModelConfig, parameters: Mapping[str, Tensor]) -> None:
    for name, (shape, _) in parameter_shapes(config).items():
        found = tuple(parameters[name].shape) if name in parameters else "no such parameter"
        if found != tuple(shape):
            raise SystemExit(f"{name}: {found}, but the model has {tuple(shape)}: the run is of another model")


def _value(spec: TensorSpec, parameters: Mapping[str, Tensor]) -> Tensor:
    expert = expert_tensor(spec)
    if expert is not None:
        name, number = expert
        return parameters[name][number].detach()
    return parameters[spec.name.removesuffix(".weight").removesuffix("_vl")].detach()


def _write(writer: CheckpointWriter, spec: TensorSpec, value: Tensor) -> None:
    if spec.dtype not in ("I8", "F8_E4M3"):
        writer.write(spec.name, value.to(TORCH_DTYPES[spec.dtype]))
        return
    if spec.dtype == "I8":
        quantize = quantize_fp4_rows
    else:
        quantize = quantize_fp8_rows if ".engram.embed." in spec.name else quantize_fp8_blocks
    codes, scale = quantize(value)
    writer.write(spec.name, codes)
    writer.write(spec.name.removesuffix("weight") + "scale", scale)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Write a trained run as a checkpoint.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="of tools.train_nano.dataset")
    parser.add_argument("--run", type=Path, default=Path("build/nano/run"), help="of tools.train_nano.train")
    draft_from = parser.add_mutually_exclusive_group()
    draft_from.add_argument("--draft", type=Path, default=Path("build/nano/draft"), help="of tools.train_nano.draft")
    draft_from.add_argument("--no-draft", action="store_true", help="leave the draft module as it starts")
    parser.add_argument("--out", type=Path, default=Path("build/nano/model"), help="checkpoint directory to write")
    arguments = parser.parse_args()
    _, parameters, _ = load_state(arguments.run / "state.safetensors")
    tokenizer_json = arguments.data / "tokenizer.json"
    config = nano_config(tokenizer_json)
    draft = initial_parameters(config, 0)
    if not arguments.no_draft:
        _, draft, _ = load_state(arguments.draft / "state.safetensors")
    export(config, draft | parameters, tokenizer_json, arguments.out)
    size = sum(path.stat().st_size for path in arguments.out.iterdir())
    print(f"{arguments.out}: {size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
