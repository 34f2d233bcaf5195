"""Level L0: what crosses the boundary of a backend comes back bit by bit: weights, activations, caches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tandem.conformance.calls import bits, read_quantised, read_weight
from tandem.conformance.compare import Mismatch
from tandem.contract.backend import Backend
from tandem.contract.cases import Draw, WeightInput, materialise
from tandem.contract.types import CANONICAL, CanonicalWeight, QFormat, QTensor, WeightKind
from tandem.errors import LayoutError

Check = Callable[[Backend], None]

SHAPES = {
    WeightKind.LINEAR: (72, 96),
    WeightKind.HEAD: (72, 96),
    WeightKind.GROUP: (2, 64, 96),
    WeightKind.EXPERTS: (3, 40, 64),
    WeightKind.EMBED: (17, 40),
    WeightKind.ENGRAM: (23, 64),
    WeightKind.HC: (24, 128),
}
STORED = [
    (WeightKind.LINEAR, QFormat.BF16),
    (WeightKind.LINEAR, QFormat.F32),
    (WeightKind.LINEAR, QFormat.FP8_BLOCK32),
    (WeightKind.HEAD, QFormat.BF16),
    (WeightKind.HEAD, QFormat.FP8_BLOCK32),
    (WeightKind.GROUP, QFormat.FP8_BLOCK32),
    (WeightKind.EXPERTS, QFormat.MXFP4),
    (WeightKind.EXPERTS, QFormat.FP8_BLOCK32),
    (WeightKind.EMBED, QFormat.BF16),
    (WeightKind.ENGRAM, QFormat.MXFP8),
    (WeightKind.HC, QFormat.F32),
]
ACTIVATIONS = (QFormat.MXFP8, QFormat.MXFP4, QFormat.NVFP4)


def data_checks() -> Iterator[tuple[str, str, Check]]:
    """(part, case, check) of weights, activations and caches."""
    for kind, fmt in STORED:
        yield "weights", f"{kind.value}-{fmt.value}", functools.partial(packed_weight, kind=kind, fmt=fmt)
    for fmt in ACTIVATIONS:
        yield "activations", f"canonical-{fmt.value}", functools.partial(activation, fmt=fmt)
        yield "caches", f"blocks-{fmt.value}", functools.partial(blocks, fmt=fmt)
    yield "activations", "every-e4m3-code", every_code
    yield "errors", "foreign-layout", foreign_layout


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise Mismatch(text)


def _equal(name: str, have: torch.Tensor, want: torch.Tensor) -> None:
    """The same bits; 8-bit dtypes count as bytes."""
    if want.element_size() == 1:
        have, want = have.view(torch.uint8), want.view(torch.uint8)
    _expect(have.shape == want.shape, f"{name}: shape {tuple(have.shape)}, want {tuple(want.shape)}")
    different = int((bits(have) != bits(want)).sum())
    _expect(not different, f"{name}: {different} of {want.numel()} differ")


def packed_weight(backend: Backend, kind: WeightKind, fmt: QFormat) -> None:
    """A packed weight says what it is and unpacks to the stored bits."""
    given: WeightInput = Draw(1).weight(kind, fmt, *SHAPES[kind])
    kept: WeightInput = Draw(1).weight(kind, fmt, *SHAPES[kind])
    packed = backend.pack_weight(kind, given.weight, given.shape)
    found = (packed.kind, packed.fmt, packed.shape)
    _expect(found == (kind, fmt, given.shape), f"the packed weight says {found}, want {(kind, fmt, given.shape)}")
    _expect(packed.nbytes > 0 and bool(packed.layout), "the packed weight has no size or no layout")
    back: CanonicalWeight = read_weight(backend, packed)
    _expect(back.fmt is fmt, f"unpacks as {back.fmt.value}")
    _equal("codes", back.data, kept.weight.data)
    _expect((back.scale is None) == (kept.weight.scale is None), "scales are there on one side only")
    if back.scale is not None and kept.weight.scale is not None:
        _equal("scales", back.scale, kept.weight.scale)


def _there_and_back(backend: Backend, q: QTensor) -> QTensor:
    own = backend.from_canonical(materialise_canonical(q, backend))
    _expect(own.fmt is q.fmt and own.shape == q.shape, f"from_canonical gives {own.fmt} {own.shape}")
    plain = backend.to_canonical(own)
    _expect(plain.layout == CANONICAL and plain.shape == q.shape, f"to_canonical gives {plain.layout} {plain.shape}")
    return read_quantised(backend, own)


def materialise_canonical(q: QTensor, backend: Backend) -> QTensor:
    """A quantised activation on the backend that stays canonical."""
    parts: dict[str, Any] = materialise({"data": q.data, "scale": q.scale}, backend, 0)
    return QTensor(parts["data"], parts["scale"], q.fmt, q.shape)


def activation(backend: Backend, fmt: QFormat) -> None:
    """A quantised activation survives the backend's own layout."""
    q = Draw(3).quantised(fmt, 300, 64)
    back = _there_and_back(backend, q)
    _equal("codes", back.data, q.data)
    _equal("scales", back.scale, q.scale)


