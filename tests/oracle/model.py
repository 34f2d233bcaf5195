"""The whole text model on one sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import hc
from .arith import Arith
from .attention import Attention, Shared
from .choices import Choices, Margins
from .engram import Engram
from .moe import Moe
from .quant import Weights
from .settings import read_settings

Step = tuple[int, str]
"""A layer and one of "engram", "attn", "ffn"; the last step is (number of layers, "head")."""
State = tuple[Tensor, Tensor]
"""The trunk and the `pre` made by the sub-layer before."""


@dataclass
class Result:
    """One forward.

    logits: float32 [T, V] of every position. choices, margins: the discrete decisions that were followed.
    scores: index scores per index-source layer, float32 [T, C] with -inf where an entry was not eligible.
    steps: (trunk bf16 [T, m, D], pre [T, m]) as the oracle computed it on the way into each step.
    """

    logits: Tensor
    choices: Choices
    margins: Margins
    scores: dict[int, Tensor]
    steps: dict[Step, State]


class Oracle:
    """Judge of the text model. Tensors have official names and formats; draft and vision are ignored."""

    def __init__(
        self,
        config: dict[str, Any],
        tensors: dict[str, Tensor],
        compressed_map: np.ndarray,
        accumulate: torch.dtype = torch.float32,
        reorder_seed: int | None = None,
    ) -> None:
        self.settings = read_settings(config)
        self._arith = Arith(accumulate, reorder_seed)
        self._weights = Weights(tensors, self._arith)
        self.engram = Engram(self.settings, self._weights, self._arith, compressed_map)
        self._attention = Attention(self.settings, self._weights, self._arith)
        self._moe = Moe(self.settings, self._weights, self._arith)

    def _embed(self, token_ids: list[int], embeds: dict[int, Tensor]) -> Tensor:
        rows = self._weights.raw("embed.weight")[torch.tensor(token_ids)]
        for position, row in embeds.items():
            rows[position] = row.to(torch.bfloat16)
        return rows

    def _sublayer(
        self, layer: int, kind: str, trunk: Tensor, pre: Tensor, roles: Tensor, shared: Shared
    ) -> tuple[Tensor, Tensor]:
        """One of "attn" or "ffn" with its hyper-connections. `pre` was made by the sub-layer before."""
        arith, prefix = self._arith, f"layers.{layer}"
        next_pre, post, comb = hc.mixes(arith, self._weights, self.settings, f"{prefix}.hc_{kind}", trunk)
        norm = self._weights.get(f"{prefix}.{kind}_norm.weight")
        x = arith.rms_norm(hc.collapse(arith, pre, trunk), norm, self.settings.norm_eps)
        y = self._attention(layer, x, shared) if kind == "attn" else self._moe(layer, x, roles, shared)
        return hc.spread(arith, post, comb, y, trunk), next_pre

    def bound_windows(self, layers: range, position: int) -> None:
        """Hide window keys below a position in some layers, as bounded replay does."""
        self._attention.window_first = dict.fromkeys(layers, position)

    @torch.no_grad()
    def forward(
        self,
        token_ids: list[int],
        roles: list[int] | None = None,
        choices: Choices | None = None,
        embeds: dict[int, Tensor] | None = None,
        entries: dict[Step, State] | None = None,
    ) -> Result:
        """Run a request from its first token.

        roles: 0 text, 2 image, 3 start, 4 end, 5 newline; every non-zero one is part of an image span.
        choices: decisions to follow instead of the oracle's own. embeds: position -> embedding row [D].
        entries: states to go on from instead of the oracle's own. With the states of another implementation,
        result.steps holds the oracle's answer to each of its steps alone, free of inherited rounding.
        Raises ValueError on an empty sequence, an id out of range, or an imposed choice that cannot be.
        """
        settings, arith = self.settings, self._arith
        roles = [0] * len(token_ids) if roles is None else roles
        if not token_ids or len(roles) != len(token_ids):
            raise ValueError(f"{len(token_ids)} tokens with {len(roles)} roles")
        if min(token_ids) < 0 or max(token_ids) >= settings.vocab_size:
            raise ValueError(f"a token id lies outside 0..{settings.vocab_size - 1}")
        arith.restart()
        shared = Shared(given=choices or Choices())
        role_row = torch.tensor(roles)
        steps: dict[Step, State] = {}

        def enter(layer: int, name: str, state: State) -> State:
            steps[layer, name] = state
            trunk, pre = (entries or {}).get((layer, name), state)
            return trunk, arith.wide(pre)

        pre = torch.zeros(len(token_ids), settings.hc_mult, dtype=arith.dtype)
        pre[:, 0] = 1
        state = self._embed(token_ids, embeds or {})[:, None].repeat(1, settings.hc_mult, 1), pre
        for layer in range(settings.n_layers):
            if layer in settings.engram_layers:
                trunk, pre = enter(layer, "engram", state)
                state = self.engram.apply(layer, trunk, token_ids, roles), pre
            for kind in ("attn", "ffn"):
                state = self._sublayer(layer, kind, *enter(layer, kind, state), role_row, shared)
        trunk, pre = enter(settings.n_layers, "head", state)
        x = hc.collapse(arith, pre, trunk)
        x = arith.rms_norm(x, self._weights.get("norm.weight"), settings.norm_eps)
        logits = arith.linear(x, self._weights.get("head.weight")).to(torch.float32)
        return Result(logits, shared.made, shared.margins, shared.scores, steps)
