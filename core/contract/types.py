"""The types that carry bits across the backend boundary.

A bare tensor says nothing about its scale format, its layout or its owner; most silent corruption
in engines of this kind came from that.  These types say it, and ops check it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tandem.errors import LayoutError

# Named in annotations only: a backend class is loaded and probed without torch.
if TYPE_CHECKING:
    from torch import Tensor

CANONICAL = "canonical"


def _take(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index)


class QFormat(enum.Enum):
    """Number formats of weights, activations and cache entries."""

    BF16 = "bf16"
    F32 = "f32"
    MXFP8 = "mxfp8"  # e4m3, one ue8m0 scale per 32 consecutive elements of a row
    MXFP4 = "mxfp4"  # e2m1 pairs, one ue8m0 scale per 32 elements
    NVFP4 = "nvfp4"  # e2m1 pairs, one e4m3 scale per 16 elements
    FP8_BLOCK32 = "fp8_block32"  # e4m3, one ue8m0 scale per 32x32 block

    @property
    def group(self) -> int:
        """Elements that share a scale along a row; 0 for formats without scales."""
        return {"mxfp8": 32, "mxfp4": 32, "nvfp4": 16, "fp8_block32": 32}.get(self.value, 0)

    @property
    def bits(self) -> int:
        """Bits per element, scales not counted."""
        return {"bf16": 16, "f32": 32, "mxfp8": 8, "mxfp4": 4, "nvfp4": 4, "fp8_block32": 8}[self.value]


@dataclass(frozen=True, slots=True)
class QTensor:
    """A quantised activation.

    Args:
        data: canonical: uint8 codes [T, N] (mxfp8) or [T, N/2] (fp4, low nibble first).
        scale: canonical: uint8 [T, N/group].
        fmt: element and scale format.
        shape: logical shape (T, N).
        layout: ``canonical`` or a name that only the owning backend reads.
    """

    data: Tensor
    scale: Tensor
    fmt: QFormat
    shape: tuple[int, ...]
    layout: str = CANONICAL

    @property
    def keeps_rows(self) -> bool:
        """Whether the layout keeps rows on axis 0: canonical, and names ending in ``.rows``."""
        return self.layout == CANONICAL or self.layout.endswith(".rows")

    def take_rows(self, index: Tensor, gather: Callable[[Tensor, Tensor], Tensor] = _take) -> QTensor:
        """Rows by index, for layouts that keep rows on axis 0.

        Args:
            index: int [N].
            gather: takes the rows of one array.
        """
        if not self.keeps_rows:
            raise LayoutError(
                "rows of a quantised tensor cannot be gathered generically",
                where=f"shape {self.shape}",
                why=f"layout '{self.layout}' does not keep rows on axis 0",
                fix="implement the op in the backend that owns the layout",
            )
        data, scale = gather(self.data, index), gather(self.scale, index)
        return QTensor(data, scale, self.fmt, (index.shape[0], *self.shape[1:]), self.layout)

    def require(self, op: str, fmt: QFormat, layout: str = CANONICAL) -> None:
        """Raise LayoutError unless this tensor has the format and layout that ``op`` reads."""
        if self.fmt is not fmt or self.layout != layout:
            raise LayoutError(
                f"'{op}' got a quantised tensor it does not read",
                where=f"op '{op}', shape {self.shape}",
                why=f"it is {self.fmt.value} in layout '{self.layout}', the op reads {fmt.value} in '{layout}'",
                fix="convert with to_canonical()/from_canonical() of the backend that made it",
            )


class CanonicalWeight(NamedTuple):
    """A weight as the checkpoint stores it: raw codes and scales (None for bf16 and f32)."""

    data: Tensor
    scale: Tensor | None
    fmt: QFormat


class WeightKind(enum.Enum):
    """What a weight is used for; a backend may lay out each kind differently."""

    LINEAR = "linear"  # [N, K]
    HEAD = "head"  # [V, K], the output head; since contract 1.2
    GROUP = "group"  # [G, N, K], the grouped output projection
    EXPERTS = "experts"  # [E_local, N, K]
    EMBED = "embed"  # [V, H], rows are gathered
    ENGRAM = "engram"  # [rows, dim], rows are gathered as stored bytes
    HC = "hc"  # [m*m + 2m, m*H] f32


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in the form its backend wants; only that backend reads ``token``.

    Args:
        kind: use of the weight.
        fmt: stored format.
        shape: logical shape in elements.
        layout: name of the backend's layout.
        token: backend-owned payload.
        nbytes: bytes held by the payload.
    """

    kind: WeightKind
    fmt: QFormat
    shape: tuple[int, ...]
    layout: str
    token: Any
    nbytes: int

    def __repr__(self) -> str:
        return f"PackedWeight({self.kind.value}, {self.fmt.value}, {self.shape}, {self.layout})"


