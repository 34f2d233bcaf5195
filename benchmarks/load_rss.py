"""Measures memory growth while loading a checkpoint of at least 1 GiB.

    python benchmarks/load_rss.py [--json] [--gib 1.0]

Reads every text tensor once, copies it to memory of its own (what packing does), and releases its file
pages.  Prints peak growth of resident memory over packed bytes; at most 1.15 is the goal.  Peak memory
is read from the kernel (VmHWM), so nothing that happens between two samples is missed.  Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from tandem.checkpoint.inventory import TensorGroup, TensorSpec, tensor_inventory
from tandem.checkpoint.progress import LoadProgress
from tandem.checkpoint.reader import Checkpoint
from tandem.checkpoint.tiny import make_tiny
from tandem.checkpoint.writer import TORCH_DTYPES, CheckpointWriter
from tandem.model.config import ModelConfig

GOAL = 1.15
_PIECE = 16 << 20  # bytes of random data written at a time


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--gib", type=float, default=1.0, help="smallest size of the checkpoint")
    args = parser.parse_args()
    torch.set_num_threads(1)  # copies of small tensors only wait for each other's threads
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        write_checkpoint(Path(directory), int(args.gib * (1 << 30)))
        written = time.perf_counter()
        result = measure(Path(directory))
        result["write_seconds"] = written - started
        result["load_seconds"] = time.perf_counter() - written
    if args.json:
        print(json.dumps(result))
    else:
        print(f"packed bytes      {result['packed_bytes']:>15,.0f}")
        print(f"peak RSS growth   {result['peak_growth_bytes']:>15,.0f}")
        print(f"ratio             {result['ratio']:>15.4f}  (goal: at most {GOAL})")
        print(f"load seconds      {result['load_seconds']:>15.2f}")
    return 0 if result["ratio"] <= GOAL else 1


def write_checkpoint(directory: Path, min_bytes: int) -> None:
    """Write a checkpoint with the tiny model's structure, wider, of at least ``min_bytes`` of text tensors.

    Values are random bytes that are valid codes: their size matters here, their distribution does not.
    """
    sizes = {
        "hidden_size": 1024,
        "moe_intermediate_size": 512,
        "vocab_size": 8192,
        "engram_vocab_size": 200_000,
    }
    experts = 8
    while True:
        config = tiny_config(directory, sizes | {"n_routed_experts": experts})
        specs = [spec for spec in tensor_inventory(config) if spec.group is TensorGroup.TEXT]
        if sum(spec.nbytes for spec in specs) >= min_bytes:
            break
        experts += 8
    (directory / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    with CheckpointWriter(directory, specs, max_shard_bytes=min_bytes // 4) as writer:
        for spec in specs:
            write_random(writer, spec, generator)


def tiny_config(directory: Path, text: dict[str, int]) -> ModelConfig:
    """The tiny configuration with other sizes, and the tiny tokenizer in ``directory``."""
    source = directory / "tiny"
    config = make_tiny(source, 0) if not source.exists() else ModelConfig.from_file(source / "config.json")
    raw = config.to_dict()
    raw["text_config"] |= text
    raw["text_config"]["engram_num_embeddings"] = [6 * text["engram_vocab_size"]] * 2
    return ModelConfig.from_dict(raw)


def write_random(writer: CheckpointWriter, spec: TensorSpec, generator: torch.Generator) -> None:
    """Write random codes below 0x40, which are small finite numbers in every stored dtype."""
    row_bytes = spec.nbytes // spec.shape[0]
    step = max(1, _PIECE // row_bytes)
    for start in range(0, spec.shape[0], step):
        rows = min(step, spec.shape[0] - start)
        raw = torch.randint(0, 0x40, (rows * row_bytes,), dtype=torch.uint8, generator=generator)
        writer.write(spec.name, raw.view(TORCH_DTYPES[spec.dtype]).view(rows, *spec.shape[1:]))


def measure(directory: Path) -> dict[str, float]:
    """Load every text tensor and compare the peak of resident memory with the bytes kept."""
    gc.collect()
    reset_peak()
    before = status_bytes("VmRSS")
    packed: list[torch.Tensor] = []
    with Checkpoint.open(directory) as checkpoint:
        checkpoint.validate()
        with LoadProgress(checkpoint.nbytes) as progress:
            for name in checkpoint.names():
                packed.append(checkpoint.read(name).view(torch.uint8).clone())
                checkpoint.release(name)
                progress.advance(packed[-1].nbytes, name)
    peak = status_bytes("VmHWM")
    kept = sum(tensor.nbytes for tensor in packed)
    return {
        "packed_bytes": kept,
        "peak_growth_bytes": peak - before,
        "ratio": (peak - before) / kept,
        "final_growth_bytes": status_bytes("VmRSS") - before,
    }


def reset_peak() -> None:
    """Let the kernel's record of peak memory start again from the present use."""
    Path("/proc/self/clear_refs").write_text("5")


def status_bytes(field: str) -> int:
    """A memory size of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    sys.exit(main())
