"""Layouts of devices give back the bits of the canonical form, whatever they are, and refuse what is not theirs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from tandem.accelerator.layouts import Activations, Matrices, Scaled
from tandem.accelerator.runtime import HostRuntime
from tandem.backends.ascend import activations as ascend_activations
from tandem.backends.ascend import scales as ascend_scales
from tandem.backends.ascend import weights as ascend_weights
from tandem.backends.cuda import activations as cuda_activations
from tandem.backends.cuda import scales as cuda_scales
from tandem.backends.cuda import weights as cuda_weights
from tandem.contract.types import CANONICAL, CanonicalWeight, QFormat, QTensor, WeightKind
from tandem.errors import LayoutError

Tensor = torch.Tensor
ORDERS = {"cuda": cuda_scales, "ascend": ascend_scales}
CPU = torch.device("cpu")


class Host(HostRuntime):
    backend = "test"

    def facts(self) -> dict[str, str]:
        return {}


def random(seed: int, *shape: int, high: int = 256) -> Tensor:
    return torch.randint(0, high, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (3, 4), (129, 5), (37, 160), (0, 3)])
def test_scales_come_back(name: str, rows: int, groups: int) -> None:
    order: Any = ORDERS[name]
    scale = random(rows, 2, rows, groups)
    packed = order.pack(scale)
    assert packed.shape == (2, *order.packed_shape(rows, groups)) and packed.is_contiguous()
    assert torch.equal(order.unpack(packed, rows, groups), scale)
    assert torch.equal(order.pack(scale[0]), packed[0])


def test_ascend_scales_are_row_major_pairs_filled_up_with_one() -> None:
    scale = random(3, 4, 3)
    packed = ascend_scales.pack(scale)
    assert packed.shape == (4, 4) and torch.equal(packed[:, :3], scale) and (packed[:, 3] == 127).all()
    assert torch.equal(ascend_scales.pack(scale[:, :2]), scale[:, :2])


@pytest.mark.parametrize("module", [cuda_activations, ascend_activations], ids=["cuda", "ascend"])
def test_activations_come_back(module: ModuleType) -> None:
    codes, scale = random(1, 7, 160), random(2, 7, 5)
    canonical = QTensor(codes, scale, QFormat.MXFP8, (7, 160))
    own = module.from_canonical(canonical)
    assert own.layout == module.LAYOUT != CANONICAL and module.from_canonical(own) is own
    back = module.to_canonical(own)
    assert back.layout == CANONICAL and module.to_canonical(back) is back
    assert torch.equal(back.data, codes) and torch.equal(back.scale, scale)
    empty = module.empty(7, 160, CPU)
    assert (empty.data.shape, empty.scale.shape, empty.layout) == (own.data.shape, own.scale.shape, own.layout)
    pairs = QTensor(random(3, 7, 80), random(4, 7, 5), QFormat.MXFP4, (7, 160))
    assert module.from_canonical(pairs) is pairs
    alien = QTensor(codes, scale, QFormat.MXFP8, (7, 160), "other.layout")
    for convert in (module.to_canonical, module.from_canonical):
        with pytest.raises(LayoutError, match=r"its layout is 'other.layout'\. Fix: "):
            convert(alien)


def test_ascend_activations_keep_rows() -> None:
    own = ascend_activations.from_canonical(QTensor(random(1, 6, 96), random(2, 6, 3), QFormat.MXFP8, (6, 96)))
    taken = ascend_activations.to_canonical(own.take_rows(torch.tensor([5, 0, 5])))
    assert own.keeps_rows and torch.equal(taken.scale, random(2, 6, 3)[[5, 0, 5]])


WEIGHTS = [
    (WeightKind.LINEAR, QFormat.FP8_BLOCK32, (40, 96)),
    (WeightKind.GROUP, QFormat.FP8_BLOCK32, (3, 64, 64)),
    (WeightKind.EXPERTS, QFormat.MXFP4, (2, 33, 160)),
    (WeightKind.LINEAR, QFormat.MXFP4, (5, 64)),
    (WeightKind.ENGRAM, QFormat.MXFP8, (50, 32)),
    (WeightKind.HC, QFormat.F32, (24, 16)),
    (WeightKind.EMBED, QFormat.BF16, (9, 8)),
]


@pytest.mark.parametrize("module", [cuda_weights, ascend_weights], ids=["cuda", "ascend"])
@pytest.mark.parametrize(("kind", "fmt", "shape"), WEIGHTS, ids=lambda value: str(getattr(value, "value", value)))
def test_weights_come_back(module: ModuleType, kind: WeightKind, fmt: QFormat, shape: tuple[int, ...]) -> None:
    if not fmt.group:
        data = random(1, *shape[:-1], shape[-1] * fmt.bits // 8)
        stored = CanonicalWeight(data.view(torch.float32 if fmt is QFormat.F32 else torch.bfloat16), None, fmt)
    else:
        rows = -(-shape[-2] // 32) if fmt is QFormat.FP8_BLOCK32 else shape[-2]
        scale = random(2, *shape[:-2], rows, shape[-1] // 32, high=249)
        scale[..., 0, 0] = 255  # NaN
        stored = CanonicalWeight(random(1, *shape[:-1], shape[-1] * fmt.bits // 8), scale, fmt)
    packed = module.pack(kind, stored, shape, Host())
    found = module.unpack(packed)
    assert packed.layout.startswith(module.__name__.split(".")[-2]) and packed.nbytes >= stored.data.nbytes
    assert found.fmt is fmt and found.data.dtype == stored.data.dtype
    assert torch.equal(found.data.view(torch.uint8), stored.data.view(torch.uint8))
    assert (found.scale is None) == (stored.scale is None)
    if found.scale is not None and stored.scale is not None:
        assert torch.equal(found.scale, stored.scale)


def test_what_is_no_layout_of_a_backend_is_refused() -> None:
    mine, yours = (Matrices(name, f"{name}.scaled", ascend_scales) for name in ("mine", "yours"))
    packed = mine.pack(WeightKind.EMBED, CanonicalWeight(torch.ones(2, 2), None, QFormat.F32), (2, 2), Host())
    with pytest.raises(LayoutError, match="layout 'mine.plain' is not one of backend 'yours'"):
        yours.unpack(packed)
    assert "the op reads 'yours.plain' and 'yours.scaled'" in yours.unreadable("linear", packed).why


def test_operands_of_products_are_checked() -> None:
    own = Activations("mine", "mine.rows", ascend_scales)
    q = own.from_canonical(QTensor(random(1, 2, 64), random(2, 2, 2), QFormat.MXFP8, (2, 64)))
    own.check_operand("linear", q, 64)
    own.check_operand("linear", torch.zeros(2, 64, dtype=torch.bfloat16), 64)
    with pytest.raises(LayoutError, match="have 64 elements, the weight sums over 96"):
        own.check_operand("linear", q, 96)
    with pytest.raises(LayoutError, match="they are torch.float32"):
        own.check_operand("linear", torch.zeros(2, 64), 64)
    with pytest.raises(LayoutError, match="layout 'canonical', the op reads mxfp8 in 'mine.rows'"):
        own.check_operand("linear", own.to_canonical(q), 64)
    with pytest.raises(LayoutError, match=r"the last 3 would have none.*backend 'mine'|backend 'mine'.*the last 3"):
        own.empty(2, 67, CPU)
    assert Scaled(q.data, q.scale).codes is q.data
