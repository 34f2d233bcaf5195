"""What one forward pass reads: the step's device arrays, and what is derived from them once for all layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tandem.contract.types import QTensor, Rows

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows of a step that go on into the decoder layers (bounded replay); every array is int32 on the device.

    Args:
        rows: [K], the kept rows, ascending; K may be 0.
        place: [T], for each row of the step its place among the kept ones, -1 for a dropped row.
        chunk_start, chunk_end: [K], as in `Rows`, counted in kept rows.
    """

    rows: Tensor
    place: Tensor
    chunk_start: Tensor
    chunk_end: Tensor


@dataclass(frozen=True, slots=True)
class StepInput:
    """One step on the device, with its host part.

    Args:
        rows: the rows.
        block_table: int32 [R + 1, NB], main and index blocks by slot.
        window_table: int32 [R + 1, NW], window blocks by slot.
        window_first: int32 [R + 1], lowest position whose window entry exists.
        width: per compress ratio, a bound of the visible entries of every row (host); any larger value gives the
            same bits.
        hint: "prefill" or "decode", for implementations to choose a schedule; never changes a bit.
        window_first_upper: int32 [R + 1], the same bound for decoder layers, at least window_first; None where it is
            window_first.
        kept: rows that go on into the decoder layers; None for all.
        writer: int32 [T], the slot of each row, -1 for a row that runs again and must leave its main and index entries
            as they are; None where every row writes.
        override: f32 or bf16 [N, H] rows that replace embeddings, with override_index int32 [T]; None when unused.
    """

    rows: Rows
    block_table: Tensor
    window_table: Tensor
    window_first: Tensor
    width: Mapping[int, int]
    hint: str
    window_first_upper: Tensor | None = None
    kept: KeptRows | None = None
    override: Tensor | None = None
    override_index: Tensor | None = None
    writer: Tensor | None = None


@dataclass(frozen=True, slots=True)
class RatioContext:
    """Per compress ratio: where entries go, what is visible, and the rotation of the entry a row completes."""

    write_slots: Tensor  # int32 [T]
    lens: Tensor  # int32 [T]
    cos_sin: Tensor  # f32 [T, rd] at the first position of the row's group
    width: int


@dataclass(frozen=True, slots=True)
class StepContext:
    """Everything layers share in one step."""

    step: StepInput
    window_write: Tensor  # int32 [T]
    window_read: Tensor  # int32 [T, W]
    plain: Tensor  # f32 [T, rd], rotation of window-only layers
    scaled: Tensor  # f32 [T, rd], rotation of layers with compressed KV
    ratios: Mapping[int, RatioContext]
    engram: Mapping[int, QTensor]  # looked-up rows per Engram layer


@dataclass(slots=True)
class Selection:
    """Compressed entries chosen by the nearest index source; layers after it reuse them."""

    slots: Tensor | None = None  # int32 [T, K] cache slots
    pool: Tensor | None = None  # int32 [T, P] entries of the candidate pool
