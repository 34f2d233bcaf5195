"""What a request adds to its logits: bias, penalties and bans of end tokens, from the tokens before the next one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tandem.sampling.params import SamplingParams

Int32 = npt.NDArray[np.int32]
BANNED = float("-inf")


class LogitRules:
    """The logit edits of one request.

    Args:
        params: bias, penalties and the least output length.
        prompt_len: tokens of the prompt.
        ending: tokens that would end the output, banned before ``min_tokens``.
    """

    def __init__(self, params: SamplingParams, prompt_len: int, ending: Sequence[int]) -> None:
        self._params, self._prompt_len, self._ending = params, prompt_len, tuple(ending)

    @property
    def any(self) -> bool:
        """Whether the request edits its logits at all."""
        params = self._params
        return bool(params.logit_bias or params.min_tokens) or self._penalizes

    @property
    def _penalizes(self) -> bool:
        params = self._params
        return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0

    def edits(self, row: int, written: int) -> list[tuple[int, int, float]]:
        """(row, token, value) to add, each token once.

        Args:
            row: where they go.
            written: output tokens before the one to be drawn, drafts among them.
        """
        values = dict(self._params.logit_bias)
        if written < self._params.min_tokens:
            values.update(dict.fromkeys(self._ending, BANNED))
        return [(row, token, value) for token, value in sorted(values.items())]

    def penalties(self, row: int, known: Int32, drafts: Sequence[int]) -> list[tuple[int, int, float, float]]:
        """(row, token, repetition, minus) of tokens seen before, each once, by token.

        Repetition counts tokens of the prompt too, presence and frequency those of the output; drafts are output.

        Args:
            row: where they go.
            known: committed tokens, prompt included.
            drafts: tokens between these and the one to be drawn.
        """
        params = self._params
        if not self._penalizes:
            return []
        output = np.concatenate((known[self._prompt_len :], np.array(drafts, dtype=np.int32)))
        found: dict[int, tuple[float, float]] = {}
        if params.repetition_penalty != 1:
            seen = np.unique(np.concatenate((known[: self._prompt_len], output)))
            found = dict.fromkeys(seen.tolist(), (params.repetition_penalty, 0.0))
        tokens, counts = np.unique(output, return_counts=True)
        minus = np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * counts.astype(np.float32)
        for token, less in zip(tokens.tolist(), minus.tolist(), strict=True):
            found[token] = (params.repetition_penalty, less)
        return [(row, token, *values) for token, values in sorted(found.items())]
