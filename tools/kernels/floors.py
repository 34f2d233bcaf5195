"""What a call costs at least: bytes that must move, operations that must be done, and the time both take on a device.

Each byte of input that matters is read once, each byte of output is written once, whatever the kernel.  Of caches and
tables only the entries that are used count, of experts those that have rows when every token chooses at random.
Operations are those of matrix products; the rest is small beside the bytes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

import tandem.ops  # noqa: F401  (declares every op)
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.contract.types import KVCache, PackedWeight, QTensor
from tools.kernels import workloads as w
from tools.kernels.machines import Machine
from tools.kernels.workloads import Canonical, Maker, Phase, Workload

Tensor = torch.Tensor
Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Floor:
    """The least that one call moves and computes.

    Args:
        read, written: bytes.
        flops: operations of matrix products.
        fmt: format that their rate is looked up by.
    """

    read: int
    written: int
    flops: int = 0
    fmt: str = "bf16"

    @property
    def bytes(self) -> int:
        """Both ways."""
        return self.read + self.written

    def seconds(self, machine: Machine) -> float:
        """The longer of moving and computing."""
        return max(self.bytes / machine.bandwidth, self.flops / machine.flops[self.fmt])

    def bound(self, machine: Machine) -> str:
        """``memory`` or ``compute``."""
        return "memory" if self.bytes / machine.bandwidth >= self.flops / machine.flops[self.fmt] else "compute"


def size(value: Any) -> int:
    """Bytes of a tensor, or of all in a structure; stored bytes of a quantised one."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, QTensor):
        elements = value.shape[0] * value.shape[1]
        return elements * value.fmt.bits // 8 + elements // value.fmt.group
    if isinstance(value, PackedWeight):
        return weight_bytes(value)
    if isinstance(value, KVCache):
        raise TypeError("of a cache only the entries count that a call touches")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return sum(size(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, (tuple, list)):
        return sum(map(size, value))
    return 0


def weight_bytes(weight: PackedWeight) -> int:
    """Stored bytes of a weight: codes, and one scale byte for each group; a block of fp8 has one for 32 rows."""
    elements = 1
    for extent in weight.shape:
        elements *= extent
    scales = elements // weight.fmt.group if weight.fmt.group else 0
    return elements * weight.fmt.bits // 8 + (scales // 32 if weight.fmt.value == "fp8_block32" else scales)


def active(rows: int, experts: int = w.EXPERTS, chosen: int = w.CHOSEN) -> float:
    """Experts with at least one row when each token chooses at random."""
    return experts * (1.0 - (1.0 - chosen / experts) ** rows)


FLOORS: dict[str, Callable[[Arguments, Phase], Floor]] = {}


def least(workload: Workload, phase: Phase) -> Floor:
    """The floor of one workload, by shapes alone: every backend's layouts have the bytes that matter."""
    arguments, own = workload.build(Maker(Canonical()), phase), FLOORS.get(workload.op)
    if own is not None:
        return own(arguments, phase)
    return Floor(size(list(arguments.values())), size(composite(workload.op)(**arguments)))


def composite(op: str) -> OpFunction:
    """An op of references alone: on arrays without memory it computes nothing, and says what it returns."""
    spec = OP_TABLE[op]
    parts = {part.rpartition(".")[2]: composite(part) if part in OP_TABLE else _same for part in spec.parts}
    return functools.partial(spec.reference, SimpleNamespace(**parts)) if parts else spec.reference


def _same(value: Any) -> Any:
    """A change of layout, which changes no shape."""
    return value


def of(*ops: str) -> Callable[[Callable[[Arguments, Phase], Floor]], Callable[[Arguments, Phase], Floor]]:
    """Register a floor for ops whose arguments are not read whole or written once."""

    def register(function: Callable[[Arguments, Phase], Floor]) -> Callable[[Arguments, Phase], Floor]:
        FLOORS.update(dict.fromkeys(ops, function))
        return function

    return register


@of("linear")
def _linear(a: Arguments, p: Phase) -> Floor:
    out, depth = a["weight"].shape
    rows = a["x"].shape[0]
    written = rows * out * (4 if a["out_dtype"] is torch.float32 else 2)
    fmt = "fp8" if isinstance(a["x"], QTensor) else "bf16"
    return Floor(size(a["x"]) + size(a["weight"]), written, 2 * rows * out * depth, fmt)


@of("group_linear")
def _group(a: Arguments, p: Phase) -> Floor:
    groups, out, depth = a["weight"].shape
    read = size(a["x"]) + size(a["weight"])
    return Floor(read, p.rows * groups * out * 2, 2 * p.rows * groups * out * depth, "fp8")


@of("grouped_linear")
def _grouped(a: Arguments, p: Phase) -> Floor:
    experts, out, depth = a["weight"].shape
    used = int(size(a["weight"]) * active(p.rows) / experts)
    rows = a["x"].shape[0]
    return Floor(size(a["x"]) + used, rows * out * 2, 2 * rows * out * depth, "fp8")


@of("moe_route")
def _route(a: Arguments, p: Phase) -> Floor:
    read = size(a["x"]) + size(a["gate"]) + size(a["bias"]) + size(a["roles"])
    return Floor(read, p.rows * w.CHOSEN * 8, 2 * p.rows * w.EXPERTS * w.HIDDEN)


@of("moe_dispatch")
def _dispatch(a: Arguments, p: Phase) -> Floor:
    row = w.HIDDEN + w.HIDDEN // 32
    read = size(a["xq"]) + size(a["experts"]) + size(a["weights"]) + size(a["row_slot"])
    return Floor(read, p.rows * w.CHOSEN * (row + 8) + w.EXPERTS * 4)


@of("moe_combine")
def _combine(a: Arguments, p: Phase) -> Floor:
    return Floor(size(a["y"]) + size(a["batch"].source) + size(a["shared"]), p.rows * w.HIDDEN * 2)


@of("hc_mix", "hc_enter", "hc_step")
def _hyper(a: Arguments, p: Phase) -> Floor:
    trunk, mixes = size(a["trunk"]), w.STREAMS * (w.STREAMS + 2)
    read = trunk + size(a["weights"]) + size([a.get(name) for name in ("y", "mix", "pre_prev", "norm_weight")])
    written = p.rows * mixes * 4
    if "norm_weight" in a:
        written += p.rows * (w.HIDDEN * 3 + w.HIDDEN // 32)  # x and its quantised copy
    if "y" in a:
        written += trunk
    return Floor(read, written, 2 * p.rows * mixes * w.STREAMS * w.HIDDEN, "f32")


@of("embed")
def _embed(a: Arguments, p: Phase) -> Floor:
    return Floor(size(a["ids"]) + p.rows * w.HIDDEN * 2, p.rows * w.HIDDEN * 2)


@of("engram_gather")
def _gather(a: Arguments, p: Phase) -> Floor:
    """The table lies on the host; what comes over the bus is not device memory."""
    return Floor(size(a["rows"]), a["rows"].numel() * (w.NGRAM_DIM + w.NGRAM_DIM // 32))


@of("engram_context")
def _context(a: Arguments, p: Phase) -> Floor:
    return Floor(size(a["rows"]) + p.rows * 4 + p.requests * w.NGRAM * 4, p.rows * (w.NGRAM + 1) * 4)


@of("compress_update")
def _compress(a: Arguments, p: Phase) -> Floor:
    """A request's first group has terms of the state; its last rows become the state."""
    row, ratio = 2 * w.DIM * 4, a["ratio"]
    kept = min(p.rows, p.requests * a["state"].shape[1]) * row
    read = size([a["value"], a["gate"], a["rows"]]) + p.requests * (ratio - 1) * row
    return Floor(read, p.rows // ratio * w.DIM * 2 + kept)


@of("kv_write")
def _write(a: Arguments, p: Phase) -> Floor:
    read = size([a["x"], a["norm_weight"], a["cos_sin"], a["slots"]])
    return Floor(read, size(a["x"]) + p.rows * a["cache"].layout.entry_bytes)


@of("kv_store")
def _store(a: Arguments, p: Phase) -> Floor:
    return Floor(size([a["x"], a["slots"]]), p.rows * a["cache"].layout.entry_bytes)


@of("kv_load")
def _load(a: Arguments, p: Phase) -> Floor:
    layout = a["cache"].layout
    return Floor(size(a["slots"]) + p.rows * layout.entry_bytes, p.rows * layout.dim * 2)


@of("sparse_attn", "attn_block")
def _attention(a: Arguments, p: Phase) -> Floor:
    """Window entries of neighbouring rows of a chunk are the same ones; selected entries are counted for each row."""
    slots = [a["window_slots"]] + ([] if a["main"] is None else [a["main_slots"]])
    window = (p.rows + w.WINDOW) if p.prefill else p.rows * w.WINDOW
    read = size([a["q"], a["sink"], *slots]) + window * a["window"].layout.entry_bytes
    keys = w.WINDOW
    if a["main"] is not None:
        entries = min(p.rows * w.TOP_K, p.context) if p.prefill else p.rows * w.TOP_K
        read, keys = read + entries * a["main"].layout.entry_bytes, keys + w.TOP_K
    outputs = p.rows * w.HEADS * w.DIM
    written = outputs + outputs // 32 if "cos_sin" in a else outputs * 2
    return Floor(read, written, 4 * p.rows * w.HEADS * w.DIM * keys)


@of("index_scores", "index_scores_at")
def _scores(a: Arguments, p: Phase) -> Floor:
    """Of a chunk half the entries are visible on average, and its rows share the keys."""
    pool = "entries" in a
    width = a["entries"].shape[1] if pool else a["width"]
    seen = p.rows * width // (2 if p.prefill and not pool else 1)
    keys = p.context if p.prefill else p.rows * width
    entries = size(a["entries"]) if pool else 0
    read = size([a["q"], a["w"]]) + entries + keys * a["cache"].layout.entry_bytes
    return Floor(read, p.rows * width * 2, 2 * seen * w.INDEX_HEADS * w.INDEX_DIM, "fp4")


@of("aux.entry_slots", "aux.map_entries", "aux.window_slots")
def _tables(a: Arguments, p: Phase) -> Floor:
    """Cells of a block table as far as an entry needs one: selected entries are scattered, each may lie in its own."""
    plain = [value for name, value in a.items() if name != "table"]
    outputs = {"entries": w.TOP_K, "first": w.WINDOW}
    count = next((n for name, n in outputs.items() if name in a), 1)
    cells = p.rows * min(count, a["table"].shape[1])
    return Floor(size(plain) + cells * 4, p.rows * count * 4)


@of("aux.take")
def _take(a: Arguments, p: Phase) -> Floor:
    return Floor(2 * size(a["index"]), size(a["index"]))


@of("gather_rows")
def _gather_rows(a: Arguments, p: Phase) -> Floor:
    moved = a["index"].shape[0] * size(a["x"]) // a["x"].shape[0]
    return Floor(size(a["index"]) + moved, moved)


@of("scatter_rows")
def _scatter(a: Arguments, p: Phase) -> Floor:
    return Floor(size([a["index"], a["values"]]), size(a["values"]))


@of("draft_heads")
def _heads(a: Arguments, p: Phase) -> Floor:
    read = size([a["base"], a["hidden"], a["previous"], a["head"], a["proj"]]) + p.requests * w.RANK * 2
    return Floor(read, size(a["base"]) + p.requests * 4, 2 * p.requests * w.VOCAB * w.RANK)


@of("aux.draft_commit")
def _draft_commit(a: Arguments, p: Phase) -> Floor:
    rows = size([a["slots"], a["token"], a["confidence"]])
    return Floor(rows + size(a["weight"]), size(a["weight"]) + 2 * size(a["token"]))


@of("aux.accept", "aux.commit")
def _commit(a: Arguments, p: Phase) -> Floor:
    """Of the tokens of a request only the last that was emitted."""
    accepted = size(a["accepted"]) if "accepted" in a else 0
    numbers = 5 if "accepted" in a else 3
    return Floor(accepted + p.requests * 4 * numbers, p.requests * 4 * (3 if accepted else 2))


@of("aux.verify_rows")
def _verify_rows(a: Arguments, p: Phase) -> Floor:
    """Rates and drafts of a request, and its slot, length, limit and most; of a row four numbers."""
    return Floor(p.requests * (16 + 8 * w.DRAFTS), p.requests * 4 + a["rows"] * 16)


@of("aux.step_inputs")
def _bookkeeping(a: Arguments, p: Phase) -> Floor:
    """Four host values of a row; token, length and limit of a request."""
    return Floor(16 * p.rows + 12 * p.requests, 12 * p.rows)


@of("adjust_logits", "penalize_logits")
def _cells(a: Arguments, p: Phase) -> Floor:
    cells = size([value for name, value in a.items() if name != "logits"])
    return Floor(cells + a["row"].numel() * 4, a["row"].numel() * 4)


@of("mask_logits")
def _mask(a: Arguments, p: Phase) -> Floor:
    """At worst nearly every token is banned."""
    return Floor(size(a["bits"]), size(a["logits"]))


@of("spec_verify")
def _verify(a: Arguments, p: Phase) -> Floor:
    return Floor(size(list(a.values())), a["logits"].shape[0] * 16)
