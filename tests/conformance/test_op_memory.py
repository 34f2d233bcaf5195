"""Unused memory, repetition, untouched memory, and agreement of implementations to the bit."""

from __future__ import annotations

import copy

import pytest
import torch
from support.runner import arguments, call, each_case, implementations, same_bits

from tandem.conformance.calls import bits, leaves, meaningful
from tandem.conformance.poison import PoisonMode
from tandem.contract.opspec import OP_TABLE, Case, OpSpec
from tandem.contract.types import KVCache

CASES = [pytest.param(spec, case, id=f"{spec.name}-{case.name}") for spec, case in each_case()]
# Where implementations share every rounding point, their bits are the same.
BIT_EXACT = sorted(
    {spec.name for spec, _ in each_case() if set(spec.classes.values()) == {"X"}}
    | {"quantize", "kv_store", "swiglu_quant", "index_query", "topk_index", "rope", "kv_write"}
)

# What an op writes, and the argument that names the rows it writes.
WRITTEN = {
    "aux.commit": ("length", "slots"),
    "compress_update": ("state", "rows"),
    "engram_context": ("history", "rows"),
    "kv_store": ("cache", "slots"),
    "kv_write": ("cache", "slots"),
    "scatter_rows": ("x", "index"),
}


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize(("spec", "case"), CASES)
def test_unused_memory_does_not_matter(spec: OpSpec, case: Case, implementation: str) -> None:
    """Unused elements and everything freshly allocated hold zeros, then NaN (or the largest integers), then others."""
    results = []
    for poison in (0x00, 0xFF, 0x7B):
        args = arguments(case, implementation, poison=poison)
        with PoisonMode(poison):
            results.append((args, call(spec.name, implementation, args)))
    for args, other in results[1:]:
        mine = _used_memory(spec, case, implementation, results[0][1]), _used_memory(spec, case, implementation, other)
        same_bits(spec.name, args, *mine, f"{spec.name} {case.name}")


def _used_memory(spec: OpSpec, case: Case, implementation: str, outputs: dict[str, object]) -> dict[str, object]:
    """Outputs without the parts of written arrays that held junk before and were not written."""
    low, high = (arguments(case, implementation, poison=p) for p in (0x00, 0xFF))
    masked = copy.copy(outputs)
    for name, value in outputs.items():
        before = [args.get(name) for args in (low, high)]
        if isinstance(before[0], KVCache):
            before = [cache.data for cache in before]
        if isinstance(value, torch.Tensor) and isinstance(before[0], torch.Tensor):
            junk = (bits(before[0]) != bits(before[1]))[: len(value)]
            masked[name] = torch.where(junk, torch.zeros_like(value), value)
    return masked


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize("op", sorted({spec.name for spec, _ in each_case()}))
def test_repeats_are_equal(op: str, implementation: str) -> None:
    for case in OP_TABLE[op].cases:
        first = call(op, implementation, arguments(case, implementation))
        for _ in range(3):
            args = arguments(case, implementation)
            same_bits(op, args, first, call(op, implementation, args), f"{op} {case.name}")


@pytest.mark.parametrize("op", BIT_EXACT)
def test_implementations_agree_to_the_bit(op: str) -> None:
    for case in OP_TABLE[op].cases:
        args = arguments(case, "composite")
        first = call(op, "composite", args)
        for implementation in implementations()[1:]:
            other = call(op, implementation, arguments(case, implementation))
            same_bits(op, args, first, other, f"{op} {case.name} on {implementation}")


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize("op", sorted(WRITTEN))
def test_memory_not_addressed_stays(op: str, implementation: str) -> None:
    """Everything but the rows that the call names, and scratch, keeps a sentinel."""
    (name, by), checked = WRITTEN[op], 0
    for case in OP_TABLE[op].cases:
        args = arguments(case, implementation, poison=0x5A)
        memory = args[name].data if isinstance(args[name], KVCache) else args[name]
        before = memory.clone()
        call(op, implementation, args)
        named = args["rows"].slot if by == "rows" else args[by]
        rest = sorted(set(range(len(memory) - 1)) - set(named.tolist()))
        assert torch.equal(bits(memory[rest]), bits(before[rest])), f"{op} {case.name}"
        checked += len(rest)
    assert checked


@pytest.mark.parametrize("implementation", implementations())
def test_arguments_are_not_written(implementation: str) -> None:
    """An op writes what its contract names and nothing else."""
    for spec, case in each_case():
        args, fresh = arguments(case, implementation), arguments(case, implementation)
        call(spec.name, implementation, args)
        written = set(spec.classes)
        for name, value in leaves({k: v for k, v in args.items() if k not in written}).items():
            before = leaves({k: v for k, v in fresh.items() if k not in written})[name]
            if "cache" in name or "window" in name or "main" in name:
                value, before = value[:-1], before[:-1]  # scratch was never set
            assert torch.equal(bits(value), bits(before)), f"{spec.name} {case.name} wrote {name}"


def test_meaningful_rows_are_most_rows() -> None:
    """The filter of undefined rows must not hide a case."""
    for spec, case in each_case():
        args = arguments(case, "composite")
        for name, value in leaves(call(spec.name, "composite", args)).items():
            assert value.numel() == 0 or meaningful(spec.name, name, args, value).numel() or "decode" in case.name
