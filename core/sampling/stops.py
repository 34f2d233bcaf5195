"""Stop strings over text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Lets text through until a stop string is complete.

    Text that may be the beginning of a stop string is held back until it is decided, so released text is
    never taken back.  The first stop string to be complete ends the text, just before the string; of
    several that are complete at the same character, the longest.  So the result does not depend on how
    tokens cut the text.

    Args:
        stop: stop strings, none of them empty.
        min_tokens: a stop string whose last character comes with an earlier token is ordinary text.
    """

    def __init__(self, stop: Sequence[str], min_tokens: int = 0) -> None:
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take the text that one more token completes (possibly empty).

        Returns:
            Text that can be shown.  Once `matched` is set, nothing more is released.
        """
        self._num_tokens += 1
        if self._num_tokens < self._min_tokens:
            return self._release(self._held + text)
        return self._check(text)

    def finish(self, text: str = "") -> str:
        """End of the stream: take text that belongs to no further token; release what was held back."""
        enough = self._num_tokens >= self._min_tokens
        shown = self._check(text) if enough else self._held + text
        if self.matched is None and enough:
            shown += self._held
        self._held = ""
        return shown

    def _check(self, text: str) -> str:
        if self.matched is not None or not text:
            return ""
        pending = self._held + text
        best: tuple[int, int, str] | None = None
        for stop in self._stop:
            # Only ends inside the new text count: an earlier one has been passed over.
            start = pending.find(stop, max(0, len(self._held) - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        if best is None:
            return self._release(pending)
        self.matched, self._held = best[2], ""
        return pending[: best[1]]

    def _release(self, pending: str) -> str:
        """Keep the longest end of `pending` that is a proper beginning of a stop string; return the rest."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for size in range(min(longest, len(pending)), 0, -1):
            tail = pending[len(pending) - size :]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stop):
                self._held = tail
                return pending[:-size]
        self._held = ""
        return pending
