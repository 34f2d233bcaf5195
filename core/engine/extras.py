"""What a request brings that is not a number by slot; the hot path never touches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tandem.engine.draw_rules import DrawRules

if TYPE_CHECKING:
    from tandem.engine.request_state import RequestState

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RequestExtras:
    """Parts of a request that are not numbers by slot.

    Args:
        stop_strings: texts that end the output.
        stop_token_ids: tokens that end the output, besides the model's own.
        logprobs: alternatives to report per token, None for no logprobs.
        processed_logprobs: whether logprobs of the filtered distribution are reported too.
        logit_bias: token id -> number added to its logit.
        rules: penalties, bad words, forced tokens and more that draws follow.
        embed_rows: [N, H] float32, or uint16 holding bfloat16 bits: rows that replace embeddings.
        embed_positions: int32 [N], the positions they replace.
    """

    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    processed_logprobs: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    rules: DrawRules = field(default_factory=DrawRules)
    embed_rows: npt.NDArray[np.generic] | None = None
    embed_positions: Int32 | None = None

    def to_fields(self) -> dict[str, Any]:
        """The values by name; `RequestState` calls them the same."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def of(cls, state: RequestState) -> RequestExtras:
        """The extras of a portable state."""
        return cls(**{item.name: getattr(state, item.name) for item in fields(cls)})
