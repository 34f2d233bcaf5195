"""Tandem: DeepSeek-V4.1-class models on any backend that implements the contract.

Importing this package starts nothing; `LLM` and its companions are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.engine.async_llm import AsyncLLM
    from tandem.engine.llm import LLM
    from tandem.engine.outputs import RequestOutput
    from tandem.errors import TandemError
    from tandem.sampling.params import SamplingParams
    from tandem.structured.spec import StructuredSpec

__all__ = ["LLM", "AsyncLLM", "RequestOutput", "SamplingParams", "StructuredSpec", "TandemError"]

_HOME = {
    "AsyncLLM": "tandem.engine.async_llm",
    "LLM": "tandem.engine.llm",
    "RequestOutput": "tandem.engine.outputs",
    "SamplingParams": "tandem.sampling.params",
    "StructuredSpec": "tandem.structured.spec",
    "TandemError": "tandem.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tandem' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)
