"""Drafts of the model that comes with the package, on text it was not trained on."""

from __future__ import annotations

import numpy as np
import torch
from support.drafting import DraftModel
from support.shipped import tokenizer

from tandem.checkpoint.shipped import shipped_model

# Beginnings of documents that were held out of its training.
PROMPTS = (
    "When Rachel saw that she bore Jacob no children, Rachel",
    "All the congregation of the children of Israel journeyed from the wilderness of S",
    "Then we turned, and took our journey into the wilderness by the way to",
    "Yahweh said to Joshua, Don't be afraid, neither be you dismayed",
)
PROMPT, NEW, DRAFTS = 32, 42, 5


def agreed(drafts: torch.Tensor, continuation: torch.Tensor) -> int:
    """Drafts before the first that is not the next token."""
    return int((drafts == continuation).long().cumprod(0).sum())


def test_greedy_text_accepts_drafts() -> None:
    """Decode greedily, draft behind every token, then go over the text as speculation would: from a token past the
    drafts that agree with what follows.  Its training measured 2.93 drafts a step over more text than this; steps
    vary by about 2, so a mean of fifty by about 0.3."""
    model = DraftModel(shipped_model())
    model.tokens[:, :PROMPT] = torch.tensor([tokenizer().encode(text)[:PROMPT] for text in PROMPTS])
    model.read(PROMPT - 1)
    made: dict[int, torch.Tensor] = {}
    for position in range(PROMPT, PROMPT + NEW):
        newest = model.rows_at([(slot, position - 1, 1) for slot in range(4)]).argmax(-1)
        model.tokens[:, position] = newest
        hidden, base = model.block(newest.tolist(), [position] * 4, range(4))
        made[position], confidence = model.chain(hidden, base, newest.tolist())
        assert bool(((confidence > 0) & (confidence < 1)).all())
    accepted = []
    for slot in range(4):
        position = PROMPT
        while position + DRAFTS < PROMPT + NEW:
            following = model.tokens[slot, position + 1 : position + 1 + DRAFTS]
            accepted.append(agreed(made[position][slot], following))
            position += 1 + accepted[-1]
    print(f"{np.mean(accepted):.2f} drafts accepted per step of {len(accepted)}")
    assert np.mean(accepted) >= 2.0
