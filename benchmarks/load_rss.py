"""Measures memory growth while loading a checkpoint of at least 1 GiB.

    python benchmarks/load_rss.py [--json] [--gib 1.0]

Loads the model onto the CPU backend as an engine does and prints growth of resident memory over the bytes of
the packed weights, once at the peak and once at the end; at most 1.15 is the goal for both.  Peak memory
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

from tandem.backends.cpu.backend import CpuBackend
from tandem.checkpoint.inventory import TensorGroup, TensorSpec, tensor_inventory
from tandem.checkpoint.reader import Checkpoint
from tandem.checkpoint.tiny import make_tiny
from tandem.checkpoint.writer import TORCH_DTYPES, CheckpointWriter
from tandem.contract.plan import Plan
from tandem.model.caches import CacheSpec
from tandem.model.config import ModelConfig
from tandem.model.engram_tables import hash_primes
from tandem.model.registry import build_model

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
        size = write_checkpoint(Path(directory), int(args.gib * (1 << 30)))
        written = time.perf_counter()
        result = measure(Path(directory))
        result["checkpoint_bytes"] = size
        result["write_seconds"] = written - started
        result["load_seconds"] = time.perf_counter() - written
    if args.json:
        print(json.dumps(result))
    else:
        print(f"checkpoint bytes  {result['checkpoint_bytes']:>15,.0f}")
        print(f"packed bytes      {result['packed_bytes']:>15,.0f}")
        for name in ("peak", "end"):
            growth, ratio = result[f"{name}_growth_bytes"], result[f"{name}_ratio"]
            print(f"RSS growth, {name:5} {growth:>15,.0f}  ratio {ratio:.4f}  (goal: at most {GOAL})")
        print(f"load seconds      {result['load_seconds']:>15.2f}")
    return 0 if result["peak_ratio"] <= GOAL else 1


def write_checkpoint(directory: Path, min_bytes: int) -> int:
    """Write a checkpoint with the tiny model's structure, wider; returns its size, at least ``min_bytes``.

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
    return sum(spec.nbytes for spec in specs)


def tiny_config(directory: Path, text: dict[str, int]) -> ModelConfig:
    """The tiny configuration with other sizes, and the tiny tokenizer in ``directory``."""
    source = directory / "tiny"
    config = make_tiny(source, 0) if not source.exists() else ModelConfig.from_file(source / "config.json")
    raw = config.to_dict()
    raw["text_config"] |= text
    heads, longest = raw["text_config"]["engram_n_heads"], raw["text_config"]["engram_max_ngram_size"]
    primes = hash_primes(2, text["engram_vocab_size"], longest, heads)
    raw["text_config"]["engram_num_embeddings"] = [sum(map(sum, layer)) for layer in primes]
    return ModelConfig.from_dict(raw)


def write_random(writer: CheckpointWriter, spec: TensorSpec, generator: torch.Generator) -> None:
    """Write random codes: small finite numbers in every stored dtype, scales from 2^-15 to 1."""
    low, high = (0x70, 0x80) if spec.dtype == "F8_E8M0" else (0, 0x40)
    row_bytes = spec.nbytes // spec.shape[0]
    step = max(1, _PIECE // row_bytes)
    for start in range(0, spec.shape[0], step):
        rows = min(step, spec.shape[0] - start)
        raw = torch.randint(low, high, (rows * row_bytes,), dtype=torch.uint8, generator=generator)
        writer.write(spec.name, raw.view(TORCH_DTYPES[spec.dtype]).view(rows, *spec.shape[1:]))


def measure(directory: Path) -> dict[str, float]:
    """Load the model and compare resident memory with the bytes its weights take."""
    spec = CacheSpec(block_size=16, window_block=8, num_blocks=4, num_window_blocks=16, max_slots=1)
    backend = CpuBackend(use_native=True)
    gc.collect()
    reset_peak()
    before = status_bytes("VmRSS")
    with Checkpoint.open(directory) as checkpoint:
        checkpoint.validate()
        model = build_model(
            Plan(backend),
            checkpoint,
            checkpoint.config,
            directory / "tiny" / "tokenizer.json",
            spec,
            max_rows=16,
            max_positions=64,
            progress=lambda module: print(f"\rloading {module:12}", end="", file=sys.stderr),
        )
        checkpoint.release_all()
        print(file=sys.stderr)
        peak, end = status_bytes("VmHWM"), status_bytes("VmRSS")
    return {
        "packed_bytes": model.packed_bytes,
        "peak_growth_bytes": peak - before,
        "end_growth_bytes": end - before,
        "peak_ratio": (peak - before) / model.packed_bytes,
        "end_ratio": (end - before) / model.packed_bytes,
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
