"""What crosses a backend's boundary comes back bit by bit: weights, quantised activations, cache blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.runner import implementations, plan_of

from tandem.conformance.calls import bits
from tandem.contract.cases import Draw, WeightInput, materialise
from tandem.contract.types import CacheKind, KVLayout, QFormat, QTensor, WeightKind

SHAPES = {
    WeightKind.LINEAR: (72, 96),
    WeightKind.GROUP: (2, 64, 96),
    WeightKind.EXPERTS: (3, 40, 64),
    WeightKind.EMBED: (17, 40),
    WeightKind.HC: (24, 128),
}
STORED = [
    (WeightKind.LINEAR, QFormat.BF16),
    (WeightKind.LINEAR, QFormat.F32),
    (WeightKind.LINEAR, QFormat.FP8_BLOCK32),
    (WeightKind.GROUP, QFormat.FP8_BLOCK32),
    (WeightKind.EXPERTS, QFormat.MXFP4),
    (WeightKind.EXPERTS, QFormat.FP8_BLOCK32),
    (WeightKind.EMBED, QFormat.BF16),
    (WeightKind.HC, QFormat.F32),
]


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize(("kind", "fmt"), STORED, ids=lambda value: value.value)
def test_packed_weights_unpack_to_the_stored_bits(kind: WeightKind, fmt: QFormat, implementation: str) -> None:
    given: WeightInput = Draw(1).weight(kind, fmt, *SHAPES[kind])
    data, scale = given.weight.data.clone(), given.weight.scale
    backend = plan_of(implementation).backend
    packed = backend.pack_weight(kind, given.weight, given.shape)
    back = backend.unpack_weight(packed)
    assert (packed.kind, packed.fmt, packed.shape, back.fmt) == (kind, fmt, given.shape, fmt)
    back_data = back.data.view(torch.uint8) if fmt.group else back.data
    assert torch.equal(bits(back_data), bits(data))
    assert scale is None or torch.equal(back.scale.view(torch.uint8), scale)


@pytest.mark.parametrize("implementation", implementations())
def test_every_e4m3_code_survives_the_backend_layout(implementation: str) -> None:
    """All 254 numbers with scales from the smallest to the largest, and a NaN."""
    backend = plan_of(implementation).backend
    numbers = [c for c in range(256) if c & 0x7F != 0x7F]
    codes = torch.tensor(numbers + [0x7F, 0x00], dtype=torch.uint8).repeat(5, 1)
    scales = torch.tensor([20, 100, 127, 150, 240], dtype=torch.uint8).unsqueeze(-1).repeat(1, 8)
    q = QTensor(codes, scales, QFormat.MXFP8, (5, 256))
    back = backend.to_canonical(backend.from_canonical(q))
    assert torch.equal(back.data, codes) and torch.equal(back.scale, scales) and back.shape == q.shape
    assert back.layout == "canonical"


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize("fmt", [QFormat.MXFP8, QFormat.MXFP4, QFormat.NVFP4], ids=lambda fmt: fmt.value)
def test_cache_blocks_export_import_and_copy(fmt: QFormat, implementation: str) -> None:
    backend = plan_of(implementation).backend
    cache = materialise(Draw(2).cache(fmt, 64, 4, 6), backend, 0xFF)
    before = backend.kv_export(cache, np.arange(6))
    assert before.shape == (6, cache.layout.block_bytes) and before.dtype == np.uint8
    assert (before[3] == cache.data[12:16].numpy().ravel()).all()
    backend.kv_copy(cache, np.array([3, 0]), np.array([1, 5]))
    backend.kv_import(cache, np.array([2]), before[4:5])
    assert (backend.kv_export(cache, np.arange(6)) == before[[0, 3, 4, 3, 4, 0]]).all()
    before[0] = 7  # an export is a copy
    assert not (backend.kv_export(cache, np.array([0])) == 7).all()


def test_bytes_per_entry_at_official_dimensions() -> None:
    """e2m1 halves a byte and shares a scale byte over 16 or 32 channels; e4m3 takes a byte and shares over 32."""
    sizes = {
        KVLayout(CacheKind.MAIN, QFormat.NVFP4, 512, 128).entry_bytes: 512 // 2 + 512 // 16,
        KVLayout(CacheKind.INDEX, QFormat.MXFP4, 128, 128).entry_bytes: 128 // 2 + 128 // 32,
        KVLayout(CacheKind.WINDOW, QFormat.MXFP8, 512, 64).entry_bytes: 512 + 512 // 32,
    }
    assert all(have == want for have, want in sizes.items()) and set(sizes) == {288, 68, 528}
