"""Implementations agree to the bit where they share every rounding point."""

from __future__ import annotations

import pytest
from support.runner import arguments, call, each_case, implementations, same_bits

from tandem.conformance.calls import leaves, meaningful
from tandem.contract.opspec import OP_TABLE

# Where implementations share every rounding point, their bits are the same.
BIT_EXACT = sorted(
    {spec.name for spec, _ in each_case() if set(spec.classes.values()) == {"X"}}
    | {"quantize", "kv_store", "swiglu_quant", "index_query", "topk_index", "rope", "kv_write"}
)


@pytest.mark.parametrize("op", BIT_EXACT)
def test_implementations_agree_to_the_bit(op: str) -> None:
    for case in OP_TABLE[op].cases:
        args = arguments(case, "composite")
        first = call(op, "composite", args)
        for implementation in implementations()[1:]:
            other = call(op, implementation, arguments(case, implementation))
            same_bits(op, args, first, other, f"{op} {case.name} on {implementation}")


def test_meaningful_rows_are_most_rows() -> None:
    """The filter of undefined rows must not hide a case."""
    for spec, case in each_case():
        args = arguments(case, "composite")
        for name, value in leaves(call(spec.name, "composite", args)).items():
            assert value.numel() == 0 or meaningful(spec.name, name, args, value).numel() or "decode" in case.name
