"""Drawing tokens: logit edits, sampling and logprobs as bound ops, with their host inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tandem.contract.backend import HostFuture
from tandem.contract.plan import Plan

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class DrawInputs:
    """Host arrays of the rows that draw a token, all [N].

    Args:
        temperature, top_p: float32; top_k: int32; seed: int64.
        position: int64, absolute position of the token to be drawn.
        edits: (row, token, value) triples added to the logits; value -inf bans a token.
        top_n: most logprob alternatives that any row wants, 0 for none.
    """

    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]
    seed: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    edits: Sequence[tuple[int, int, float]] = ()
    top_n: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step drew; host copies are under way.

    Args:
        tokens: int32 [N] on the device.
        host_tokens, raw, processed: futures of tokens, raw and processed logprobs of the drawn tokens.
        top: futures of (ids, raw logprobs) [N, n] of the likeliest tokens; None where nobody asked.
    """

    tokens: Tensor
    host_tokens: HostFuture
    raw: HostFuture
    processed: HostFuture
    top: tuple[HostFuture, HostFuture] | None


class Sampler:
    """Binds the sampling ops once."""

    def __init__(self, plan: Plan) -> None:
        self._backend = plan.backend
        self._sample = plan.bind("sample", "sampler")
        self._adjust = plan.bind("adjust_logits", "sampler")
        self._process = plan.bind("process_logits", "sampler")
        self._top = plan.bind("top_logprobs", "sampler")

    def draw(self, logits: Tensor, inputs: DrawInputs) -> Drawn:
        """Draw one token per row of logits f32 [N, V]; edits change the logits in place."""
        to_device, to_host = self._backend.from_host, self._backend.to_host
        if inputs.edits:
            rows, tokens, values = zip(*inputs.edits, strict=True)
            self._adjust(
                logits,
                to_device(np.array(rows, dtype=np.int32)),
                to_device(np.array(tokens, dtype=np.int32)),
                to_device(np.array(values, dtype=np.float32)),
            )
        temperature, top_p = to_device(inputs.temperature), to_device(inputs.top_p)
        top_k = to_device(inputs.top_k)
        filtered = bool((inputs.top_p < 1.0).any() or (inputs.top_k > 0).any())
        token, raw, processed = self._sample(
            logits, temperature, top_p, top_k, to_device(inputs.seed), to_device(inputs.position), filtered
        )
        top = None
        if inputs.top_n:
            ones = to_device(np.ones_like(inputs.temperature))
            unfiltered = to_device(np.full_like(inputs.top_k, -1))
            ids, values = self._top(
                self._process(logits, ones, ones, unfiltered, False), min(inputs.top_n, logits.shape[1])
            )
            top = to_host(ids), to_host(values)
        return Drawn(token, to_host(token), to_host(raw), to_host(processed), top)
