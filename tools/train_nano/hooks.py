"""Parts of the training graph replaced while a report looks at them; the graph itself is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch

from tools.train_nano import attention, engram, graph, moe, primitives
from tools.train_nano.fakequant import Precision, round_mxfp4, round_mxfp8, round_nvfp4, straight_through

Tensor = torch.Tensor
Quantiser = Callable[[Tensor], Tensor]
# Parts of the activations' precision: inputs of fp8 products; window keys; cached keys; index vectors; bf16 between.
FP8_INPUTS, BF16 = "fp8 inputs", "bf16"
WINDOW_KEYS, MAIN_KEYS, INDEX = "window keys", "compressed keys", "index"
CACHES = {
    WINDOW_KEYS: round_mxfp8,
    MAIN_KEYS: round_nvfp4,
    INDEX: round_mxfp4,
}
PARTS = (FP8_INPUTS, *CACHES, BF16)
_ROUNDING = (primitives, attention, moe, graph, engram)


@contextmanager
def replaced(module: ModuleType, **values: Any) -> Iterator[None]:
    """Attributes of a module set for the time of the block."""
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _unchanged(x: Tensor, precision: Precision) -> Tensor:
    return x


@contextmanager
def only(parts: Collection[str]) -> Iterator[None]:
    """In a graph with quantised activations, quantise just these of `PARTS`."""
    kept = {id(quantise) for name, quantise in CACHES.items() if name in parts}

    def cached(x: Tensor, quantise: Quantiser) -> Tensor:
        return straight_through(x, quantise) if id(quantise) in kept else x

    with ExitStack() as stack:
        stack.enter_context(replaced(attention, straight_through=cached))
        if FP8_INPUTS not in parts:
            for module in (attention, moe):
                stack.enter_context(replaced(module, quantised=_unchanged))
        if BF16 not in parts:
            for module in _ROUNDING:
                stack.enter_context(replaced(module, rounded=_unchanged))
        yield


@contextmanager
def watching(see: Callable[[str, Tensor, Tensor], None]) -> Iterator[None]:
    """Call `see` with the name of every activation that is quantised, its value, and its quantised value.

    Names tell the place; they follow from the order in which a layer quantises.
    """
    inputs = {attention: ("attn.input", "attn.q_latent", "attn.output", "attn.low_rank"), moe: _MOE_INPUTS}
    with ExitStack() as stack:
        for module, names in inputs.items():
            stack.enter_context(replaced(module, quantised=_in_turn(names, see)))

        def cached(x: Tensor, quantise: Quantiser) -> Tensor:
            result = straight_through(x, quantise)
            see(_cache_name(quantise, x), x, result)
            return result

        stack.enter_context(replaced(attention, straight_through=cached))
        yield


_MOE_INPUTS = ("ffn.input", "ffn.experts.inner", "ffn.shared.inner")


def _in_turn(names: tuple[str, ...], see: Callable[[str, Tensor, Tensor], None]) -> Callable[..., Tensor]:
    count = 0

    def quantised(x: Tensor, precision: Precision) -> Tensor:
        nonlocal count
        result = primitives.quantised(x, precision)
        see(names[count % len(names)], x, result)
        count += 1
        return result

    return quantised


def _cache_name(quantise: Quantiser, x: Tensor) -> str:
    if quantise is CACHES[INDEX]:
        return "index queries" if x.ndim == 4 else "index keys"
    return next(name for name, known in CACHES.items() if known is quantise)
