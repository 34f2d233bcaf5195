"""Runs one step of a model on a backend: build, forward, logits, draw, commit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tandem.contract.backend import Backend
from tandem.contract.plan import Plan
from tandem.engine.outputs import LiveRequest
from tandem.engine.plan import StepPlan
from tandem.engine.requests import RequestTable
from tandem.engine.step import StepBuilder
from tandem.model.registry import Model
from tandem.sampling.sampler import DrawInputs, Drawn, Sampler


@dataclass(frozen=True, slots=True)
class StepHandle:
    """A step that has been queued on the device.

    Args:
        plan: its rows.
        entries: int [N], entries of the plan that draw, in the order of the drawn tokens.
        drawn: futures; None when no entry draws.
        forward_s, sample_s: host time spent queueing the two parts (on a CPU: computing them).
    """

    plan: StepPlan
    entries: npt.NDArray[np.intp]
    drawn: Drawn | None
    forward_s: float
    sample_s: float

    def tokens(self) -> npt.NDArray[np.int32]:
        """int32 [entries of the plan]: the drawn tokens, -1 where none was drawn.  Waits for the device."""
        tokens = np.full(len(self.plan), -1, dtype=np.int32)
        if self.drawn is not None:
            tokens[self.entries] = self.drawn.host_tokens.result()
        return tokens


class ModelRunner:
    """Queues steps; what it returns are futures, so that the next step can be queued before they resolve.

    Args:
        model: a loaded model.
        plan: the plan its ops were bound by.
        builder: makes step inputs.
        table: the requests.
    """

    def __init__(self, model: Model, plan: Plan, builder: StepBuilder, table: RequestTable) -> None:
        self.model, self.builder = model, builder
        self._backend: Backend = plan.backend
        self._table, self._sampler = table, Sampler(plan)
        self._take = plan.bind("gather_rows", "step")

    def launch(self, plan: StepPlan, live: Mapping[int, LiveRequest]) -> StepHandle:
        """Queue one step.

        Args:
            plan: a plan that is not empty.
            live: running requests by slot, for logit edits and logprobs.
        """
        with torch.inference_mode():
            start = time.perf_counter()
            step = self.builder.build(plan)
            hidden = self.model.forward(step)
            entries = np.flatnonzero(plan.sample)
            middle = time.perf_counter()
            if not len(entries):
                return StepHandle(plan, entries, None, middle - start, 0.0)
            last = self._backend.from_host((plan.row_ends[entries] - 1).astype(np.int32))
            logits = self.model.logits(hidden, last)
            drawn = self._sampler.draw(logits, self._draw_inputs(plan, entries, live))
            slots, positions = self._take(step.rows.slot, last), self._take(step.rows.positions, last)
            self.builder.commit(drawn.tokens, slots, positions)
            return StepHandle(plan, entries, drawn, middle - start, time.perf_counter() - middle)

    def _draw_inputs(
        self, plan: StepPlan, entries: npt.NDArray[np.intp], live: Mapping[int, LiveRequest]
    ) -> DrawInputs:
        table, slots, ends = self._table, plan.slots[entries], plan.ends[entries]
        edits: list[tuple[int, int, float]] = []
        top_n = 0
        for row, slot in enumerate(slots.tolist()):
            request = live[slot]
            params = request.params
            if params.logprobs is not None:
                top_n = max(top_n, params.logprobs)
            if params.logit_bias or request.banned_ids:
                early = int(ends[row]) - len(request.prompt) < params.min_tokens
                edits += _edits(row, request, early)
        return DrawInputs(
            temperature=table.temperature[slots],
            top_p=table.top_p[slots],
            top_k=table.top_k[slots],
            seed=table.seed[slots],
            position=ends.astype(np.int64),
            edits=edits,
            top_n=top_n,
        )


def _edits(row: int, request: LiveRequest, early: bool) -> list[tuple[int, int, float]]:
    """Bias and bans of one row; a banned token appears once."""
    values = dict(request.params.logit_bias)
    if early:
        values.update(dict.fromkeys(request.banned_ids, float("-inf")))
    return [(row, token, value) for token, value in sorted(values.items())]
