"""Which token is a request's last, as far as numbers decide: end tokens and lengths, for whole steps at once."""

from __future__ import annotations

import numpy as np

from tandem.engine.plan import Int32
from tandem.engine.requests import RequestTable

GOES_ON, STOP, LENGTH, FAILED = 0, 1, 2, 3
REASONS = {STOP: "stop", LENGTH: "length"}


class TokenEnds:
    """Finds ends in the tokens of a step.

    Args:
        table: the requests.
        eos_id: the model's end token.
    """

    def __init__(self, table: RequestTable, eos_id: int) -> None:
        self._table, self._eos_id = table, eos_id

    def cut(self, slots: Int32, tokens: Int32, counts: Int32) -> tuple[Int32, Int32]:
        """Cut emitted tokens at the first that ends its request.

        Args:
            slots: int32 [n], distinct; their tokens are not committed yet.
            tokens: int32 [n, m].
            counts: int32 [n], tokens of each row that count; the first -1 among them cuts too.

        Returns:
            How many tokens are left, int32 [n], and whether the request ends with them, int32 [n]: `GOES_ON`, `STOP`,
            `LENGTH`, or `FAILED` where the next could not be drawn.
        """
        # By column and place: numpy is slow at reducing short rows.
        table, drawn = self._table, np.ascontiguousarray(tokens.T)
        column = np.arange(len(drawn), dtype=np.int32)[:, None]
        odd = ((drawn == self._eos_id) | (drawn < 0) & (column < counts)).any(axis=0)
        odd |= table.has_stops[slots]
        odd |= table.limit[slots] - table.num_tokens[slots] <= len(drawn)
        places = np.flatnonzero(odd)
        kept, reasons = counts.astype(np.int32), np.full(len(slots), GOES_ON, dtype=np.int32)
        if len(places):  # few; nothing of the others can end them
            found = self._cut(slots[places], drawn[:, places], counts[places])
            kept[places], reasons[places] = found
        return kept, reasons

    def _cut(self, slots: Int32, drawn: Int32, counts: Int32) -> tuple[Int32, Int32]:
        """As `cut`, with tokens int32 [m, n]."""
        table, column = self._table, np.arange(len(drawn), dtype=np.int32)[:, None]
        written = table.num_tokens[slots] - table.prompt_len[slots] + 1 + column
        stop = (drawn == self._eos_id) & ~table.ignore_eos[slots]
        for place in np.flatnonzero(table.has_stops[slots]).tolist():
            stop[:, place] |= np.isin(drawn[:, place], table.extras(int(slots[place])).stop_token_ids)
        stop &= written >= table.min_tokens[slots]
        within, there = column < counts, drawn >= 0
        valid = np.logical_and.accumulate(within & there)
        ends = (stop | (written >= table.max_tokens[slots])) & valid
        passed = np.logical_or.accumulate(ends)
        ended = passed[-1]
        kept = (valid & ~passed).sum(axis=0, dtype=np.int32) + ended
        at_last = stop[np.where(ended, kept - 1, 0), np.arange(len(slots))]
        otherwise = np.where((within & ~there).any(axis=0), FAILED, GOES_ON)
        return kept, np.where(ended, np.where(at_last, STOP, LENGTH), otherwise).astype(np.int32)
