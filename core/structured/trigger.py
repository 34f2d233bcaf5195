"""Finding a sequence of tokens in a stream."""

from __future__ import annotations

from collections.abc import Sequence


class Trigger:
    """Knuth, Morris and Pratt's automaton: one step a token, whatever came before.

    Args:
        tokens: the sequence to find; at least one token.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self._shorter = [0] * len(self.tokens)  # length of the longest proper border of each prefix
        length = 0
        for index in range(1, len(self.tokens)):
            length = self.step(length, self.tokens[index])
            self._shorter[index] = length

    def step(self, matched: int, token: int) -> int:
        """How many of the first tokens end the stream now, after `matched` of them did and `token` came.

        The whole sequence is found when this is its length; do not step on from there.
        """
        while matched and self.tokens[matched] != token:
            matched = self._shorter[matched - 1]
        return matched + 1 if self.tokens[matched] == token else 0
