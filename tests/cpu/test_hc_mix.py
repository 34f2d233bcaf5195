"""`hc_mix` of the CPU against its definition in float64, and what hc_enter and hc_step make of its parts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from cpu.residual_cases import ROWS, bf16, hc_weights, normal, op, outputs, same
from torch import Tensor

from tandem.contract.types import HcMix, HcWeights


def expect_mix(trunk: Tensor, weights: HcWeights) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """pre, post, comb in float64, and a bound on the absolute f32 error of each mix [T, mixes]."""
    rows, m, width = trunk.shape
    x = trunk.to(torch.float64).numpy().reshape(rows, -1)
    w, b, s = (t.to(torch.float64).numpy() for t in (weights.fn.token.data, weights.base, weights.scale))
    hc_eps = weights.hc_eps
    inverse = 1.0 / np.sqrt((x * x).mean(1, keepdims=True) + weights.norm_eps)
    mix = x @ w.T * inverse
    # A lane adds width*m/16 products and the tree four times; the norm adds as many squares.
    bound = (m * width / 16 + 8) * 2.0**-24 * (np.abs(x) @ np.abs(w).T * inverse + np.abs(mix))
    factor = np.repeat(s, (m, m, m * m))
    logits = mix * factor + b
    bound = bound * factor + np.abs(logits) * 2.0**-23
    pre = 1 / (1 + np.exp(-logits[:, :m])) + hc_eps
    post = 2 / (1 + np.exp(-logits[:, m : 2 * m]))
    comb = np.exp(logits[:, 2 * m :]).reshape(rows, m, m)
    comb = comb / comb.sum(2, keepdims=True) + hc_eps
    comb = comb / (comb.sum(1, keepdims=True) + hc_eps)
    for _ in range(weights.iters - 1):
        comb = comb / (comb.sum(2, keepdims=True) + hc_eps)
        comb = comb / (comb.sum(1, keepdims=True) + hc_eps)
    return pre, post, comb, bound


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("m", "width"), ((4, 128), (4, 37), (2, 64), (1, 16), (8, 48), (4, 1029)))
@pytest.mark.parametrize(("norm_eps", "hc_eps"), ((1e-20, 1e-6), (0.5, 0.05)))
def test_hc_mix_matches_the_definition(rows: int, m: int, width: int, norm_eps: float, hc_eps: float) -> None:
    """The second pair of eps is large, so that each place where one is added shows."""
    trunk = bf16(rows, m, width, seed=rows + 100 * m, scale=3.0)
    weights = hc_weights(m, width, seed=rows, norm_eps=norm_eps, hc_eps=hc_eps)
    pre, post, comb = (t.numpy() for t in op("hc_mix")(trunk, weights))
    want_pre, want_post, want_comb, bound = expect_mix(trunk, weights)
    # The sigmoid has slope 1/4 at most. Normalisations never enlarge a relative error more than
    # twice on either side, and each of the 2 * iters adds about m + 2 roundings of its own.
    assert (np.abs(pre - want_pre) <= bound[:, :m] / 4 + 2.0**-22).all()
    assert (np.abs(post - want_post) <= bound[:, m : 2 * m] / 2 + 2.0**-21).all()
    relative = 4 * bound[:, 2 * m :].max(1) + 2 * weights.iters * (m + 2) * 2.0**-24
    assert (np.abs(comb - want_comb) <= relative[:, None, None] * want_comb).all()


def test_hc_mix_by_hand() -> None:
    """A zero row has no mixes: only base counts, and the norm's eps keeps 0 / 0 away."""
    base = torch.tensor([0.0, np.log(3.0), 0.0, -np.log(3.0), 0.0, 0.0, 0.0, np.log(3.0)], dtype=torch.float32)
    weights = hc_weights(2, 32, seed=1, base=base, hc_eps=0.0, iters=1)
    pre, post, comb = op("hc_mix")(torch.zeros((1, 2, 32), dtype=torch.bfloat16), weights)
    torch.testing.assert_close(pre, torch.tensor([[0.5, 0.75]]))
    torch.testing.assert_close(post, torch.tensor([[1.0, 0.5]]))
    # Softmax rows (1/2, 1/2), (1/4, 3/4); then columns sum to 3/4 and 5/4.
    torch.testing.assert_close(comb, torch.tensor([[[2 / 3, 2 / 5], [1 / 3, 3 / 5]]]))


def test_hc_mix_sigmoid_is_accurate_over_its_range() -> None:
    """Without mixes the logits are exactly base; exp, sum and quotient round once each."""
    weights = hc_weights(8, 16, seed=6, hc_eps=0.0, iters=1)
    for logits in torch.linspace(-80, 40, 1600).reshape(-1, 16):
        weights.base[:16] = logits
        pre, post, _ = op("hc_mix")(torch.zeros((1, 8, 16), dtype=torch.bfloat16), weights)
        exact = 1 / (1 + np.exp(-logits.to(torch.float64).numpy()))
        got = np.concatenate([pre.numpy()[0], post.numpy()[0] / 2])
        assert (np.abs(got / exact - 1) <= 3.01 * 2.0**-24).all()


def test_hc_mix_extreme_logits_saturate_without_nan() -> None:
    trunk, weights = bf16(1, 4, 32, seed=2, scale=3.0), hc_weights(4, 32, seed=2)
    weights.base[:8] = torch.tensor([300.0, -300.0, 90.0, -90.0, 300.0, -300.0, 90.0, -90.0])
    weights.base[8:] = torch.linspace(-300, 300, 16)
    pre, post, comb = op("hc_mix")(trunk, dataclasses.replace(weights, hc_eps=0.0))
    assert pre[0, :2].tolist() == [1.0, 0.0] and post[0, :2].tolist() == [2.0, 0.0]
    pre, post, comb = op("hc_mix")(trunk, weights)
    assert all(t.isfinite().all() for t in (pre, post, comb))


def test_hc_mix_nan_stays_in_its_row() -> None:
    trunk, weights = bf16(17, 4, 128, seed=3, scale=3.0), hc_weights(4, 128, seed=3)
    clean = op("hc_mix")(trunk, weights)
    trunk[5, 2, 77] = float("nan")
    for got, want in zip(op("hc_mix")(trunk, weights), clean, strict=True):
        assert got[5].isnan().all()
        keep = torch.arange(17) != 5
        assert torch.equal(got[keep], want[keep])


@pytest.mark.parametrize(("rows", "m", "width"), ((1, 4, 1056), (5, 3, 64), (70, 4, 96)))
def test_the_composed_ops_give_the_bits_of_their_parts(rows: int, m: int, width: int) -> None:
    """One pass over the streams changes no bit of what op after op gives."""
    y, trunk = bf16(rows, width, seed=31), bf16(rows, m, width, seed=32)
    mix = HcMix(normal(rows, m, seed=33), normal(rows, m, seed=34), normal(rows, m, m, seed=35))
    weights, norm = hc_weights(m, width, seed=36), normal(width, seed=37)
    left = op("hc_post")(y, trunk, mix.post, mix.comb)
    x, xq = op("rms_norm")(op("hc_collapse")(left, mix.pre), norm, weights.norm_eps, True)
    entered = (x, xq, op("hc_mix")(left, weights))
    assert same(outputs(op("hc_enter")(left, mix.pre, weights, norm)), outputs(entered))
    assert same(outputs(op("hc_step")(y, trunk, mix, weights, norm)), outputs((left, *entered)))
