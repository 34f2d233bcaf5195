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
        table, column = self._table, np.arange(tokens.shape[1], dtype=np.int32)
        known = table.num_tokens[slots]
        written = (known - table.prompt_len[slots])[:, None] + column + 1
        stop = (tokens == self._eos_id) & ~table.ignore_eos[slots][:, None]
        for place in np.flatnonzero(table.has_stops[slots]).tolist():
            stop[place] |= np.isin(tokens[place], table.extras(int(slots[place])).stop_token_ids)
        stop &= written >= table.min_tokens[slots][:, None]
        length = written >= table.max_tokens[slots][:, None]
        within = column < counts[:, None]
        missing = within & (tokens < 0)
        valid = np.where(missing.any(1), missing.argmax(1), counts).astype(np.int32)
        ends = (stop | length) & (column < valid[:, None])
        ended, last = ends.any(1), ends.argmax(1)
        kept = np.where(ended, last + 1, valid).astype(np.int32)
        at_last = stop[np.arange(len(slots)), last]
        otherwise = np.where(missing.any(1), FAILED, GOES_ON)
        reasons = np.where(ended, np.where(at_last, STOP, LENGTH), otherwise).astype(np.int32)
        return kept, reasons
