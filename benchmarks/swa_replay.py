"""What bounded replay spares of a prefill: work by the shapes, and processor seconds, against the length of the prompt.

The two modes take turns, round by round, so that a drift of the machine hits both.  Prints medians with the range over
rounds; ``--json`` for machines, ``--plot FILE`` for a picture.

Usage: python benchmarks/swa_replay.py [--model DIR | --medium] [--lengths 256 512 ...] [--keep N] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from tandem import LLM, SamplingParams
from tandem.checkpoint.shipped import shipped_model
from tandem.checkpoint.tiny import make_tiny
from tandem.config import load_config
from tandem.engine.assembly import size_engine
from tandem.model.config import ModelConfig
from tandem.model.flops import prompt_flops

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
# Large enough that products of matrices outweigh what surrounds them.
MEDIUM: dict[str, Any] = {
    "text_config": {
        "hidden_size": 512, "num_hidden_layers": 16, "num_attention_heads": 8, "head_dim": 128,
        "qk_rope_head_dim": 32, "q_lora_rank": 256, "o_lora_rank": 128, "sliding_window": 64,
        "compress_ratios": [0, 0, *[2] * 6, *[1] * 8, 0, 0], "kv_source_layer_ids": [2, 5, 8],
        "index_source_layer_ids": [2, 5, 8, 12], "candidate_source_layer_id": 8, "candidate_topk_blocks": 64,
        "index_head_dim": 64, "index_topk": 128, "moe_intermediate_size": 256, "max_position_embeddings": 8192,
        "dspark_target_layer_ids": [13, 14, 15],
    }
}  # fmt: skip


def open_engine(model: str | None, longest: int, replay: dict[str, Any]) -> LLM:
    """An engine for one prompt at a time, every row of which is computed."""
    options = {"model.path": model, "model.max_model_len": longest + 2, "scheduler.max_slots": 1}
    options |= {"cache.prefix": "off", "speculation.draft_tokens": 0}
    return LLM(config=load_config(args=options | replay))


def prefill_seconds(llm: LLM, length: int, seed: int) -> float:
    """Seconds of processor time, which neighbours disturb least, from a prompt of random tokens to its first token."""
    prompt = np.random.default_rng(seed).integers(3, 256, length).tolist()
    llm.submit(prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True))
    started = time.process_time()
    while not llm.engine.idle:
        llm.engine.step()
    return time.process_time() - started


def measure(model: str | None, lengths: list[int], keep: int | None, rounds: int) -> dict[str, Any]:
    """One row per length."""
    narrow = {"model.swa_replay": "compact"} | ({} if keep is None else {"model.swa_keep": keep})
    engines = {"off": open_engine(model, max(lengths), {}), "compact": open_engine(model, max(lengths), narrow)}
    text = ModelConfig.from_file(Path(model or shipped_model()) / "config.json").text
    kept = size_engine(engines["compact"].config, text).replay.keep
    rows = []
    for length in tqdm(lengths, desc="lengths", disable=None):
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(rounds + 1):
            for name, llm in engines.items():
                found = prefill_seconds(llm, length, number)
                if number:
                    seconds[name].append(found)
        full, bounded = prompt_flops(text, length), prompt_flops(text, length, kept)
        row: dict[str, Any] = {"length": length, "flops": full.total, "flops_compact": bounded.total}
        row["flops_spared"] = 1.0 - bounded.total / full.total
        for name, times in seconds.items():
            row[f"{name}_s"], row[f"{name}_range"] = statistics.median(times), [min(times), max(times)]
        row["seconds_spared"] = 1.0 - row["compact_s"] / row["off_s"]
        rows.append(row)
    return {"keep": kept, "layers": [text.n_prefill_layer, text.num_hidden_layers], "rows": rows}


def table(result: dict[str, Any]) -> str:
    """The rows as text."""
    lines = ["length  GFLOP off  compact  spared           CPU seconds off               compact  spared"]
    for row in result["rows"]:
        off, compact = (f"{row[f'{n}_s']:.3f} ({min(r):.3f}-{max(r):.3f})" for n, r in _ranges(row))
        lines.append(
            f"{row['length']:>6}  {row['flops'] / 1e9:9.2f}  {row['flops_compact'] / 1e9:7.2f}  "
            f"{row['flops_spared']:6.1%}  {off:>20}  {compact:>20}  {row['seconds_spared']:6.1%}"
        )
    return "\n".join(lines)


def _ranges(row: dict[str, Any]) -> list[tuple[str, list[float]]]:
    return [(name, row[f"{name}_range"]) for name in ("off", "compact")]


def draw(result: dict[str, Any], path: Path) -> None:
    """Shares spared by length, as PNG or SVG by the path's suffix."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6))
    lengths = [row["length"] for row in result["rows"]]
    for key, style in (("flops_spared", "o-"), ("seconds_spared", "s--")):
        axes.plot(lengths, [100 * row[key] for row in result["rows"]], style, label=key.split("_")[0])
    axes.set(xscale="log", xlabel="tokens in the prompt", ylabel="spared, %", title=f"keep {result['keep']}")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", metavar="DIR", help="default: the small model that comes with Tandem")
    parser.add_argument("--medium", action="store_true", help="a random model of 16 layers of 512 instead")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--keep", type=int, help="rows that run through all layers; default: the least")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = arguments.model
        if arguments.medium:
            make_tiny(directory, 0, MEDIUM)
            model = directory
        result = measure(model, arguments.lengths, arguments.keep, arguments.rounds)
    threads = torch.get_num_threads()
    result["machine"] = f"{platform.machine()}, {os.cpu_count()} processors, {threads} threads"
    if arguments.plot:
        draw(result, arguments.plot)
    if arguments.json:
        print(json.dumps(result))
        return
    first, layers = result["layers"]
    print(f"{result['machine']}; decoder layers {first} to {layers - 1}, keep {result['keep']}")
    print(table(result))


if __name__ == "__main__":
    main()
