"""Capability records: formats and layouts that the backend's own ops take.

The ops themselves depend on the compute capability (`tandem.backends.cuda.table`); what is restricted here holds
wherever an op has its own implementation.  Elsewhere the composite runs, which converts to canonical form.
"""

from __future__ import annotations

from tandem.accelerator.kernels import Allows, allows
from tandem.backends.cuda.weights import PLAIN, SCALED
from tandem.contract.types import CANONICAL

_PAGED = allows(layout=[CANONICAL])
_MATRIX = ("bf16", "f32", "fp8_block32", "mxfp4")
_EXPERTS = ("fp8_block32", "mxfp4")
ALLOWS: dict[str, Allows] = {
    "linear": allows(x=["bf16", "mxfp8"], w=_MATRIX, out=["bf16", "f32"], layout=[PLAIN, SCALED]),
    "group_linear": allows(x=["mxfp8"], w=["fp8_block32"], layout=[SCALED]),
    "grouped_linear": allows(x=["mxfp8"], w=_EXPERTS, layout=[SCALED]),
    "moe_experts": allows(x=["mxfp8"], w=_EXPERTS, layout=[SCALED]),
    "embed": allows(w=["bf16"]),
    "kv_load": _PAGED,
    "kv_store": _PAGED,
    "kv_write": _PAGED,
    "index_scores": allows(fmt=["mxfp4"], layout=[CANONICAL]),
    "index_scores_at": allows(fmt=["mxfp4"], layout=[CANONICAL]),
    "sparse_attn": allows(layout=[CANONICAL], main_layout=[CANONICAL]),
    "attn_block": allows(layout=[CANONICAL], main_layout=[CANONICAL]),
}
