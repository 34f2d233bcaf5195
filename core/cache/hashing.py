"""Names of cached blocks: what a block holds follows from everything that is hashed here, and from nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Roles = npt.NDArray[np.uint8]
KEY_BYTES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """What decides the cache contents of a request besides its token ids.

    Args:
        salt: requests share blocks only with requests of the same salt, for example those of one tenant.
        media: digest of the media that replace embeddings; empty for plain text.
        roles: uint8 [n], roles of the tokens; None for plain text.
        media_start: first position that media may change; the blocks before it are those of plain text.
        private: nothing may be shared, because something that no digest names decides the contents.
    """

    salt: str = ""
    media: bytes = b""
    roles: Roles | None = None
    media_start: int = 0
    private: bool = False

    def context(self, start: int, end: int) -> bytes:
        """What, besides the tokens and the blocks before, names the block of positions ``start .. end - 1``."""
        fields = [self.salt.encode("utf-8", "surrogatepass")]
        if end > self.media_start and (self.media or self.roles is not None):
            roles = b"" if self.roles is None else self.roles[start:end].tobytes()
            fields += [self.media, roles.rstrip(b"\0")]  # output has no roles
        return pack(fields)

    def cuts_span(self, position: int) -> bool:
        """Whether an image span lies on both sides of ``position``."""
        roles = self.roles
        if roles is None or not 0 < position < len(roles):
            return False
        return bool(roles[position - 1] != 0 and roles[position] != 0)


PLAIN = Identity()


def pack(fields: Iterable[bytes]) -> bytes:
    """Fields in one string, each after its length, so that no two lists of fields look alike."""
    parts: list[bytes] = []
    for field in fields:
        parts += (len(field).to_bytes(8, "little"), field)
    return b"".join(parts)


def block_key(fingerprint: bytes, parent: bytes, tokens: Int32, context: bytes) -> bytes:
    """SHA-256 that names a block: the one key of reader and writer.

    Args:
        fingerprint: of model, formats and sizes; see `fingerprint_of`.
        parent: key of the block before; empty for the first.
        tokens: int32 [block_size].
        context: see `Identity.context`.
    """
    fields = (fingerprint, parent, np.ascontiguousarray(tokens, dtype="<i4").tobytes(), context)
    return hashlib.sha256(pack(fields)).digest()


def fingerprint_of(parts: Mapping[str, Any]) -> bytes:
    """SHA-256 of whatever decides the bits of a block for given tokens; values are printed by JSON or ``repr``."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).digest()
