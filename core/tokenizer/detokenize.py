"""Incremental decoding: text as soon as its bytes are complete characters."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable


def byte_alphabet() -> list[str]:
    """The printable character that a byte-level vocabulary writes for each byte value."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


_BYTE_OF_SYMBOL = {symbol: byte for byte, symbol in enumerate(byte_alphabet())}


class TokenBytes:
    """The bytes of each token.

    Args:
        spelling: vocabulary entry of a token id, None where there is none.
        size: number of token ids.
        special: ids of control tokens.
    """

    def __init__(self, spelling: Callable[[int], str | None], size: int, special: frozenset[int]) -> None:
        self._bytes = [_to_bytes(spelling(token_id) or "") for token_id in range(size)]
        self._special = special

    def get(self, token_id: int, skip_special: bool) -> bytes:
        """Bytes that a token adds to the text; none for ids without a token."""
        if not 0 <= token_id < len(self._bytes) or (skip_special and token_id in self._special):
            return b""
        return self._bytes[token_id]


class IncrementalDetokenizer:
    """Turns a stream of token ids into pieces of text that join to the text of the whole.

    A piece never ends in the middle of a character.  A byte that can no longer become part of a
    character gives U+FFFD, as in decoding the whole at once.

    Args:
        token_bytes: from the tokenizer.
        skip_special: leave out control tokens.
    """

    def __init__(self, token_bytes: TokenBytes, skip_special: bool = True) -> None:
        self._token_bytes = token_bytes
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int]) -> str:
        """Text that these tokens complete; possibly empty."""
        return self._decoder.decode(b"".join(self._token_bytes.get(i, self._skip_special) for i in ids))

    def flush(self) -> str:
        """Text of bytes still held back, at the end of the stream."""
        return self._decoder.decode(b"", final=True)


def _to_bytes(spelling: str) -> bytes:
    # A control token may hold characters outside the byte alphabet; then it stands for itself.
    values = [_BYTE_OF_SYMBOL.get(symbol) for symbol in spelling]
    known = [value for value in values if value is not None]
    return bytes(known) if len(known) == len(values) else spelling.encode()
