"""Checks of what a request brings, before it gets a slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.engine.extras import RequestExtras
from tandem.errors import RequestError

Int32 = npt.NDArray[np.int32]


def refused(where: str, why: str, fix: str) -> RequestError:
    return RequestError("a request cannot be used", where=where, why=why, fix=fix)


def closed(where: str) -> RequestError:
    """The error of a call that comes after `close`."""
    return RequestError(
        "the engine is closed", where=where, why="close was called", fix="make a new one, or close it later"
    )


def token_ids(prompt: npt.ArrayLike) -> Int32:
    found = np.asarray(prompt)
    if found.ndim != 1 or found.size == 0:
        raise refused("prompt", f"it has shape {found.shape}", "give a list of at least one token id")
    if found.dtype.kind not in "iu":
        raise refused("prompt", f"token ids are {found.dtype}", "give integers")
    if int(found.min()) < 0 or int(found.max()) > np.iinfo(np.int32).max:
        bad = int(found.min()) if int(found.min()) < 0 else int(found.max())
        raise refused("prompt", f"token id {bad} is out of range", "give ids of the model's vocabulary")
    return found.astype(np.int32)


def checked_roles(roles: npt.ArrayLike | None, length: int) -> npt.NDArray[np.uint8] | None:
    if roles is None:
        return None
    found = _array("roles", roles)
    fits = (
        found.shape == (length,) and found.dtype.kind in "iu" and bool(((found >= 0) & (found <= 255)).all())
    )
    if not fits:
        raise refused(
            "roles",
            f"shape {found.shape}, dtype {found.dtype} for {length} tokens",
            "give one value 0..255 per token",
        )
    return found.astype(np.uint8) if found.any() else None


def _array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """An array of any kind; a ragged or unreadable nest is refused."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise refused(name, str(error), "give a flat list or array of numbers") from error


def embed_positions(values: npt.ArrayLike, length: int) -> Int32:
    """Positions of replaced embeddings as int32 [N]: distinct integers below the prompt's length.

    Raises:
        RequestError: they are not.
    """
    found = _array("embed_positions", values)
    usable = found.ndim == 1 and found.dtype.kind in "iu" and len(np.unique(found)) == len(found)
    if not usable or (found.size and not (0 <= int(found.min()) and int(found.max()) < length)):
        raise refused(
            "embed_positions",
            f"shape {found.shape}, dtype {found.dtype} for {length} tokens",
            "give distinct integer positions of the prompt",
        )
    return found.astype(np.int32)


def check_extras(extras: RequestExtras, length: int) -> None:
    rows, positions = extras.embed_rows, extras.embed_positions
    if rows is None and positions is None:
        return
    usable = (
        rows is not None
        and positions is not None
        and isinstance(rows, np.ndarray)
        and rows.ndim == 2
        and rows.dtype in (np.float32, np.uint16)
        and positions.shape == (len(rows),)
        and positions.dtype == np.int32
        and (positions.size == 0 or (int(positions.min()) >= 0 and int(positions.max()) < length))
    )
    if not usable:
        raise refused(
            "embed_rows",
            "rows and positions do not match",
            "give [N, H] float32 or bf16 bits and N prompt positions",
        )
