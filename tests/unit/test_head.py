"""The output head: how it is loaded, and tokens that a model draws without giving logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny import SLOTS, TinyModel

from tandem.backends.cpu.backend import CpuBackend
from tandem.contract.backend import Backend
from tandem.contract.types import CanonicalWeight, PackedWeight, WeightKind
from tandem.ops.head_sample import numbers

CHUNKS = [(slot, 0, 5) for slot in range(SLOTS)]
INDEX = (0, 4, -1, 9, 19, 7)


class Kinds(CpuBackend):
    """Writes down what kinds of weights it packs, by shape."""

    def __init__(self, use_native: bool) -> None:
        super().__init__(use_native)
        self._kinds: dict[tuple[int, ...], WeightKind] = {}

    def pack_weight(self, kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...]) -> PackedWeight:
        self._kinds[shape] = kind
        return super().pack_weight(kind, weight, shape)


class Older(Kinds):
    """Written for the contract before the kind came."""

    contract = (1, 1)


def draw(model: Any, backend: Backend, greedy: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens drawn by the model, and what `sample` draws from its logits."""
    rows = model.rows(CHUNKS)
    given = numbers(5, len(INDEX), greedy, filtered=not greedy)
    plain = [given[name] for name in ("temperature", "top_p", "top_k", "seed", "position", "filtered")]
    index = backend.from_host(np.array(INDEX, dtype=np.int32))
    min_p = torch.full((len(INDEX),), 0.01)
    with torch.no_grad():
        hidden = model.model.forward(model.step(rows, "prefill"))
        token = model.model.draw_tokens(hidden, index, *plain, greedy, min_p)
        logits = model.model.logits(hidden, index)
        return token, model.plan.bind("sample", "test")(logits, *plain, min_p)[0]


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "drawn"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "composites"])
def test_tokens_are_those_drawn_from_logits(tiny: Path, native: bool, greedy: bool) -> None:
    backend = CpuBackend(native)
    token, wanted = draw(TinyModel(backend, tiny), backend, greedy)
    assert token.dtype is torch.int32 and token.tolist() == wanted.tolist()
    assert token[2] == 0 if greedy else token[2] >= 0  # of a zero row all logits are 0


def test_a_backend_for_an_older_contract_gets_a_matrix(tiny: Path) -> None:
    found = {}
    for made in (Kinds, Older):
        backend = made(True)
        model = TinyModel(backend, tiny)
        head = model.model.head
        assert backend._kinds[head.shape] is head.kind
        assert (WeightKind.HEAD in backend._kinds.values()) == (made is Kinds)
        found[made] = head.kind, head.nbytes, draw(model, backend, greedy=True)[0].tolist()
    (kind, nbytes, tokens), (older, smaller, same) = found[Kinds], found[Older]
    assert (kind, older) == (WeightKind.HEAD, WeightKind.LINEAR) and tokens == same
    assert smaller == int(np.prod(head.shape)) * 2 < nbytes
