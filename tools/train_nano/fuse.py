"""Optional compilation of elementwise chains: the same values up to rounding, a third less time for long runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
import torch._dynamo

P = ParamSpec("P")
R = TypeVar("R")

_state = {"enabled": False}


def enable_fusion() -> None:
    """Compile functions marked `fused` from now on; the first call of each takes seconds and needs a C++ compiler."""
    _state["enabled"] = True
    torch._dynamo.config.recompile_limit = 64  # functions are shared by many shapes, each compiled once


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function of tensors whose shapes stay the same for compilation."""
    return _compilable(function, dynamic=False)


def fused_any_shape(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function of tensors of ever new shapes for compilation."""
    return _compilable(function, dynamic=True)


def _compilable(function: Callable[P, R], dynamic: bool) -> Callable[P, R]:
    compiled: dict[str, Any] = {}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _state["enabled"]:
            return function(*args, **kwargs)
        if "it" not in compiled:
            compiled["it"] = torch.compile(function, dynamic=dynamic)
        result: R = compiled["it"](*args, **kwargs)
        return result

    return call
