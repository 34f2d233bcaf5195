"""The compressed vocabulary of Engram: tokens that read alike share one id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, normalizers

_REPLACEMENT = "\ufffd"
_LONE_SPACE = "\ue000"


def compressed_vocabulary(tokenizer: Tokenizer | str | Path) -> np.ndarray:
    """int64 [tokenizer size]: token id -> compressed id, numbered by first appearance.

    Takes a tokenizer or the path of its tokenizer.json. Tokens that are not text of their own (an incomplete
    UTF-8 sequence) are kept apart by their raw vocabulary string.
    """
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.from_file(str(tokenizer))
    normalizer = normalizers.Sequence(
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
    seen: dict[str, int] = {}
    result = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
    for token in range(len(result)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        if _REPLACEMENT in text:
            key = str(tokenizer.id_to_token(token))
        else:
            key = normalizer.normalize_str(text) or text
        result[token] = seen.setdefault(key, len(seen))
    return result
