"""Capability records: formats, layouts and sizes that the backend's own ops take.

What is restricted here holds where an op has its own implementation.  Elsewhere the composite runs, which converts to
canonical form.
"""

from __future__ import annotations

from tandem.accelerator.kernels import Allows, allows
from tandem.backends.ascend.kernels._hyper import MOST_STREAMS
from tandem.backends.ascend.kernels.block_max import BLOCKS
from tandem.backends.ascend.weights import GROUPS, PLAIN, SCALED
from tandem.contract.types import CANONICAL

_PAGED = allows(layout=[CANONICAL])
_STREAMS = allows(m=range(1, MOST_STREAMS + 1))
_MATRIX = ("bf16", "f32", "fp8_block32", "mxfp4")
_EXPERTS = ("fp8_block32", "mxfp4")
ALLOWS: dict[str, Allows] = {
    "linear": allows(x=["bf16", "mxfp8"], w=_MATRIX, out=["bf16", "f32"], layout=[PLAIN, SCALED, GROUPS]),
    "group_linear": allows(x=["mxfp8"], w=["fp8_block32"], layout=[SCALED]),
    "grouped_linear": allows(x=["mxfp8"], w=_EXPERTS, layout=[SCALED, GROUPS]),
    "moe_experts": allows(x=["mxfp8"], w=_EXPERTS, layout=[SCALED, GROUPS]),
    "embed": allows(w=["bf16"]),
    "kv_load": _PAGED,
    "kv_store": _PAGED,
    "kv_write": _PAGED,
    "index_scores": allows(fmt=["mxfp4"], layout=[CANONICAL]),
    "index_scores_at": allows(fmt=["mxfp4"], layout=[CANONICAL]),
    "sparse_attn": allows(layout=[CANONICAL], main_layout=[CANONICAL]),
    "attn_block": allows(layout=[CANONICAL], main_layout=[CANONICAL]),
    "block_max": allows(block=BLOCKS),
    "hc_collapse": _STREAMS,
    "hc_enter": _STREAMS,
    "hc_mix": _STREAMS,
    "hc_post": _STREAMS,
    "hc_step": _STREAMS,
}
