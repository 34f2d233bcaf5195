"""The small model's tokenizer: byte-level BPE of 512 tokens learnt from the training text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tandem.checkpoint.tiny_tokenizer import FIRST_MERGE_ID, SPECIALS, byte_level_tokenizer, special_token_ids
from tandem.tokenizer.detokenize import byte_alphabet

VOCAB_SIZE = 512
BOS_TOKEN_ID, EOS_TOKEN_ID, PAD_TOKEN_ID = 0, 1, 2
# The special tokens are the last of the vocabulary, merges fill it up to them.
IMAGE_TOKEN_ID = VOCAB_SIZE - 1
NOISE_TOKEN_ID = VOCAB_SIZE - 2
FIRST_SPECIAL_ID = NOISE_TOKEN_ID - len(SPECIALS)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn merges; the same texts give the same tokenizer, byte for byte.

    A text too small for all merges leaves ids between the merges and the special tokens to fillers.
    """
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    # With the whole alphabet given, the ids that decide between equally frequent pairs are fixed.
    trainer = trainers.BpeTrainer(
        vocab_size=256 + FIRST_SPECIAL_ID - FIRST_MERGE_ID,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=byte_alphabet(),
    )
    learner.train_from_iterator(texts, trainer)
    learnt = json.loads(learner.to_str())["model"]["merges"]
    merges = [(left, right) for left, right in learnt]
    return byte_level_tokenizer(merges, special_token_ids(FIRST_SPECIAL_ID, NOISE_TOKEN_ID, IMAGE_TOKEN_ID), VOCAB_SIZE)


def encode_documents(tokenizer: Tokenizer, documents: Iterable[str]) -> list[int]:
    """One stream of token ids: each document as BOS, its text, EOS."""
    rows = ([BOS_TOKEN_ID, *encoding.ids, EOS_TOKEN_ID] for encoding in tokenizer.encode_batch(list(documents)))
    return list(chain.from_iterable(rows))
