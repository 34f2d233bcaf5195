"""A small byte-level tokenizer that holds every special token of the chat format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deepseek_recipe import SpecialToken
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tandem.tokenizer.detokenize import byte_alphabet

VOCAB_SIZE = 512
NOISE_TOKEN_ID = 499
IMAGE_TOKEN_ID = 500
_FIRST_BYTE_ID = 3
FIRST_MERGE_ID = _FIRST_BYTE_ID + 256
_FIRST_SPECIAL_ID = 480
SPECIALS = (
    SpecialToken.ThinkingStart,
    SpecialToken.ThinkingEnd,
    SpecialToken.System,
    SpecialToken.User,
    SpecialToken.Assistant,
    SpecialToken.LatestReminder,
    SpecialToken.Dsml,
    SpecialToken.Ref,
    SpecialToken.RefEnd,
    SpecialToken.Box,
    SpecialToken.BoxEnd,
    SpecialToken.Point,
    SpecialToken.PointEnd,
    SpecialToken.Polygon,
    SpecialToken.PolygonEnd,
)
# Words merged letter by letter.  Both cases of some are here so that the Engram vocabulary,
# which folds case, is smaller than the vocabulary.
_WORDS = (
    " the of and to in is that it was for with as his on be at by this had not are but from or have an "
    "they which one you were her all she there would their we him been has when who will more no if out "
    "so said what up its about into than them can only other new some could time these two may then do "
    "first any my now such like our over man me even most made after also did many before must through "
    " The And It He In This That You We For But"
)


def build_tiny_tokenizer() -> Tokenizer:
    """A tokenizer of 512 tokens: bos 0, eos 1, pad 2, bytes 3..258, merges, special tokens, fillers."""
    alphabet = byte_alphabet()
    merges: dict[str, tuple[str, str]] = {}
    for word in _merge_words(alphabet[ord(" ")]):
        for end in range(2, len(word) + 1):
            piece = word[:end]
            if piece not in merges and FIRST_MERGE_ID + len(merges) < _FIRST_SPECIAL_ID:
                merges[piece] = (word[: end - 1], word[end - 1])
    added = special_token_ids(_FIRST_SPECIAL_ID, NOISE_TOKEN_ID, IMAGE_TOKEN_ID)
    return byte_level_tokenizer(list(merges.values()), added, VOCAB_SIZE)


def byte_level_tokenizer(
    merges: Sequence[tuple[str, str]], added: Mapping[str, int], vocab_size: int
) -> Tokenizer:
    """A byte-level BPE tokenizer of ``vocab_size`` tokens.

    Args:
        merges: pairs in the order of their ids, which start at ``FIRST_MERGE_ID``.
        added: ids of the special tokens, from :func:`special_token_ids`.  Ids that remain become
            special fillers.
    """
    vocab = {symbol: _FIRST_BYTE_ID + byte for byte, symbol in enumerate(byte_alphabet())}
    vocab |= {left + right: FIRST_MERGE_ID + i for i, (left, right) in enumerate(merges)}
    taken = set(vocab.values()) | set(added.values())
    free = [token_id for token_id in range(vocab_size) if token_id not in taken]
    special = {**added, **{f"<｜reserved▁{token_id}｜>": token_id for token_id in free}}
    tokenizer = Tokenizer(models.BPE(vocab=vocab | special, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    ordered = sorted(special, key=special.__getitem__)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ordered])
    return tokenizer


def special_token_ids(first_id: int, noise_id: int, image_id: int) -> dict[str, int]:
    """Ids of the special tokens: bos 0, eos 1, pad 2, and from ``first_id`` on those of the chat format."""
    added = {SpecialToken.Bos.default_str(): 0, SpecialToken.Eos.default_str(): 1, "<｜▁pad▁｜>": 2}
    added |= {token.default_str(): first_id + i for i, token in enumerate(SPECIALS)}
    added["<｜draft▁noise｜>"] = noise_id
    added[SpecialToken.Image.default_str()] = image_id
    return added


def write_tiny_tokenizer(path: Path) -> None:
    """Write ``tokenizer.json``."""
    build_tiny_tokenizer().save(str(path))


def _merge_words(space: str) -> list[str]:
    words = _WORDS.split()
    return [space + word for word in words] + words
