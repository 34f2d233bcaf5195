"""Bounded replay: decoder layers run on the last tokens of a prompt only.

The decoder half (`TextConfig.n_prefill_layer` and after) gets all it knows of distant tokens through one cache of
compressed keys, which its first layer makes from the encoder's output.  So a prompt's early rows need not go
through the decoder at all, if it is accepted that decoder windows begin at the first row that does:

* ``off``: every row runs through every layer.
* ``compact``: rows before ``prompt_len - keep`` stop at the boundary, after their compressed keys are written.
* ``mask``: every row runs, and decoder windows show what they would show in ``compact``; for comparison only.

``mask`` and ``compact`` agree bit for bit on kept rows; both differ from ``off`` when the prompt is longer than
``keep``.  The bound depends on the length of the prompt alone, so chunks, batches, preemption and a move to
another engine change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tandem.errors import ConfigError, RequestError
from tandem.model.config import TextConfig
from tandem.options import MODES

Int32 = npt.NDArray[np.int32]


class HostKept(NamedTuple):
    """Rows of one step that go on into the decoder layers, on the host; see `tandem.model.step.KeptRows`."""

    rows: Int32
    place: Int32
    chunk_start: Int32
    chunk_end: Int32


@dataclass(frozen=True, slots=True)
class Replay:
    """How decoder layers treat prompts.

    Args:
        mode: one of `MODES`.
        keep: rows at the end of a prompt that run through all layers; 0 in mode ``off``.
    """

    mode: str = "off"
    keep: int = 0

    @property
    def bounded(self) -> bool:
        """Whether decoder windows have a bound of their own."""
        return self.mode != "off"

    def first(self, prompt_len: int) -> int:
        """Lowest position whose row runs through the decoder layers."""
        return max(0, prompt_len - self.keep) if self.bounded else 0

    def reusable(self, prompt_len: int) -> int:
        """Most leading tokens of a prompt that may come from stored state without changing a bit.

        Kept rows must all be computed for this prompt, as the decoder windows of another were bounded
        elsewhere.  In exchange no decoder window of the reused tokens is ever read.
        """
        return self.first(prompt_len) if self.bounded else prompt_len

    def kept(self, starts: Int32, num_rows: Int32, prompt_len: Int32) -> HostKept | None:
        """Rows of a step that go on, from its entries (each int32 [n]); None when all do, or in ``mask``.

        Args:
            starts: position of each entry's first row; for rows after the prompt any value past it.
            num_rows: rows of each entry.
            prompt_len: length of each entry's prompt.
        """
        if self.mode != "compact":
            return None
        dropped = np.clip(prompt_len - self.keep - starts, 0, num_rows)
        if not np.any(dropped):
            return None
        left = num_rows - dropped
        ends = np.cumsum(left, dtype=np.int32)
        count, total = int(ends[-1]), int(np.sum(num_rows))
        # Row i of the kept ones was row i + (rows dropped up to and in its entry).
        rows: Int32 = np.arange(count, dtype=np.int32) + np.repeat(np.cumsum(dropped, dtype=np.int32), left)
        place = np.full(total, -1, dtype=np.int32)
        place[rows] = np.arange(count, dtype=np.int32)
        return HostKept(rows, place, np.repeat((ends - left).astype(np.int32), left), np.repeat(ends, left))

    def check_request(self, prompt_logprobs: int | None) -> None:
        """Refuse what cannot be had of rows that stop at the boundary.

        Raises:
            RequestError: logprobs of prompt tokens are asked for.
        """
        if self.bounded and prompt_logprobs is not None:
            raise RequestError(
                "logprobs of prompt tokens cannot be given",
                where="prompt_logprobs",
                why=f"model.swa_replay is '{self.mode}': only the last {self.keep} tokens of a prompt run through "
                "all layers",
                fix="leave prompt_logprobs out, or set model.swa_replay to off",
            )


def plan_replay(mode: str, keep: int | None, text: TextConfig, rollback: int) -> Replay:
    """Check the options against the model.

    Args:
        mode: one of `MODES`.
        keep: rows kept of a prompt; None for the least.
        text: the model.
        rollback: rows that may be taken back (`tandem.cache.tables.WindowGeometry.rollback`).

    Raises:
        ConfigError: the mode is unknown, the model has no decoder half that could be narrowed, or keep is less
            than the window and the rollback.
    """
    if mode not in MODES:
        raise _refused("swa_replay", mode, f"it must be one of {', '.join(MODES)}", "correct it")
    if mode == "off":
        if keep is not None:
            raise _refused("swa_keep", keep, "model.swa_replay is off", "leave it out, or choose mask or compact")
        return Replay()
    _check_topology(mode, text)
    least = text.sliding_window + rollback
    if keep is not None and keep < least:
        raise _refused(
            "swa_keep",
            keep,
            f"it must be at least {least}: the window of {text.sliding_window} tokens and {rollback} that may be "
            "taken back",
            f"raise it to {least} or leave it out",
        )
    return Replay(mode, least if keep is None else keep)


def _check_topology(mode: str, text: TextConfig) -> None:
    boundary = text.n_prefill_layer
    later = [layer for layer in text.kv_source_layer_ids if layer > boundary]
    if boundary in (0, text.num_hidden_layers):
        why = "the model has no encoder half and decoder half"
    elif later:
        why = f"layer {later[0]} makes compressed keys from decoder rows, which are needed for all tokens"
    else:
        return
    raise _refused("swa_replay", mode, why, "set it to off for this model")


def _refused(name: str, value: object, why: str, fix: str) -> ConfigError:
    return ConfigError(
        "bounded replay cannot be used as configured",
        where=f"model.{name} = {value!r}",
        why=why,
        fix=fix,
    )