def every_code(backend: Backend) -> None:
    """All 254 numbers of e4m3 with scales from small to large, and a NaN."""
    numbers = [c for c in range(256) if c & 0x7F != 0x7F]
    codes = torch.tensor([*numbers, 0x7F, 0x00], dtype=torch.uint8).repeat(5, 1)
    scales = torch.tensor([20, 100, 127, 150, 240], dtype=torch.uint8).unsqueeze(-1).repeat(1, 8)
    back = _there_and_back(backend, QTensor(codes, scales, QFormat.MXFP8, (5, 256)))
    _equal("codes", back.data, codes)
    _equal("scales", back.scale, scales)


def blocks(backend: Backend, fmt: QFormat) -> None:
    """Blocks of a cache are exported, imported and copied bit by bit."""
    given = Draw(2).cache(fmt, 64, 4, 6)
    cache = materialise(given, backend, 0xFF)
    _expect(cache.layout == given.layout and cache.num_blocks == 6, f"kv_alloc gives {cache.layout}")
    stored = given.data.reshape(6, -1)
    before = backend.kv_export(cache, np.arange(6))
    _expect(before.shape == (6, cache.layout.block_bytes) and before.dtype == np.uint8, f"export is {before.shape}")
    _expect(bool((before == stored).all()), "exported blocks are not what was imported")
    backend.kv_copy(cache, np.array([3, 0, 4]), np.array([1, 5, 2]))
    backend.kv_import(cache, np.array([4, 3]), before[[4, 3]])
    after = backend.kv_export(cache, np.array([5, 4, 3, 2, 1, 0]))
    _expect(bool((after == stored[[0, 4, 3, 4, 3, 0]]).all()), "copied or imported blocks are in the wrong place")
    other = backend.kv_alloc(cache.layout, cache.num_blocks)
    backend.kv_import(other, np.arange(6), np.bitwise_not(before))
    now = backend.kv_export(cache, np.array([5, 4, 3, 2, 1, 0]))
    _expect(bool((now == after).all()), "two caches share memory")
    before[0] = 7
    now = backend.kv_export(cache, np.array([0]))
    _expect(bool((now == stored[:1]).all()), "an export shares memory with the cache")


def foreign_layout(backend: Backend) -> None:
    """A quantised tensor in a layout that is nobody's is refused, not misread."""
    q = materialise_canonical(Draw(3).quantised(QFormat.MXFP8, 2, 64), backend)
    alien = QTensor(q.data, q.scale, q.fmt, q.shape, "nobody.layout")
    try:
        backend.to_canonical(alien)
    except LayoutError as error:
        _expect("nobody.layout" in str(error), "the LayoutError does not name the layout")
    else:
        raise Mismatch("to_canonical takes a layout that is nobody's")
