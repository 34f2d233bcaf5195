"""What the model itself goes on to say: text for the draft module to learn from.

``python -m tools.train_nano.continuations`` writes ``build/nano/data/continuations.safetensors``: ``text``, with
beginnings from the training part, and ``held_out``, an eighth as much with beginnings from the validation part.

Drafts are judged against the model's own text, which differs from the book: it is likelier to the model, greedy text
most of all, and on the book's training part the model is surer than it will be anywhere else.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tqdm import tqdm

from tandem.engine.llm import LLM
from tandem.sampling.params import SamplingParams
from tools.train_nano.dataset import DEFAULT_DIR, load_dataset
from tools.train_nano.tokenizer import BOS_TOKEN_ID

TEMPERATURES = (1.0, 0.7, 0.0)  # in turn
_PROMPT_LENGTHS = (8, 49)
_SLOTS = 64


def make(model: Path, text: np.ndarray[Any, Any], count: int, length: int, seed: int) -> torch.Tensor:
    """`count` requests, each a beginning from the text and what the model adds up to `length` tokens.

    Returns:
        int32 [count, length], each row BOS, beginning, continuation; no request ends early.  Row i was drawn at
        temperature ``TEMPERATURES[i % 3]``.
    """
    rng = np.random.default_rng(seed)
    llm = LLM(str(model), backend="cpu", options={"scheduler.max_slots": _SLOTS, "model.max_model_len": length + 1})
    rows: list[list[int]] = []
    for start in tqdm(range(0, count, _SLOTS), desc="continuations", unit="batch", disable=None):
        prompts, params = [], []
        for index in range(start, min(start + _SLOTS, count)):
            size = int(rng.integers(*_PROMPT_LENGTHS))
            place = int(rng.integers(len(text) - size))
            prompts.append([BOS_TOKEN_ID, *text[place : place + size].tolist()])
            temperature = TEMPERATURES[index % len(TEMPERATURES)]
            room = length - len(prompts[-1])
            params.append(SamplingParams(temperature=temperature, max_tokens=room, seed=index, ignore_eos=True))
        for prompt, result in zip(prompts, llm.generate(prompts, params), strict=True):
            rows.append([*prompt, *result.token_ids])
    llm.close()
    return torch.tensor(rows, dtype=torch.int32)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Let the model continue beginnings of the training text.")
    parser.add_argument("--model", type=Path, default=Path("build/nano/model"), help="of tools.train_nano.export")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="of tools.train_nano.dataset")
    default = DEFAULT_DIR / "continuations.safetensors"
    parser.add_argument("--out", type=Path, default=default, help="file to write")
    parser.add_argument("--count", type=int, default=2048, help="requests (%(default)s)")
    parser.add_argument("--length", type=int, default=257, help="tokens of a row, all included (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of beginnings and draws (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    data = load_dataset(arguments.data)
    parts = {"text": (data.text, arguments.count), "held_out": (data.valid, max(arguments.count // 8, 1))}
    made = {
        name: make(arguments.model, text.numpy(), count, arguments.length, arguments.seed)
        for name, (text, count) in parts.items()
    }
    save_file(made, arguments.out)
    rows = made["text"]
    found = {"rows": rows.shape[0], "tokens": rows.numel(), "out": str(arguments.out)}
    print(json.dumps(found) if arguments.json else f"{found['rows']} rows, {found['tokens']:,} tokens")


if __name__ == "__main__":
    main()
