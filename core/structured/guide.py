"""Which tokens may come next in one request's output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

import llguidance
import numpy as np
from numpy.typing import NDArray

from tandem.errors import RequestError
from tandem.structured.grammars import message
from tandem.structured.spec import StructuredSpec
from tandem.structured.trigger import Trigger

Row = NDArray[np.int32]

_MAX_ROWS = 256  # rows kept between two accepts; drafting and verifying ask for the same ones


class _Phase(Enum):
    FREE = "before the trigger"
    FORCED = "inside a forced trigger"
    GRAMMAR = "inside the grammar"


class _Place(NamedTuple):
    """Where a token sequence has led; `progress` counts trigger tokens, `ended` says that EOS came."""

    phase: _Phase
    progress: int
    ended: bool


class Guide:
    """The form of one request's output, followed token by token.

    Accept every output token once, in order; how they are grouped makes no difference.  Ask for masks
    in between.  A guide belongs to one thread at a time.

    A mask row is int32 [words]: bit v % 32, least significant first, of word v // 32 allows token v.
    Before the trigger every bit is set.  Inside the grammar the end token is allowed exactly where the
    output may end, and where bytes are forced, only the token that the tokenizer makes of them.

    Nothing here raises for what a grammar or a token does: `failed` is set instead, every later mask
    allows everything and no later token is accepted.  The other requests go on.

    Args:
        template: a matcher at the start of the grammar; copied, never moved.
        spec: for the trigger.
        vocab_size: tokens of the model, padding included.
        eos_id: the model's end token.

    Attributes:
        words: int32 words of a mask row, ceil(vocab_size / 32).
        failed: why this request cannot go on; None while it can.
    """

    def __init__(self, template: llguidance.LLMatcher, spec: StructuredSpec, vocab_size: int, eos_id: int) -> None:
        self.words = -(-vocab_size // 32)
        self.failed: RequestError | None = None
        self._template = template
        self._vocab_size, self._eos_id = vocab_size, eos_id
        self._trigger = Trigger(spec.trigger_token_ids)
        self._bound = spec.bound_token_id
        self._all = np.full(self.words, -1, dtype=np.int32)
        self._all.flags.writeable = False
        self._rows: dict[tuple[int, ...], Row | RequestError] = {}
        self._restart()

    @property
    def active(self) -> bool:
        """Whether the grammar restricts the next token: False in the free part and after a failure."""
        place = self._trail[0][0] if self._trail else self._place
        return self.failed is None and place.phase is not _Phase.FREE

    @property
    def terminated(self) -> bool:
        """Whether the accepted tokens are complete: only the end token can come, or it came already."""
        with self._at_accepted():
            return self.failed is None and self._complete()

    def accept(self, tokens: Sequence[int]) -> int:
        """Follow output tokens.  Returns how many the form took; fewer than given only if it failed."""
        with self._at_accepted():
            for index, token in enumerate(tokens):
                error = self.failed or self._advance(token)
                if error is not None:
                    # Behind a dead end that was met walking over drafts any token may have been drawn.
                    row = self._rows.get(())
                    self.failed = row if isinstance(row, RequestError) else error
                    return index
                # What was asked for behind this token, while drafting, is asked for again.
                self._rows = {path[1:]: row for path, row in self._rows.items() if path[:1] == (token,)}
            return len(tokens)

    def replay(self, tokens: Sequence[int]) -> None:
        """Start anew and follow these tokens, after a preemption or in another engine."""
        self._restart()
        self.accept(tokens)

    def masks(self, drafts: Sequence[int]) -> Row:
        """Masks of the next token and of the tokens after each draft; the state stays.

        Returns:
            int32 [1 + len(drafts), words].  Row i is the mask after the accepted tokens and the first i
            drafts.  Once a draft is not allowed by the row before it, it cannot be accepted and the rows
            behind it are never drawn from: they allow everything.
        """
        rows = np.full((1 + len(drafts), self.words), -1, dtype=np.int32)
        with self._at_accepted():
            row = self._row()
            if isinstance(row, RequestError):
                self.failed = row
                return rows
            rows[0] = row
            for index, token in enumerate(drafts):
                if not self._push(token):
                    break
                row = self._row()
                if isinstance(row, RequestError):  # met again, and reported, if the draft is accepted
                    break
                rows[index + 1] = row
        return rows

    def walker(self) -> DraftWalker:
        """For drafting: steps ahead of the accepted tokens and back.  Whatever else the guide is asked rewinds it."""
        return DraftWalker(self)

    def _restart(self) -> None:
        self.failed = None
        self._place = _Place(_Phase.FREE if self._trigger.tokens else _Phase.GRAMMAR, 0, False)
        self._matcher = self._template.deep_copy()
        self._fed: list[int] = []  # what the matcher consumed
        self._path: list[int] = []  # tokens walked beyond the accepted ones
        self._trail: list[tuple[_Place, int]] = []  # before each of them: place, number of fed tokens
        self._rows.clear()

    @contextmanager
    def _at_accepted(self) -> Iterator[None]:
        """Work from the accepted tokens, and leave nothing walked behind."""
        self._rewind()
        try:
            yield
        finally:
            self._rewind()

    def _rewind(self) -> None:
        self._lost = False
        if not self._trail:
            return
        self._place, fed = self._trail[0]
        surplus = len(self._fed) - fed
        del self._fed[fed:]
        self._path.clear()
        self._trail.clear()
        if self._matcher.is_error() or (surplus and not self._matcher.rollback(surplus)):
            # An error ends a matcher for good; this one failed on a token that was only walked over.
            self._matcher = self._template.deep_copy()
            if self._fed:
                self._matcher.consume_tokens(self._fed)

    def _push(self, token: int) -> bool:
        """Walk over a token that the current row allows; if it does not, the walk is lost until the next rewind."""
        row = self._row()
        inside = self.failed is None and not self._lost and 0 <= token < self._vocab_size
        if not inside or isinstance(row, RequestError) or not (int(row[token // 32]) >> (token % 32)) & 1:
            self._lost = True
            return False
        self._trail.append((self._place, len(self._fed)))
        self._path.append(token)
        self._lost = self._advance(token) is not None
        return not self._lost

    def _advance(self, token: int) -> RequestError | None:
        """Move by one token; an error if it does not fit."""
        if not 0 <= token < self._vocab_size:
            return _error(f"token {token} is outside the vocabulary of {self._vocab_size}")
        phase, progress, _ = self._place
        if phase is _Phase.GRAMMAR:
            return self._advance_grammar(token)
        if phase is _Phase.FORCED and token != self._trigger.tokens[progress]:
            return _error(f"token {token} came where the trigger's token {self._trigger.tokens[progress]} is forced")
        progress = progress + 1 if phase is _Phase.FORCED else self._trigger.step(progress, token)
        if progress == len(self._trigger.tokens):
            phase, progress = _Phase.GRAMMAR, 0
        elif phase is _Phase.FREE and token == self._bound:
            phase, progress = _Phase.FORCED, 0
        self._place = _Place(phase, progress, False)
        return None

    def _advance_grammar(self, token: int) -> RequestError | None:
        if token == self._eos_id and self._complete():
            self._place = self._place._replace(ended=True)
            return None
        if self._place.ended:
            return _error(f"token {token} came behind the end token")
        taken = self._matcher.try_consume_tokens([token])
        if self._matcher.is_error():
            return _error(message(self._matcher.get_error()))
        if not taken:
            return _error(f"token {token} is not allowed behind {len(self._fed)} tokens of it")
        self._fed.append(token)
        if token == self._eos_id:
            self._place = self._place._replace(ended=True)
        return None

    def _complete(self) -> bool:
        if self._place.phase is not _Phase.GRAMMAR:
            return False
        return self._place.ended or (self._matcher.is_stopped() and self._matcher.is_accepting())

    def _walked_row(self) -> Row:
        row = self._all if self._lost else self._row()
        return self._all if isinstance(row, RequestError) else row

    def _row(self) -> Row | RequestError:
        """The mask where the walk stands."""
        key = tuple(self._path)
        row = self._rows.get(key)
        if row is None:
            row = self._computed_row()
            if len(self._rows) < _MAX_ROWS:
                self._rows[key] = row
        return row

    def _computed_row(self) -> Row | RequestError:
        if self.failed is not None or self._place.phase is _Phase.FREE:
            return self._all
        if self._place.phase is _Phase.FORCED:
            return self._only(self._trigger.tokens[self._place.progress])
        if self._complete():
            return self._only(self._eos_id)
        data = self._matcher.compute_bitmask()
        if self._matcher.is_error():  # then the mask is the end token alone, whether it fits or not
            return _error(message(self._matcher.get_error()))
        row = np.frombuffer(data, dtype="<i4", count=self.words)
        return row if row.any() else _error("no token of the vocabulary can follow")

    def _only(self, token: int) -> Row:
        row = np.zeros(self.words, dtype=np.uint32)
        row[token // 32] = 1 << (token % 32)
        return row.view(np.int32)


class DraftWalker:
    """Steps ahead of a guide's accepted tokens while drafts are chosen."""

    def __init__(self, guide: Guide) -> None:
        self._guide = guide
        self.rewind()

    def mask(self) -> Row:
        """int32 [words], read-only: what may follow the pushed tokens; everything once one was not allowed."""
        return self._guide._walked_row()

    def push(self, token: int) -> bool:
        """Step over a token.  False if the mask does not allow it; the walk is lost then, until `rewind`."""
        return self._guide._push(token)

    def rewind(self) -> None:
        """Back to the accepted tokens."""
        self._guide._rewind()


def _error(why: str) -> RequestError:
    return RequestError(
        "the output cannot be kept to the form that was asked for",
        where="structured output",
        why=why,
        fix="make the grammar simpler, or check that it can be completed from every state",
    )
