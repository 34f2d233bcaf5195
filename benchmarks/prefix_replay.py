"""What cached prefixes without stored windows cost: next-token distributions after a replay beside the exact ones.

The model continues some prompts; of each text a beginning is cached, and then a longer one is asked for with
``cache.prefix_state=replay``, which computes the last window of the cached part again and sees nothing before it.
Prints the Kullback-Leibler divergence from the distribution of an engine without a cache, and how often the likeliest
token is the same; ``--json`` for machines.

Usage: python benchmarks/prefix_replay.py [--model DIR] [--texts 6] [--tokens 240] [--json]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from tqdm import tqdm

from tandem import LLM, SamplingParams

PROMPTS = ("In the beginning", "And it happened, when", "The words of", "Now these are the names of", "Who are you?")
BLOCK = 32


def open_llm(model: str | None, tokens: int, prefix: str) -> LLM:
    """An engine without drafts; prefix is "off" or "replay"."""
    options: dict[str, Any] = {"model.max_model_len": tokens + 32, "speculation.draft_tokens": 0}
    options |= {"cache.block_size": BLOCK, "cache.prefix": "off" if prefix == "off" else "on"}
    return LLM(model, options=options | ({} if prefix == "off" else {"cache.prefix_state": prefix}))


def logprobs(llm: LLM, tokens: list[int]) -> np.ndarray:
    """Of the token after some, f64 [V]."""
    vocab = llm.engine.vocab_size
    output = llm.generate(tokens, SamplingParams(max_tokens=1, temperature=0.0, logprobs=min(vocab, 1000)))[0]
    if output.logprobs is None:
        raise SystemExit(f"no logprobs: {output.error}")
    top = output.logprobs[0].top
    if len(top) < vocab:
        raise SystemExit("the vocabulary is larger than the most logprobs of a request")
    return np.array([top[token] for token in range(vocab)])


def measure(model: str | None, texts: int, tokens: int) -> list[dict[str, float]]:
    """One row for each beginning that hit: tokens taken from the cache, tokens asked for, KL, same likeliest token."""
    exact, replay = open_llm(model, tokens, "off"), open_llm(model, tokens, "replay")
    rows = []
    for number in tqdm(range(texts), desc="texts", disable=None):
        params = SamplingParams(max_tokens=tokens - 32, ignore_eos=True, seed=number)
        output = exact.generate(PROMPTS[number % len(PROMPTS)], params)[0]
        text = [*output.prompt_token_ids, *output.token_ids]
        for cached in range(2 * BLOCK, len(text) - BLOCK, BLOCK):
            logprobs(replay, text[: cached + 1])
            for more in (1, 7, 16, 31):
                before = replay.engine.metrics()["prefix"]["hit_tokens"]
                found = logprobs(replay, text[: cached + more])
                taken = replay.engine.metrics()["prefix"]["hit_tokens"] - before
                if taken:
                    want = logprobs(exact, text[: cached + more])
                    divergence = float((np.exp(want) * (want - found)).sum())
                    same = float(want.argmax() == found.argmax())
                    rows.append({"taken": taken, "asked": cached + more, "kl": divergence, "same": same})
    exact.close()
    replay.close()
    return rows


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measure what replay of cached prefixes costs.")
    parser.add_argument("--model", help="checkpoint directory; default: the small model that comes with Tandem")
    parser.add_argument("--texts", type=int, default=6, help="texts (%(default)s)")
    parser.add_argument("--tokens", type=int, default=240, help="tokens of a text (%(default)s)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    arguments = parser.parse_args()
    rows = measure(arguments.model, arguments.texts, arguments.tokens)
    if not rows:
        raise SystemExit("no beginning was served from the cache: the texts are too short")
    kl = np.array([row["kl"] for row in rows])
    result = {
        "beginnings": len(rows),
        "taken_mean": float(np.mean([row["taken"] for row in rows])),
        "asked_mean": float(np.mean([row["asked"] for row in rows])),
        "kl_mean": float(kl.mean()),
        "kl_max": float(kl.max()),
        "same_likeliest": float(np.mean([row["same"] for row in rows])),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:15} {value:.6g}")


if __name__ == "__main__":
    main()
