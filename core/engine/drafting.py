"""The end of a step with speculation: the draft block and the tokens it proposes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from tandem.contract.backend import HostFuture
from tandem.contract.plan import Plan
from tandem.engine.draws import Draws
from tandem.engine.plan import Int32
from tandem.engine.requests import RequestTable
from tandem.engine.step import StepBuilder
from tandem.model.registry import Model
from tandem.sampling.sampler import Drawn, Sampler
from tandem.structured.guide import DraftWalker

Tensor = torch.Tensor
DRAFT_SEED = 1_000_000_007


class Drafting:
    """Proposes tokens for every request that drew, and leaves them on the device for the next step.

    Args:
        plan: binds the ops.
        model: a model with draft stages.
        builder: owns the arrays by slot.
        table: the requests.
        sampler: draws.
        words: int32 words of a grammar's mask.
    """

    def __init__(
        self, plan: Plan, model: Model, builder: StepBuilder, table: RequestTable, sampler: Sampler, words: int
    ) -> None:
        if builder.drafts is None:
            raise AssertionError("drafting without room for drafts")
        self._backend, self._model, self._builder, self._sampler = plan.backend, model, builder, sampler
        self._table, self._state, self._words = table, builder.drafts, words
        # A position is drafted again by later blocks, at another place: with the same random number for it, whether
        # it is verified could depend on the number that decides what it becomes.
        stride = 0 if sampler.coupled else DRAFT_SEED
        self._strides = stride * np.arange(self._state.count, dtype=np.int64)[:, None]
        self._take = plan.bind("gather_rows", "draft")
        self._places = plan.backend.from_host(np.arange(table.max_len + self._state.count + 2, dtype=np.int64))
        self._commit = plan.bind("aux.draft_commit", "draft")

    def run(self, draws: Draws, slots: Tensor, drawn: Drawn, emitted: Tensor) -> tuple[HostFuture, HostFuture]:
        """Draft for the requests of ``draws``.

        Args:
            draws: what was drawn.
            slots: int32 [n], their slots.
            drawn: the tokens.
            emitted: int32 [n], tokens emitted by each request.

        Returns:
            Futures of the drafts int32 [n, B] and of their rates f32 [n, B].
        """
        builder, state = self._builder, self._state
        anchors, positions = self._take(builder.last_token, slots), self._take(builder.length, slots)
        first = builder.window_first if builder.window_first_upper is None else builder.window_first_upper
        hidden, base = self._model.draft_block(anchors, positions, slots, builder.window_table, first)
        own = self._table.numbers(draws.slots)
        seeds = self._backend.from_host(own.seed + self._strides)
        numbers = self._sampler.send(own)
        walkers = self._walkers(draws, drawn, emitted)
        previous = anchors
        for column in range(state.count):
            logits, confidence = self._model.draft_head(base[:, column], hidden[:, column], previous, column)
            bits = self._bits(walkers, len(draws.slots))
            place = self._take(self._places[column + 1 :], positions)
            previous, weights = self._sampler.draft(logits, numbers._replace(seed=seeds[column]), place, bits)
            self._commit(slots, column, previous, weights, confidence, state.tokens, state.weights, state.rates)
            self._walk(walkers, previous)
        for walker in walkers.values():
            walker.rewind()
        to_host = self._backend.to_host
        return to_host(self._take(state.tokens, slots)), to_host(self._take(state.rates, slots))

    def _walkers(self, draws: Draws, drawn: Drawn, emitted: Tensor) -> Mapping[int, DraftWalker]:
        """Grammars by segment, moved past the tokens that were just emitted; the host waits for these."""
        if not draws.guides:
            return {}
        tokens, counts = draws.table(drawn.host_tokens.result()), self._backend.to_host(emitted).result()
        walkers = {}
        for index, guide in draws.guides.items():
            walkers[index] = walker = guide.walker()
            for token in () if draws.known[index] else tokens[index, : counts[index]].tolist():
                walker.push(token)
        return walkers

    def _bits(self, walkers: Mapping[int, DraftWalker], count: int) -> Int32 | None:
        if not walkers:
            return None
        bits = np.full((count, self._words), -1, dtype=np.int32)
        for index, walker in walkers.items():
            bits[index] = walker.mask()
        return bits

    def _walk(self, walkers: Mapping[int, DraftWalker], drafts: Tensor) -> None:
        if walkers:
            tokens = self._backend.to_host(drafts).result()
            for index, walker in walkers.items():
                walker.push(int(tokens[index]))
