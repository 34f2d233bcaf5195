"""Capability records: formats and layouts that the backend's own ops take.

The ops themselves depend on the compute capability (`tandem.backends.cuda.table`); what is restricted here holds
wherever an op has its own implementation.  Elsewhere the composite runs, which converts to canonical form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tandem.backends.cuda.weights import PLAIN, SCALED
from tandem.contract.capabilities import OpCap
from tandem.contract.types import CANONICAL

Allows = dict[str, frozenset[str]]


def _allows(**attributes: Iterable[str]) -> Allows:
    return {name: frozenset(values) for name, values in attributes.items()}


_PAGED = _allows(layout=[CANONICAL])
_MATRIX = ("bf16", "f32", "fp8_block32", "mxfp4")
_EXPERTS = ("fp8_block32", "mxfp4")
ALLOWS: dict[str, Allows] = {
    "linear": _allows(x=["bf16", "mxfp8"], w=_MATRIX, out=["bf16", "f32"], layout=[PLAIN, SCALED]),
    "group_linear": _allows(x=["mxfp8"], w=["fp8_block32"], layout=[SCALED]),
    "grouped_linear": _allows(x=["mxfp8"], w=_EXPERTS, layout=[SCALED]),
    "moe_experts": _allows(x=["mxfp8"], w=_EXPERTS, layout=[SCALED]),
    "embed": _allows(w=["bf16"]),
    "kv_load": _PAGED,
    "kv_store": _PAGED,
    "kv_write": _PAGED,
    "index_scores": _allows(fmt=["mxfp4"], layout=[CANONICAL]),
    "index_scores_at": _allows(fmt=["mxfp4"], layout=[CANONICAL]),
    "sparse_attn": _allows(layout=[CANONICAL], main_layout=[CANONICAL]),
    "attn_block": _allows(layout=[CANONICAL], main_layout=[CANONICAL]),
}


def records(own: Iterable[str], notes: Mapping[str, str]) -> dict[str, OpCap]:
    """A record for each op that the open device brings."""
    return {op: OpCap("fused", dict(ALLOWS.get(op, {})), notes.get(op, "")) for op in own}
