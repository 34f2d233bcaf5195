"""Capability records: formats, layouts and sizes that the native kernels take.

What is restricted here holds where an op has its own implementation.  Elsewhere the composite runs.
"""

from __future__ import annotations

from tandem.accelerator.kernels import Allows, allows
from tandem.backends.cpu.kernels._hyper import MOST_STREAMS
from tandem.backends.cpu.kernels._indexer import MOST_DIM
from tandem.backends.cpu.weights import LAYOUT
from tandem.contract.types import CANONICAL, QFormat

_PAGED = allows(layout=[CANONICAL])
_STREAMS = allows(m=range(1, MOST_STREAMS + 1))
_KEYS = allows(fmt=["mxfp4"], layout=[CANONICAL], dim=range(QFormat.MXFP4.group, MOST_DIM + 1, QFormat.MXFP4.group))
_EXPERTS = ("fp8_block32", "mxfp4")
ALLOWS: dict[str, Allows] = {
    "linear": allows(x=["bf16", "mxfp8"], w=["bf16", "f32", *_EXPERTS], out=["bf16", "f32"], layout=[LAYOUT]),
    "head_sample": allows(x=["bf16"], w=["bf16", "f32", *_EXPERTS], out=["f32"], layout=[LAYOUT]),
    "group_linear": allows(x=["mxfp8"], w=["bf16", *_EXPERTS], layout=[LAYOUT]),
    "grouped_linear": allows(x=["mxfp8"], w=["bf16", *_EXPERTS], layout=[LAYOUT]),
    "kv_load": _PAGED,
    "kv_store": _PAGED,
    "kv_write": _PAGED,
    "index_scores": _KEYS,
    "index_scores_at": _KEYS,
    "sparse_attn": allows(layout=[CANONICAL], main_layout=[CANONICAL]),
    "attn_block": allows(layout=[CANONICAL], main_layout=[CANONICAL]),
    "hc_collapse": _STREAMS,
    "hc_enter": _STREAMS,
    "hc_mix": _STREAMS,
    "hc_post": _STREAMS,
    "hc_step": _STREAMS,
}
