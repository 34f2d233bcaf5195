"""Grammars of running requests: moved past the tokens of a step, and the ends that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tandem.engine.ends import FAILED, GOES_ON, STOP
from tandem.engine.outputs import LiveRequest
from tandem.engine.plan import Bools, Int32
from tandem.engine.requests import RequestTable


def follow_grammars(
    table: RequestTable,
    live: Mapping[int, LiveRequest],
    slots: Int32,
    tokens: Int32,
    kept: Int32,
    reasons: Int32,
    fresh: Bools,
) -> None:
    """Move grammars past the tokens that a step keeps, which are not committed yet.

    A request whose grammar fails ends there.  One whose form is complete, while its end token is banned (below
    ``min_tokens``) or does not end it (``ignore_eos``), ends there too: nothing else could come.

    Args:
        table: the requests.
        live: running requests by slot.
        slots: int32 [n], distinct.
        tokens: int32 [n, m].
        kept, reasons: int32 [n], as `TokenEnds.cut` gave them; changed in place.
        fresh: bool [n], whose tokens count.
    """
    for place in np.flatnonzero(fresh & table.ruled[slots]).tolist():
        slot = int(slots[place])
        request = live[slot]
        guide = request.guide
        if guide is None:
            continue
        count = int(kept[place])
        given = tokens[place, :count].tolist()
        written = int(table.num_tokens[slot] - table.prompt_len[slot])
        if table.ignore_eos[slot] or written < table.min_tokens[slot]:
            kept[place] = _until_complete(table, request, given, written)
        else:
            kept[place] = guide.accept(given)
        if guide.failed is not None:
            reasons[place] = FAILED
        elif kept[place] < count or (reasons[place] in (GOES_ON, FAILED) and _over(table, request, written + count)):
            reasons[place] = STOP


def _until_complete(table: RequestTable, request: LiveRequest, tokens: Sequence[int], written: int) -> int:
    """Follow tokens up to the one that is the last by `_over`; returns how many."""
    for index, token in enumerate(tokens):
        if request.guide is None or not request.guide.accept([token]):
            return index
        if _over(table, request, written + index + 1):
            return index + 1
    return len(tokens)


def _over(table: RequestTable, request: LiveRequest, written: int) -> bool:
    """Whether only an end token could follow ``written`` tokens of output, and it would not end the request."""
    waits = table.ignore_eos[request.slot] or written < table.min_tokens[request.slot]
    return bool(waits) and request.guide is not None and request.guide.terminated
