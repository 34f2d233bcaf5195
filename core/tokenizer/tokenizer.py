"""Text to token ids and back, with the tokenizer that a checkpoint brings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import deepseek_recipe
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders

from tandem.errors import RequestError, TokenizerError
from tandem.model.config import ModelConfig
from tandem.tokenizer.detokenize import TokenBytes
from tandem.tokenizer.token_index import TokenIndex


class Tokenizer:
    """A byte-level tokenizer.  Use :meth:`load`.

    Attributes:
        path: the ``tokenizer.json`` file.
        bos_id, eos_id, pad_id, image_id: token ids from ``config.json``.
        token_bytes: bytes of every token, for incremental decoding.
        library: what the file was read into.
    """

    def __init__(self, path: Path, library: HfTokenizer, config: ModelConfig) -> None:
        self.path = path
        self.bos_id = config.bos_token_id
        self.eos_id = config.eos_token_id
        self.pad_id = config.pad_token_id
        self.image_id = config.image_token_id
        self.vocab_size = library.get_vocab_size()
        self.library = library
        added = library.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self.token_bytes = TokenBytes(library.id_to_token, self.vocab_size, self._special)

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Load ``tokenizer.json`` and the token ids of ``config.json``.

        Raises:
            TokenizerError: the file is missing, damaged, not byte-level, or has more tokens than the model.
            ConfigError: ``config.json`` is missing or not of a supported model.
        """
        path = Path(directory) / "tokenizer.json"
        if not path.is_file():
            raise _error("the model has no tokenizer", path, "the file does not exist")
        config = ModelConfig.from_file(Path(directory) / "config.json")
        try:
            library = HfTokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every kind of damage
            raise _error("the tokenizer cannot be read", path, str(error)) from error
        if not isinstance(library.decoder, decoders.ByteLevel):
            raise _error("the tokenizer is not supported", path, "it does not decode to bytes (ByteLevel)")
        size, limit = library.get_vocab_size(), config.text.vocab_size
        if size > limit:
            why = f"it has {size} tokens; the model's vocab_size is {limit}"
            raise _error("the tokenizer does not fit the model", path, why)
        return cls(path, library, config)

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Token ids of a prompt.

        Spellings of special tokens become those tokens, so that a hand-written prompt can hold them.
        :func:`tandem.tokenizer.chat.render_chat` treats them as plain text instead.

        Raises:
            RequestError: ``text`` is not a string of valid Unicode.
        """
        try:
            ids: list[int] = self.library.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeError) as error:
            found = "half of a surrogate pair" if isinstance(text, str) else type(text).__name__
            raise RequestError(
                "a prompt cannot be tokenised",
                where="prompt",
                why=f"found {found}; expected text",
                fix="give a string of valid Unicode",
            ) from error
        return [self.bos_id, *ids] if add_bos else ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of token ids; bytes that are not valid UTF-8 become U+FFFD.

        Ids that the tokenizer has no token for, such as padding rows of the embedding, give no text.
        """
        data = b"".join(self.token_bytes.get(token_id, skip_special) for token_id in ids)
        return data.decode("utf-8", errors="replace")

    @cached_property
    def token_index(self) -> TokenIndex:
        """Finds tokens by their bytes; made at the first use."""
        return TokenIndex(self.token_bytes, self.vocab_size)

    @cached_property
    def chat_encoding(self) -> deepseek_recipe.DeepseekV41Encoding:
        """The chat format over this tokenizer; loaded at the first use."""
        library = deepseek_recipe.Tokenizer.from_file(str(self.path))
        return deepseek_recipe.DeepseekV41Encoding().with_tokenizer(library)

    def is_special(self, token_id: int) -> bool:
        """True for control tokens, which are not part of the text."""
        return token_id in self._special


def _error(what: str, path: Path, why: str) -> TokenizerError:
    return TokenizerError(
        what, where=str(path), why=why, fix="use the tokenizer.json that belongs to this checkpoint"
    )
