"""Rows that decoder layers keep, where quantised rows do not lie one after another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from tandem.backends.cuda import activations
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend
from tandem.contract.types import HcMix, QFormat, QTensor
from tandem.model.narrowing import Entering, Narrowing


def test_kept_rows_of_packed_activations() -> None:
    generator = torch.Generator().manual_seed(1)

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(0, 0x7F, shape, dtype=torch.uint8, generator=generator)

    plain = QTensor(codes(150, 96), codes(150, 3), QFormat.MXFP8, (150, 96))
    values = torch.randn((150, 4, 96), generator=generator).bfloat16()
    mix = HcMix(torch.randn(150, 4), torch.randn(150, 4), torch.randn(150, 4, 4))
    caches: Any = SimpleNamespace(spec=SimpleNamespace(window_block=16))
    narrowing = Narrowing(Plan(open_backend("cuda")), cast(Any, SimpleNamespace(sliding_window=32)), caches)
    index = torch.tensor([149, 0, 128, 31, 32], dtype=torch.int32)
    at = Entering(values, values[:, 0].contiguous(), activations.from_canonical(plain), mix)
    kept = narrowing.entering(at, index)
    assert kept.xq.layout == activations.LAYOUT and kept.xq.shape == (5, 96)
    found = activations.to_canonical(kept.xq)
    assert torch.equal(found.data, plain.data[index]) and torch.equal(found.scale, plain.scale[index])
    assert torch.equal(kept.trunk, values[index]) and torch.equal(kept.mix.comb, mix.comb[index])
