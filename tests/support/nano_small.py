"""A small text as data of the training tools, and sizes of a small model to go with it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tools.train_nano.corpus import Chapter
from tools.train_nano.dataset import write_dataset

# Fields of ``text_config``; every feature is live within 48 tokens.
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 64,
    "sliding_window": 8,
    "index_topk": 4,
    "candidate_topk_blocks": 2,
    "candidate_block_size": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "engram_vocab_size": 101,
    "dspark_markov_rank": 32,
}
WINDOW = 48


def write_small_data(directory: Path) -> None:
    """Fifty chapters of simple sentences, tokenised and split as the real text is."""
    rng = random.Random(3)
    things = "road lamp gate tree house field stone vine water bread".split()
    verses = [
        f"The {a} was near the {b} when {n} saw the {c}, and it was good."
        for a, b, c, n in ((*rng.sample(things, 3), rng.choice(("Anna", "Boaz", "Caleb"))) for _ in range(600))
    ]
    last = "Anna went home to the lamp and the stone."
    chapters = [Chapter(1, n, (*verses[12 * n - 12 : 12 * n - 1], last)) for n in range(1, 51)]
    write_dataset(chapters, directory, 40, 4)
