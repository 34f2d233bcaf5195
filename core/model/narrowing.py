"""The boundary between encoder and decoder layers under bounded replay: fewer rows, and windows that begin later."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from tandem.contract.plan import Plan
from tandem.contract.types import HcMix, QTensor, Rows
from tandem.model.caches import ModelCaches
from tandem.model.config import TextConfig
from tandem.model.step import KeptRows, RatioContext, StepContext

Tensor = torch.Tensor


class Entering(NamedTuple):
    """What stands at the entry of a sub-layer: trunk bf16 [T, m, H], its input x bf16 [T, H] and copy, mixes."""

    trunk: Tensor
    x: Tensor
    xq: QTensor
    mix: HcMix


class Narrowing:
    """Turns the context of encoder layers into that of decoder layers, and takes the kept rows of everything else.

    Args:
        plan: binds the ops.
        text: the model.
        caches: for the size of window blocks.
    """

    def __init__(self, plan: Plan, text: TextConfig, caches: ModelCaches) -> None:
        self._backend = plan.backend
        self._window, self._block = text.sliding_window, caches.spec.window_block
        self._gather = plan.bind("gather_rows", "step")
        self._window_slots = plan.bind("aux.window_slots", "step", window=text.sliding_window)

    def context(self, context: StepContext, first: Tensor) -> StepContext:
        """The context of decoder layers, whose windows begin at first int32 [R + 1] by slot."""
        step, kept = context.step, context.step.kept
        if kept is not None:
            context = self._kept(context, kept)
        rows = context.step.rows
        read = self._window_slots(rows.positions, rows.slot, step.window_table, first, self._block, self._window)
        return replace(context, window_read=read)

    def entering(self, at: Entering, index: Tensor) -> Entering:
        """The rows index int32 [K]."""
        take = self._gather
        mix = HcMix(*(take(part, index) for part in at.mix))
        return Entering(take(at.trunk, index), take(at.x, index), self._rows(at.xq, index), mix)

    def _rows(self, q: QTensor, index: Tensor) -> QTensor:
        """Rows of a quantised tensor; a layout that does not keep them on axis 0 goes by way of the canonical one."""
        if q.keeps_rows:
            return q.take_rows(index, self._gather)
        plain = self._backend.to_canonical(q)
        return self._backend.from_canonical(plain.take_rows(index, self._gather))

    def widen(self, hidden: Tensor, kept: KeptRows) -> Tensor:
        """hidden [K, H] of the kept rows -> [T, H], zeros for dropped rows."""
        result: Tensor = self._gather(hidden, kept.place)
        return result

    def _kept(self, context: StepContext, kept: KeptRows) -> StepContext:
        take, index, step = self._gather, kept.rows, context.step
        rows = step.rows
        narrow = Rows(
            ids=take(rows.ids, index),
            positions=take(rows.positions, index),
            slot=take(rows.slot, index),
            chunk_start=kept.chunk_start,
            chunk_end=kept.chunk_end,
            roles=take(rows.roles, index),
        )
        scaled, here = take(context.scaled, index), context.ratios[1]
        # Decoder layers have ratio 1 and no Engram tables; see `tandem.model.config_rules`.
        ratio = RatioContext(take(here.write_slots, index), take(here.lens, index), scaled, here.width)
        return replace(
            context,
            step=replace(step, rows=narrow),
            window_write=take(context.window_write, index),
            plain=take(context.plain, index),
            scaled=scaled,
            ratios={1: ratio},
            engram={},
        )
