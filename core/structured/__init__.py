"""Structured output: text that obeys a JSON Schema, a pattern or a grammar.

`StructuredSpec` says what is asked for, `Compiler` turns it into a grammar in the background, and a
`Guide` follows one request's tokens and says which tokens may come next.  The grammar library is loaded
when one of the latter is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.structured.compiler import Budget, Compiled, Compiler, Ticket
    from tandem.structured.guide import DraftWalker, Guide
    from tandem.structured.spec import StructuredSpec

__all__ = ["Budget", "Compiled", "Compiler", "DraftWalker", "Guide", "StructuredSpec", "Ticket"]

_HOME = {
    "Budget": "tandem.structured.compiler",
    "Compiled": "tandem.structured.compiler",
    "Compiler": "tandem.structured.compiler",
    "DraftWalker": "tandem.structured.guide",
    "Guide": "tandem.structured.guide",
    "StructuredSpec": "tandem.structured.spec",
    "Ticket": "tandem.structured.compiler",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tandem.structured' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)
