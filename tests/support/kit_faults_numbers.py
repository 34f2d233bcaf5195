"""Faults of arithmetic: rounding, accumulation, formats, signs, terms left out."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from support.kit_faults import Call, edited, fault, nudge, quantised

from tandem.conformance.formats import E2M1, E4M3
from tandem.contract.types import HcMix, QFormat, QTensor

Tensor = torch.Tensor


@fault("one place off in an exact op", "embed", "plain-T17", "values", may=("rows",))
def drift_exact(call: Call) -> Tensor:
    return nudge(call, call.run(), 1)


@fault("three places off where one is allowed", "hc_mean", "random-T17", "values", may=("rows",))
def drift_ulps(call: Call) -> Tensor:
    return nudge(call, call.run(), 3)


@fault("nibbles swapped", "index_query", "two-heads-T17", "values")
def swapped_nibble(call: Call) -> QTensor:
    return edited(call, call.run(), data=lambda data: (data << 4) | (data >> 4))


@fault("comb transposed", "hc_post", "random-T17", "values")
def transposed_comb(call: Call) -> Tensor:
    return call.run(comb=call["comb"].transpose(1, 2).contiguous())


@fault("sink dropped", "sparse_attn", "window-and-main-T17", "values")
def dropped_sink(call: Call) -> Tensor:
    return call.run(sink=torch.full_like(call["sink"], -math.inf))


@fault("scale byte read as a number", "dequantize", "mxfp8-T17", "values")
def scale_as_number(call: Call) -> Tensor:
    plain = call.backend.to_canonical(call["q"])
    one = dataclasses.replace(plain, scale=torch.full_like(plain.scale, 127))
    codes = call.run(q=call.backend.from_canonical(one)).to(torch.float32)
    return (codes * plain.scale.to(torch.float32).repeat_interleave(32, dim=-1)).to(torch.bfloat16)


@fault("codes truncated", "quantize", "mxfp8-T17", "values")
def truncated(call: Call) -> QTensor:
    plain = call.backend.to_canonical(call.run())
    x = call["x"].to(torch.float64).numpy()
    scaled = x / np.repeat(2.0 ** (plain.scale.numpy().astype(np.float64) - 127), 32, axis=-1)
    codes = np.searchsorted(E4M3[:127], np.abs(scaled), side="right") - 1 | np.where(np.signbit(scaled), 0x80, 0)
    return quantised(call, QFormat.MXFP8, codes, plain.scale.numpy(), plain.shape)


@fault("ties rounded up", "quantize", "mxfp4-ties-zeros-and-limits", "values")
def half_up(call: Call) -> QTensor:
    plain = call.backend.to_canonical(call.run())
    x = call["x"].to(torch.float64).numpy()
    scaled = np.nan_to_num(x) / np.repeat(2.0 ** (plain.scale.numpy().astype(np.float64) - 127), 32, axis=-1)
    size = np.searchsorted((E2M1[1:8] + E2M1[:7]) / 2, np.abs(scaled), side="right")
    codes = size | np.where((scaled < 0) & (size > 0), 8, 0)
    return quantised(call, QFormat.MXFP4, codes[..., 0::2] | codes[..., 1::2] << 4, plain.scale.numpy(), plain.shape)


@fault("scale rounded down", "quantize", "mxfp4-T17", "values")
def scale_rounded_down(call: Call) -> QTensor:
    return edited(call, call.run(), scale=lambda scale: scale - 1)


@fault("negative zero kept", "quantize", "mxfp4-ties-zeros-and-limits", "values")
def negative_zero(call: Call) -> QTensor:
    negative = torch.signbit(call["x"]).view(*call["x"].shape[:-1], -1, 2)

    def mark(data: Tensor) -> Tensor:
        low = torch.where((data & 15 == 0) & negative[..., 0], 8, 0)
        high = torch.where((data >> 4 == 0) & negative[..., 1], 128, 0)
        return data | (low | high).to(torch.uint8)

    return edited(call, call.run(), data=mark)


@fault("NaN becomes the largest number", "rms_norm", "zero-row-and-nan-row", "values")
def lost_nan(call: Call) -> tuple[Tensor, Any]:
    y, yq = call.run()
    return torch.nan_to_num(y, nan=448.0), yq


@fault("infinity saturates", "block_max", "part-of-a-block-T17", "values")
def saturated(call: Call) -> Tensor:
    return torch.nan_to_num(call.run(), posinf=torch.finfo(torch.bfloat16).max, neginf=-math.inf)


@fault("clamp missing", "swiglu_quant", "clamped-T17", "values")
def no_clamp(call: Call) -> QTensor:
    return call.run(limit=math.inf)


@fault("f16 accumulation", "linear", "bf16-to-f32-T17", "values")
def f16_accumulation(call: Call) -> Tensor:
    return accumulated_in(torch.float16, call, torch.float32)


@fault("bf16 accumulation", "linear", "bf16-T17", "values")
def bf16_accumulation(call: Call) -> Tensor:
    return accumulated_in(torch.bfloat16, call, torch.bfloat16)


def accumulated_in(dtype: torch.dtype, call: Call, out: torch.dtype) -> Tensor:
    x, w = (t.to(torch.float32) for t in (call["x"], call.backend.unpack_weight(call["weight"]).data))
    total = torch.zeros(len(x), len(w), dtype=dtype)
    for k in range(x.shape[1]):
        total = (total.to(torch.float32) + x[:, k : k + 1] * w[:, k]).to(dtype)
    return total.to(out)


@fault("last term of the sum left out", "linear", "fp8-T17", "values")
def short_sum(call: Call) -> Tensor:
    def drop(data: Tensor) -> Tensor:
        data[:, -1] = 0
        return data

    return call.run(x=edited(call, call["x"], data=drop))


@fault("a row zeroed", "hc_collapse", "random-T17", "values", may=("rows",))
def zeroed_row(call: Call) -> Tensor:
    x = call.run()
    x[call.pick(len(x))] = 0
    return x


@fault("a row negated", "group_linear", "two-groups-T17", "values", may=("rows",))
def negated_row(call: Call) -> Tensor:
    y = call.run()
    y[call.pick(len(y))] *= -1
    return y


@fault("pairs not interleaved", "rope", "forward-T17", "values")
def halves(call: Call) -> Tensor:
    x, width = call["x"], call["cos_sin"].shape[1]
    keep = x.shape[-1] - width
    order = torch.arange(width).view(2, -1).t().flatten()  # pairs (i, i + width / 2)
    y = call.run(x=torch.cat((x[..., :keep], x[..., keep:][..., order]), dim=-1)).clone()
    y[..., keep:] = y[..., keep:][..., torch.argsort(order)]
    return y


@fault("inverse rotation forward", "rope", "inverse-T17", "values")
def not_inverse(call: Call) -> Tensor:
    return call.run(inverse=False)


@fault("one iteration short", "hc_mix", "random-T17", "values")
def fewer_iterations(call: Call) -> HcMix:
    return call.run(weights=dataclasses.replace(call["weights"], iters=call["weights"].iters - 1))


@fault("eps forgotten", "rms_norm", "values-of-the-size-of-eps", "values")
def no_eps(call: Call) -> Any:
    return call.run(eps=0.0)


@fault("bias in the weights of routing", "moe_route", "text-and-image-rows-T17", "values")
def biased_weights(call: Call) -> tuple[Tensor, Tensor]:
    experts, weights = call.run()
    bias = torch.where(call["roles"].unsqueeze(-1) != 0, call["bias_vl"], call["bias"])
    total = weights / call["scaling"] + bias.gather(1, experts.to(torch.int64))
    return experts, total / total.sum(dim=-1, keepdim=True) * call["scaling"]


@fault("result of the batch size", "linear", "bf16-to-f32-T17", "rows")
def batch_dependent(call: Call) -> Tensor:
    y = call.run()
    return y if len(y) == 1 else torch.nextafter(y, torch.full_like(y, math.inf))


@fault("the hint changes bits", "sparse_attn", "window-only-T17", "rows")
def hint_dependent(call: Call) -> Tensor:
    o = call.run()
    return nudge(call, o, 1) if call["hint"] == "decode" else o


@fault("not repeatable", "hc_mix", "random-T17", "repeat", may=("poison", "rows"))
def counted(call: Call) -> HcMix:
    mix = call.run()
    return mix._replace(post=nudge(call, mix.post, call.number % 2))


@fault("gate of image rows applied", "engram_gate", "text-and-image-rows-T17", "values")
def image_rows(call: Call) -> Tensor:
    return call.run(roles=torch.zeros_like(call["roles"]))
