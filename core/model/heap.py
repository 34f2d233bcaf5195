"""The C library's heap: what loading leaves in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


@cache
def _trim() -> Callable[[int], int] | None:
    """``malloc_trim`` of a C library that has it."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes, found.restype = (ctypes.c_size_t,), ctypes.c_int
    return found


def give_back() -> None:
    """Let the system have pages of freed memory.

    The heap keeps what lies below anything still in use.  Parsing a tokenizer leaves tens of megabytes so, which would
    stay resident as long as the model is served.
    """
    trim = _trim()
    if trim is not None:
        trim(0)
