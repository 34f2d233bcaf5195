"""Row kernels at sizes of official models and beyond: several tiles a row, and rows that are too wide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.ascend_counts import counted

from tandem.backends.ascend import activations
from tandem.backends.ascend.kernels import dequantize, quantize, rms_norm, rope, swiglu_quant
from tandem.backends.ascend.plan import EMULATED
from tandem.contract.backend import Backend
from tandem.contract.types import QFormat, QTensor
from tandem.errors import LayoutError
from tandem.ops.numerics import decode_rows, encode_rows
from tandem.ops.rope import rope as rope_reference
from tandem.ops.swiglu_quant import swiglu

Tensor = torch.Tensor


def draw(*shape: int, scale: float = 1.0, seed: int = 3) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(torch.bfloat16)


def planned(module: Any, op: str, *arguments: Any) -> Any:
    """The op's result, once its plan has said of UB and of global memory what it then does."""
    (plan,) = module.PLAN[op](EMULATED, *arguments)
    with counted() as launches:
        result = module.OPS[op](*arguments)
    (one,) = launches
    assert (plan.kind, plan.blocks, plan.ub) == (one.kind, one.blocks, one.ub)
    assert one.distinct_read <= plan.read <= one.read and plan.written == one.written
    return result


@pytest.mark.parametrize("width", [7168, 7169, 64, 1])
def test_rms_norm(ascend: Backend, width: int) -> None:
    x, weight = draw(6, width, scale=4.0), torch.rand(width, generator=torch.Generator().manual_seed(1))
    y, none = planned(rms_norm, "rms_norm", x, weight, 1e-6, False)
    wide = x.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight
    assert none is None
    torch.testing.assert_close(y.double(), expected, rtol=2**-8, atol=0)


def test_rms_norm_quantises_what_it_returns(ascend: Backend) -> None:
    y, yq = planned(rms_norm, "rms_norm", draw(5, 7168), None, 1e-6, True)
    codes, scales = encode_rows(y, QFormat.MXFP8)
    found = activations.to_canonical(yq)
    assert torch.equal(found.data, codes) and torch.equal(found.scale, scales)


@pytest.mark.parametrize("fmt", [QFormat.MXFP8, QFormat.MXFP4, QFormat.NVFP4])
@pytest.mark.parametrize("width", [7168, 2048 + 32, 96, 32])
def test_encode_and_decode(ascend: Backend, fmt: QFormat, width: int) -> None:
    x = draw(5, width) * torch.exp2(torch.arange(5.0) * 9 - 20)[:, None].to(torch.bfloat16)
    codes, scales = encode_rows(x, fmt)
    q = planned(quantize, "quantize", x, fmt)
    plain = activations.to_canonical(q) if fmt is QFormat.MXFP8 else q
    assert torch.equal(plain.data, codes) and torch.equal(plain.scale, scales)
    back = planned(dequantize, "dequantize", q)
    assert torch.equal(back, decode_rows(codes, scales, fmt).to(torch.bfloat16))


def test_filler_scales_are_one(ascend: Backend) -> None:
    q = quantize.quantize(draw(3, 96), QFormat.MXFP8)
    assert q.scale.shape == (3, 4) and bool((q.scale[:, 3] == 127).all())


def test_swiglu_quant(ascend: Backend) -> None:
    gate, up, weight = draw(5, 3072, scale=4.0), draw(5, 3072, scale=4.0, seed=4), torch.rand(5)
    q = planned(swiglu_quant, "swiglu_quant", gate, up, 7.0, weight)
    codes, scales = encode_rows(swiglu(gate, up, 7.0, weight), QFormat.MXFP8)
    plain = activations.to_canonical(q)
    assert (plain.scale == scales).float().mean() > 0.999
    assert (plain.data.int() - codes.int()).abs().max() <= 1


@pytest.mark.parametrize(
    ("heads", "dim", "turned"), [(128, 192, 64), (1, 576, 64), (7, 40, 40), (1500, 48, 16), (3, 300, 280), (1, 2, 2)]
)
def test_rope(ascend: Backend, heads: int, dim: int, turned: int) -> None:
    x, angle = draw(3, heads, dim), torch.rand((3, turned // 2), generator=torch.Generator().manual_seed(2)) * 6
    cos_sin = torch.cat((angle.cos(), angle.sin()), -1)
    for inverse in (False, True):
        y = planned(rope, "rope", x, cos_sin, inverse)
        torch.testing.assert_close(y, rope_reference(x, cos_sin, inverse), rtol=2**-7, atol=0)
    assert (heads == 1500) == (rope.tile(EMULATED, heads, dim, turned) < heads)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_rows_are_shared_among_blocks(ascend: Backend, count: int) -> None:
    """Each row once, whatever their number is; a row is the same in each of them."""
    x = draw(9, 160)
    whole = quantize.quantize(x, QFormat.MXFP8)
    some = planned(quantize, "quantize", x[:count].contiguous(), QFormat.MXFP8)
    assert torch.equal(some.data, whole.data[:count]) and torch.equal(some.scale, whole.scale[:count])


def test_rows_that_do_not_fit_are_refused(ascend: Backend) -> None:
    """The widest row that fits is not."""
    width = 36000 // 32 * 32
    quantize.quantize(draw(1, width), QFormat.MXFP8)
    with pytest.raises(LayoutError, match="does not fit"):
        quantize.quantize(draw(1, 2 * width), QFormat.MXFP8)
    with pytest.raises(LayoutError):
        rms_norm.rms_norm(draw(1, 1 << 17), None, 1e-6, False)
    with pytest.raises(LayoutError):
        swiglu_quant.swiglu_quant(draw(1, width), draw(1, width), 7.0)
    with pytest.raises(LayoutError):
        dequantize.dequantize(_zeros(2 * width))


def _zeros(width: int) -> QTensor:
    q = activations.empty(1, width, torch.device("cpu"))
    q.data.zero_()
    return q
