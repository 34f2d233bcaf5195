"""Logprobs of prompt tokens: rows of a prompt are scored against the token that follows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tandem.contract.plan import Plan
from tandem.engine.outputs import LiveRequest
from tandem.engine.plan import Int32, StepPlan
from tandem.engine.requests import RequestTable
from tandem.model.registry import Model
from tandem.sampling.sampler import DrawInputs, Drawn, Numbers, Sampler

ROWS_AT_A_TIME = 64  # logits of a whole prompt would be its largest array by far


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows of one request that score its prompt.

    Args:
        request: which one.
        rows, tokens: int32 [n], rows of the step and the tokens that follow them.
        numbers: of each row.
        until: rows of the prompt that are scored with these.
    """

    request: LiveRequest
    rows: Int32
    tokens: Int32
    numbers: Numbers
    until: int


@dataclass(frozen=True, slots=True)
class Scored:
    """Some prompt tokens of a request, in order, what they were given, and rows of the prompt scored by then."""

    request: LiveRequest
    tokens: Int32
    drawn: Drawn
    until: int


class PromptScores:
    """Scores prompts where it is asked for.

    Args:
        plan: its backend takes the arrays.
        table: the requests.
        sampler: scores forced tokens.
    """

    def __init__(self, plan: Plan, table: RequestTable, sampler: Sampler) -> None:
        self._backend, self._table, self._sampler = plan.backend, table, sampler

    def rows(self, plan: StepPlan, live: Mapping[int, LiveRequest]) -> list[PromptRows]:
        """What a step scores: the rows whose next token belongs to the prompt and has no score yet."""
        table, found = self._table, []
        scored = table.prompt_scored[plan.slots] >= 0
        for entry in np.flatnonzero(scored & (table.epoch[plan.slots] == plan.epochs)).tolist():
            slot, start = int(plan.slots[entry]), int(plan.starts[entry])
            first = max(start, int(table.prompt_scored[slot]))
            until = min(int(plan.ends[entry]), int(table.prompt_len[slot]) - 1)
            if entry < plan.speculative or until <= first:
                continue
            row = int(plan.row_ends[entry]) - int(plan.num_rows[entry]) + first - start
            count = until - first
            for done in range(0, count, ROWS_AT_A_TIME):
                part = np.arange(done, min(done + ROWS_AT_A_TIME, count), dtype=np.int32)
                tokens = table.tokens[slot, first + 1 + part]
                numbers = table.numbers(np.full(len(part), slot))
                found.append(PromptRows(live[slot], row + part, tokens, numbers, first + int(part[-1]) + 1))
        return found

    def run(self, model: Model, hidden: Tensor, prompts: list[PromptRows]) -> list[Scored]:
        """Score rows of hidden bf16 [T, H]."""
        done = []
        for part in prompts:
            logits = model.logits(hidden, self._backend.from_host(part.rows))
            none = np.full(len(part.rows), -1, dtype=np.int32)
            inputs = DrawInputs(
                numbers=part.numbers,
                position=part.rows.astype(np.int64),
                draft_row=none,
                forced=part.tokens,
                top_n=part.request.params.prompt_logprobs or 0,
            )
            done.append(Scored(part.request, part.tokens, self._sampler.draw(logits, inputs), part.until))
        return done
