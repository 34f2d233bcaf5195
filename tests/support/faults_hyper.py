"""Faults of norms, hyper-connections, loading and the head."""

from __future__ import annotations

import torch
from support.mutation import Fault, edit

from tandem.errors import ConfigError

Tensor = torch.Tensor
HC = "ops.hc_mix"
MODEL = "model.deepseek_v41"


def _round_to_bf16(*endings: str, variant: bool = False) -> Fault:
    def read(name: str, tensor: Tensor) -> Tensor:
        return tensor.to(torch.bfloat16).to(tensor.dtype) if name.endswith(endings) else tensor

    return Fault(37, f"{endings[0]} held as bf16", read=read, variant=variant)


def _inverted(name: str, tensor: Tensor) -> Tensor:
    """Scales as divisors: 2^(127 - byte)."""
    if not name.endswith(".scale"):
        return tensor
    return (254 - tensor.view(torch.uint8)).view(tensor.dtype)


NORMS = [
    Fault(1, "norm eps 1e-6", text={"rms_norm_eps": 1e-6}),
    Fault(1, "norm eps lost to underflow", text={"rms_norm_eps": 0.0}),
    Fault(1, "hc eps 1e-20", text={"hc_eps": 1e-20}),
]

HYPER = [
    edit(2, "own pre applied", "ops.hc_enter", "hc_enter", "(trunk, pre_prev)", "(trunk, mix.pre)"),
    edit(2, "first pre an average", MODEL, "DeepseekV41.__init__", "one_hot[:, 0] = 1.0", "one_hot[:] = 0.25"),
    edit(2, "head reads stream 0", MODEL, "DeepseekV41.forward", "mix.comb), mix.pre)",
         "mix.comb), self.first_pre[: rows.ids.shape[0]])"),
    edit(3, "comb transposed", "ops.hc_post", "hc_post",
         "comb.unsqueeze(-1).unbind(1)", "comb.unsqueeze(-1).unbind(2)"),
    edit(4, "rows normalised before columns", HC, "coefficients",
         "comb = comb / (_sum(comb, -2) + eps)\n    for", "comb = comb / (_sum(comb, -1) + eps)\n    for"),
    edit(4, "no eps after the softmax", HC, "coefficients", "_sum(comb, -1) + eps\n", "_sum(comb, -1)\n"),
    edit(4, "no eps in the denominators", HC, "coefficients",
         "comb / (_sum(comb, -1) + eps)\n        comb = comb / (_sum(comb, -2) + eps)",
         "comb / _sum(comb, -1)\n        comb = comb / _sum(comb, -2)"),
    edit(4, "no eps on pre", HC, "coefficients", "base[:m]) + eps", "base[:m])"),
    edit(4, "eps on post", HC, "coefficients", "base[m : 2 * m])", "base[m : 2 * m]) + eps"),
    edit(4, "a round too many", HC, "coefficients", "weights.iters - 1", "weights.iters"),
    edit(4, "a round too few", HC, "coefficients", "weights.iters - 1", "weights.iters - 2", variant=True),
    edit(5, "mean over one stream", HC, "hc_mix", "/ (m * width)", "/ width"),
    edit(5, "norm weight applied twice", "ops.hc_enter", "hc_enter",
         "parts.hc_mix(trunk, weights)", "parts.hc_mix((trunk * norm_weight).to(trunk.dtype), weights)"),
    edit(5, "normalised before the product in bf16", HC, "hc_mix",
         "fixed_matmul(flat, fn) * inverse", "fixed_matmul((flat * inverse).bfloat16().float(), fn)"),
]  # fmt: skip

LOADING = [
    edit(31, "logits rounded to bf16", MODEL, "DeepseekV41.logits",
         "return result", "return result.bfloat16().float()"),
    edit(32, "ratios counted from the draft stages", "model.config", "TextConfig.ratio",
         "[layer]", "[layer + self.num_nextn_predict_layers]", stops=ConfigError),
    Fault(33, "scales divide", read=_inverted),
    _round_to_bf16("_fn"),
    _round_to_bf16("_base", variant=True),
    _round_to_bf16("attn_sink"),
    _round_to_bf16("gate.bias", "gate.bias_vl"),
]  # fmt: skip

FAULTS = [*NORMS, *HYPER, *LOADING]
