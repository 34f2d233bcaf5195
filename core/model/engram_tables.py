"""Constants of the Engram hash: compressed vocabulary, prime table sizes, offsets, multipliers.

None of these is stored in a checkpoint; all follow from the configuration and the tokenizer, and the
tables are unreadable if any of them differs from what the model was trained with.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, normalizers

from tandem.errors import ConfigError, TokenizerError
from tandem.model.config import TextConfig

Segments = tuple[tuple[tuple[int, ...], ...], ...]  # [layer][n-gram size - 2][head]

_SEED_STRIDE = 10007  # distance between the random seeds of two layers
_LONE_SPACE = "\ue000"  # private-use stand-in that keeps a single space from being stripped
_REPLACEMENT = "\ufffd"


def hash_primes(layers: int, vocab_size: int, max_ngram: int, heads: int) -> Segments:
    """Rows of each table segment: ascending primes from ``vocab_size``, no prime used twice.

    Args:
        layers: number of Engram layers.
        vocab_size: smallest value to consider.
        max_ngram: largest n-gram size; sizes start at 2.
        heads: hash heads for each size.
    """
    used: set[int] = set()

    def segment() -> tuple[int, ...]:
        found: list[int] = []
        candidate = vocab_size
        while len(found) < heads:
            if candidate not in used and _is_prime(candidate):
                used.add(candidate)
                found.append(candidate)
            candidate += 1
        return tuple(found)

    return tuple(tuple(segment() for _ in range(max_ngram - 1)) for _ in range(layers))


def engram_primes(text: TextConfig) -> Segments:
    """Table segment sizes of every Engram layer.

    Raises:
        ConfigError: ``engram_num_embeddings`` is not the sum of a layer's primes.
    """
    primes = hash_primes(
        len(text.engram_layer_ids), text.engram_vocab_size, text.engram_max_ngram_size, text.engram_n_heads
    )
    expected = tuple(sum(map(sum, layer)) for layer in primes)
    if expected != text.engram_num_embeddings:
        raise ConfigError(
            "the Engram tables have sizes that no hash addresses",
            where="text_config.engram_num_embeddings",
            why=f"it is {list(text.engram_num_embeddings)}; the prime segments add up to {list(expected)}",
            fix="restore engram_num_embeddings, engram_vocab_size, engram_max_ngram_size and engram_n_heads",
        )
    return primes


def engram_offsets(text: TextConfig) -> Segments:
    """First row of each segment within its layer's table, in the order of :func:`engram_primes`."""
    offsets = []
    for layer in engram_primes(text):
        starts = iter(accumulate((size for sizes in layer for size in sizes), initial=0))
        offsets.append(tuple(tuple(next(starts) for _ in sizes) for sizes in layer))
    return tuple(offsets)


def engram_multipliers(layer_id: int, compressed_vocab_size: int, max_ngram: int) -> npt.NDArray[np.int64]:
    """Odd hash multipliers of a layer, int64 [max_ngram]; index s is for the s-th token back.

    They are bounded so that a product with a compressed id never overflows int64.  The generator is numpy's
    default one (PCG64), because that is what the training code drew them from.
    """
    bound = max(1, int(np.iinfo(np.int64).max) // compressed_vocab_size // 2)
    draws = np.random.default_rng(_SEED_STRIDE * layer_id).integers(0, bound, size=max_ngram, dtype=np.int64)
    return draws * 2 + 1


def compressed_vocabulary(source: str | Path | Tokenizer) -> tuple[npt.NDArray[np.int32], int]:
    """Map token ids to ids of equivalence classes of texts that differ in case, accents or white space.

    Args:
        source: path of the unmodified ``tokenizer.json``, or what was read from it.

    Returns:
        int32 [tokens of the tokenizer], and the number of classes; ids follow first appearance.
    """
    tokenizer = source if isinstance(source, Tokenizer) else _read(source)
    normalizer = _normalizer()
    classes: dict[str, int] = {}
    mapping = np.empty(tokenizer.get_vocab_size(), dtype=np.int32)
    for token_id in range(len(mapping)):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        if _REPLACEMENT in text:  # part of a multi-byte character: only the raw token tells it apart
            key = tokenizer.id_to_token(token_id) or ""
        else:
            key = normalizer.normalize_str(text) or text
        mapping[token_id] = classes.setdefault(key, len(classes))
    return mapping, len(classes)


def engram_vocabulary_map(text: TextConfig, source: str | Path | Tokenizer) -> npt.NDArray[np.int32]:
    """Compressed id of every embedding row, int32 [vocab_size].

    Rows past the tokenizer's last token cannot occur in a text; they take the class of the pad token.

    Raises:
        ConfigError: the tokenizer gives another number of classes than the configuration states.
        TokenizerError: the tokenizer has more tokens than the model, or cannot be read.
    """
    mapping, count = compressed_vocabulary(source)
    name = "its tokenizer" if isinstance(source, Tokenizer) else str(source)
    if len(mapping) > text.vocab_size:
        raise TokenizerError(
            "the tokenizer does not fit the model",
            where=name,
            why=f"it has {len(mapping)} tokens; the model has vocab_size {text.vocab_size}",
            fix="use the tokenizer.json that belongs to this checkpoint",
        )
    if count != text.engram_compressed_vocab_size:
        raise ConfigError(
            "the tokenizer does not give the Engram vocabulary of the model",
            where="text_config.engram_compressed_vocab_size",
            why=f"it is {text.engram_compressed_vocab_size}; {name} has {count} classes of tokens",
            fix="use the tokenizer.json and config.json of the same checkpoint",
        )
    full = np.full(text.vocab_size, mapping[text.engram_pad_token_id], dtype=np.int32)
    full[: len(mapping)] = mapping
    return full


def _read(path: str | Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for missing and damaged files alike
        raise TokenizerError(
            "the tokenizer cannot be read",
            where=str(path),
            why=str(error),
            fix="restore tokenizer.json from the checkpoint's source",
        ) from error


def _normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    if number % 2 == 0:
        return False
    return all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2))
