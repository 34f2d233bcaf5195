"""Arguments of every op as the official model gives them, without memory: the shapes that kernels are planned for.

A workload is one call of a step: decode with 1, 16, 128 or 1024 requests, each 65,536 tokens long, or prefill of one
chunk of 8,192 tokens.  Dimensions are those of DeepSeek-V4.1-Flash (`OFFICIAL`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tandem.contract.types import (
    CacheKind,
    HcMix,
    HcWeights,
    KVCache,
    KVLayout,
    MoEBatch,
    MoEWeights,
    PackedWeight,
    QFormat,
    QTensor,
    Rows,
    WeightKind,
)

Tensor = torch.Tensor
BF16, F32, I32, I64 = torch.bfloat16, torch.float32, torch.int32, torch.int64

HIDDEN, STREAMS, HEADS, DIM, ROPE, WINDOW = 5120, 4, 64, 512, 64, 128
Q_RANK, GROUPS, O_RANK = 1280, 8, 1024
INDEX_HEADS, INDEX_DIM, TOP_K = 32, 128, 512
POOL_BLOCKS, POOL_BLOCK = 2048, 8
EXPERTS, CHOSEN, INNER = 384, 6, 2304
VOCAB, RANK, DRAFTS, DRAFT_EXPERTS = 129280, 256, 5, 128
NGRAM, NGRAM_HEADS, NGRAM_DIM, TABLE_ROWS = 4, 8, 256, 384_006_168
CONTEXT, CHUNK, BLOCK = 65536, 8192, 128
BATCHES = (1, 16, 128, 1024)


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of step.

    Args:
        name: ``decode-1`` .. ``decode-1024`` or ``prefill-8k``.
        rows: T.
        requests: R.
        context: tokens of each request at the end of the step.
    """

    name: str
    rows: int
    requests: int
    context: int

    @property
    def prefill(self) -> bool:
        """Whether the rows are one chunk."""
        return self.rows != self.requests


PHASES = (*(Phase(f"decode-{n}", n, n, CONTEXT) for n in BATCHES), Phase("prefill-8k", CHUNK, 1, CHUNK))


class Layouts(Protocol):
    """What a backend makes of weights and activations, by shape alone."""

    def weight(self, kind: WeightKind, fmt: QFormat, shape: tuple[int, ...]) -> PackedWeight:
        """A packed weight without memory."""

    def quantised(self, fmt: QFormat, rows: int, width: int) -> QTensor:
        """A quantised activation without memory."""


class Canonical(Layouts):
    """Shapes in checkpoint form."""

    def weight(self, kind: WeightKind, fmt: QFormat, shape: tuple[int, ...]) -> PackedWeight:
        return PackedWeight(kind, fmt, shape, "none", None, 0)

    def quantised(self, fmt: QFormat, rows: int, width: int) -> QTensor:
        data, scale = (
            torch.empty((rows, count), dtype=torch.uint8, device="meta")
            for count in (width * fmt.bits // 8, width // fmt.group)
        )
        return QTensor(data, scale, fmt, (rows, width))


class Maker:
    """Makes arguments on the device ``meta``."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts

    def bf16(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=BF16, device="meta")

    def f32(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=F32, device="meta")

    def i32(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=I32, device="meta")

    def i64(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=I64, device="meta")

    def weight(self, kind: WeightKind, fmt: QFormat, *shape: int) -> PackedWeight:
        return self._layouts.weight(kind, fmt, shape)

    def linear(self, fmt: QFormat, *shape: int) -> PackedWeight:
        return self.weight(WeightKind.LINEAR, fmt, *shape)

    def quantised(self, fmt: QFormat, rows: int, width: int) -> QTensor:
        return self._layouts.quantised(fmt, rows, width)

    def cache(self, kind: CacheKind, phase: Phase) -> KVCache:
        """A cache with room for every request of a phase."""
        fmt = {CacheKind.MAIN: QFormat.NVFP4, CacheKind.INDEX: QFormat.MXFP4, CacheKind.WINDOW: QFormat.MXFP8}[kind]
        layout = KVLayout(kind, fmt, INDEX_DIM if kind is CacheKind.INDEX else DIM, BLOCK)
        blocks = phase.requests * (3 if kind is CacheKind.WINDOW else -(-phase.context // BLOCK))
        shape = (blocks * BLOCK + 1, layout.entry_bytes)
        return KVCache(layout, blocks, torch.empty(shape, dtype=torch.uint8, device="meta"))

    def table(self, phase: Phase) -> Tensor:
        return self.i32(phase.requests + 1, -(-phase.context // BLOCK))

    def rows(self, count: int) -> Rows:
        return Rows(*(self.i32(count) for _ in range(6)))

    def hc_weights(self) -> HcWeights:
        mixes = STREAMS * STREAMS + 2 * STREAMS
        fn = self.weight(WeightKind.HC, QFormat.F32, mixes, STREAMS * HIDDEN)
        return HcWeights(fn, self.f32(mixes), self.f32(3), 1e-20, 1e-6, 20)

    def mix(self, rows: int) -> HcMix:
        return HcMix(self.f32(rows, STREAMS), self.f32(rows, STREAMS), self.f32(rows, STREAMS, STREAMS))

    def experts(self, out: int, depth: int) -> PackedWeight:
        return self.weight(WeightKind.EXPERTS, QFormat.MXFP4, EXPERTS, out, depth)

    def batch(self, rows: int) -> MoEBatch:
        count = rows * CHOSEN
        x = self.quantised(QFormat.MXFP8, count, HIDDEN)
        return MoEBatch(x, self.f32(count), self.i32(EXPERTS), self.i32(rows, CHOSEN))

    def moe(self) -> MoEWeights:
        shared = QFormat.FP8_BLOCK32
        return MoEWeights(
            gate=self.linear(QFormat.BF16, EXPERTS, HIDDEN),
            bias=self.f32(EXPERTS),
            bias_vl=self.f32(EXPERTS),
            w1=self.experts(INNER, HIDDEN),
            w3=self.experts(INNER, HIDDEN),
            w2=self.experts(HIDDEN, INNER),
            shared_w1=self.linear(shared, INNER, HIDDEN),
            shared_w3=self.linear(shared, INNER, HIDDEN),
            shared_w2=self.linear(shared, HIDDEN, INNER),
            k=CHOSEN,
            scaling=1.5,
            limit=10.0,
            local=(0, EXPERTS),
        )

    def numbers(self, rows: int) -> dict[str, Any]:
        """Per-row sampling numbers in the order of the ops."""
        return {
            "temperature": self.f32(rows),
            "top_p": self.f32(rows),
            "top_k": self.i32(rows),
            "min_p": self.f32(rows),
            "seed": self.i64(rows),
            "position": self.i64(rows),
        }


Builder = Callable[[Maker, Phase], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Workload:
    """One op at one place of the model.

    Args:
        op: contract name.
        site: which of its uses, where it has several.
        build: arguments for a phase.
    """

    op: str
    site: str
    build: Builder

    @property
    def name(self) -> str:
        """Op and site."""
        return f"{self.op} {self.site}".strip()


CALLS: list[Workload] = []


def call(op: str, site: str = "") -> Callable[[Builder], Builder]:
    """Register the decorated builder of arguments."""

    def register(build: Builder) -> Builder:
        CALLS.append(Workload(op, site, build))
        return build

    return register


def workloads() -> list[Workload]:
    """Every op of the contract at official shapes."""
    import tools.kernels.model_calls
    import tools.kernels.step_calls  # noqa: F401  (they register theirs)

    return list(CALLS)