class CacheKind(enum.Enum):
    """The paged caches of a layer."""

    MAIN = "main"  # compressed KV, shared by the layers of a segment
    INDEX = "index"  # index keys of the lightning indexer
    WINDOW = "window"  # sliding-window KV of one layer


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Layout of one cache: how many bytes an entry takes and how entries form blocks.

    Args:
        kind: which cache.
        fmt: mxfp8, mxfp4 or nvfp4.
        dim: channels of an entry.
        block_entries: entries in a block.
    """

    kind: CacheKind
    fmt: QFormat
    dim: int
    block_entries: int

    def __post_init__(self) -> None:
        group = self.fmt.group
        if not group or self.fmt is QFormat.FP8_BLOCK32 or self.dim % group or self.block_entries < 1:
            raise LayoutError(
                "a cache layout is not possible",
                where=f"{self.kind.value} cache",
                why=f"format {self.fmt.value} with dim {self.dim} and {self.block_entries} entries a block",
                fix="use mxfp8, mxfp4 or nvfp4 with a dim that is a multiple of the scale group",
            )

    @property
    def data_bytes(self) -> int:
        """Bytes of codes in one entry."""
        return self.dim * self.fmt.bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of scales in one entry."""
        return self.dim // self.fmt.group

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry: codes, then scales."""
        return self.data_bytes + self.scale_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.entry_bytes * self.block_entries


@dataclass(frozen=True, slots=True)
class KVCache:
    """One paged cache.  Canonical data: uint8 [num_blocks * block_entries + 1, entry_bytes], codes then scales.

    A *slot* is ``block * block_entries + offset``.  Slot -1 reads as nothing; writes to it land in the scratch
    entry at the end, which is never read.
    """

    layout: KVLayout
    num_blocks: int
    data: Tensor
    memory_layout: str = CANONICAL


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """Which part of the model this rank owns.  The default owns everything.

    Args:
        rank, world: position in the group and its size.
        experts: half-open range of routed experts, None for all.
        engram_rows: half-open range of table rows per Engram layer id, empty for all.
    """

    rank: int = 0
    world: int = 1
    experts: tuple[int, int] | None = None
    engram_rows: tuple[tuple[int, int, int], ...] = ()

    def expert_range(self, n_experts: int) -> tuple[int, int]:
        """Owned expert range for a layer with ``n_experts`` experts."""
        return self.experts if self.experts is not None else (0, n_experts)

    def engram_range(self, layer: int, rows: int) -> tuple[int, int]:
        """Owned row range of the Engram table of ``layer``."""
        for owner, start, stop in self.engram_rows:
            if owner == layer:
                return start, stop
        return 0, rows


@dataclass(frozen=True, slots=True)
class Rows:
    """The device-side description of the rows of one step (all arrays int32 [T]).

    Args:
        ids: token ids.
        positions: absolute positions.
        slot: request slot, -1 for a padding row.
        chunk_start: index of the first row of the same request in this step.
        chunk_end: one past the index of its last row.
        roles: 0 for text, other values for tokens of an image span.
    """

    ids: Tensor
    positions: Tensor
    slot: Tensor
    chunk_start: Tensor
    chunk_end: Tensor
    roles: Tensor


@dataclass(frozen=True, slots=True)
class MoEBatch:
    """Rows sent to experts, sorted by (local expert, token, k).

    Args:
        x: mxfp8 rows [Te, H].
        weight: routing weight f32 [Te].
        ends: int32 [El], inclusive prefix sum of rows per local expert; rows past ends[-1] are unused.
        source: int32 [T, k], index of the row that serves (token, k), -1 where the expert is not local
            or the row is padding.
    """

    x: QTensor
    weight: Tensor
    ends: Tensor
    source: Tensor


@dataclass(frozen=True, slots=True)
class HcWeights:
    """Hyper-connection parameters of one sub-layer."""

    fn: PackedWeight  # [m*m + 2m, m*H] f32
    base: Tensor  # [m*m + 2m] f32
    scale: Tensor  # [3] f32
    norm_eps: float
    hc_eps: float
    iters: int


class HcMix(NamedTuple):
    """Mixing coefficients of one sub-layer: pre [T, m], post [T, m], comb [T, m, m], all f32."""

    pre: Tensor
    post: Tensor
    comb: Tensor


@dataclass(frozen=True, slots=True)
class MoEWeights:
    """Parameters of one mixture-of-experts sub-layer."""

    gate: PackedWeight  # [E, H] bf16
    bias: Tensor  # [E] f32, selection bias of text rows
    bias_vl: Tensor  # [E] f32, selection bias of image rows
    w1: PackedWeight  # [El, I, H], gate
    w3: PackedWeight  # [El, I, H], up
    w2: PackedWeight  # [El, H, I]
    shared_w1: PackedWeight  # [I, H]
    shared_w3: PackedWeight  # [I, H]
    shared_w2: PackedWeight  # [H, I]
    k: int
    scaling: float
    limit: float
    local: tuple[int, int]  # half-open range of the experts held here
