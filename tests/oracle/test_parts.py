"""Hyper-connections, router, compressor, attention, indexer and gate against hand-computed values."""

from __future__ import annotations

import math

import pytest
import torch

from . import hc
from .arith import Arith
from .attention import Attention, Shared, attend, pool_groups
from .build import tiny_config
from .choices import Choices, select
from .engram import gate
from .indexer import block_scores, candidate_pool, index_scores, visible
from .moe import Moe, router_scores
from .quant import Weights
from .settings import read_settings

F32 = Arith(torch.float32, None)
F64 = Arith(torch.float64, None)


def bf16(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bfloat16)


def test_rms_norm_by_hand() -> None:
    # mean(9, 16) = 12.5
    y = F32.rms_norm(bf16(3, 4)[None], bf16(1, 2), 1e-20)
    assert y[0].tolist() == bf16(3 / math.sqrt(12.5), 8 / math.sqrt(12.5)).tolist()
    assert F32.rms_norm(bf16(0, 0)[None], bf16(1, 2), 1e-20).tolist() == [[0, 0]]


def test_first_sinkhorn_step_is_row_softmax_then_columns() -> None:
    a, b = 1 / (1 + math.e), math.e / (1 + math.e)
    eps = 0.01
    comb = hc.sinkhorn(torch.tensor([[[0.0, 1.0], [0.0, 0.0]]], dtype=torch.float64), 1, eps)[0]
    left, right = a + 0.5 + 2 * eps + eps, b + 0.5 + 2 * eps + eps
    expected = [[(a + eps) / left, (b + eps) / right], [(0.5 + eps) / left, (0.5 + eps) / right]]
    assert comb.flatten().tolist() == pytest.approx(expected[0] + expected[1])


def test_sinkhorn_is_doubly_stochastic() -> None:
    logits = torch.randn(50, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    comb = hc.sinkhorn(logits, 20, 1e-6)
    assert (comb.sum(-1) - 1).abs().max() < 1e-4 and (comb.sum(-2) - 1).abs().max() < 1e-4
    assert (comb > 0).all()


def test_streams_mix_from_row_to_column() -> None:
    trunk = bf16(1, 0, 0, 0).view(1, 4, 1)
    comb = torch.zeros(1, 4, 4)
    comb[0, 0, 2] = 5.0
    post = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    assert hc.spread(F32, post, comb, bf16(7.0)[None], trunk).flatten().tolist() == [0, 7, 5, 0]
    assert hc.collapse(F32, torch.tensor([[2.0, 9, 9, 9]]), trunk).tolist() == [[2.0]]


def test_mixes_norm_over_all_streams_and_place_eps() -> None:
    settings = read_settings(tiny_config())
    fn = torch.zeros(24, 8)
    fn[0, 0] = fn[4, 0] = 1.0
    base, scale = torch.zeros(24), torch.tensor([2.0, 3.0, 1.0])
    weights = Weights({"x_fn": fn, "x_base": base, "x_scale": scale}, F64)
    trunk = bf16(4, 0, 0, 0, 0, 0, 0, 0).view(1, 4, 2)  # rms over 8 entries = sqrt(2); 4 / sqrt(2)
    pre, post, comb = hc.mixes(F64, weights, settings, "x", trunk)
    size = 4 / math.sqrt(2)
    first = 1 / (1 + math.exp(-2 * size))
    assert pre[0].tolist() == pytest.approx([first + 1e-6] + [0.5 + 1e-6] * 3, abs=1e-9)
    assert post[0].tolist() == pytest.approx([2 / (1 + math.exp(-3 * size)), 1, 1, 1], abs=1e-9)
    assert comb[0].flatten().tolist() == pytest.approx([0.25] * 16, abs=1e-5)


def router(bias: list[float], bias_vl: list[float]) -> Moe:
    """Two hidden channels, eight experts; expert 0 sees channel 0, expert 1 channel 1, the rest nothing."""
    gate_weight = torch.zeros(8, 2, dtype=torch.bfloat16)
    gate_weight[0, 0] = gate_weight[1, 1] = 1
    pad = [-10.0] * 5
    tensors = {
        "layers.0.ffn.gate.weight": gate_weight,
        "layers.0.ffn.gate.bias": torch.tensor(bias + pad),
        "layers.0.ffn.gate.bias_vl": torch.tensor(bias_vl + pad),
    }
    return Moe(read_settings(tiny_config()), Weights(tensors, F64), F64)


def test_router_selects_by_bias_and_weighs_without_it() -> None:
    x = bf16(2, 0, 2, 0).view(2, 2)
    shared = Shared(Choices())
    roles = torch.tensor([0, 3])
    ids, weight = router([0.0, 0.0, 1.0], [0.0, 2.0, 0.0]).route(0, x, roles, shared)
    s0, flat = math.sqrt(math.log1p(math.exp(2))), math.sqrt(math.log(2))
    # Text: scores + bias = 1.459, 0.833, 1.833; image: 1.459, 2.833, 0.833.
    assert ids.tolist() == [[2, 0], [1, 0]]
    expected = [1.5 * flat / (flat + s0), 1.5 * s0 / (flat + s0)]
    assert weight[0].tolist() == pytest.approx(expected) and weight[1].tolist() == pytest.approx(expected)
    assert shared.margins.experts[0] == pytest.approx([s0 - flat, s0 - flat])


def test_imposed_experts_keep_their_order_and_show_a_negative_margin() -> None:
    shared = Shared(Choices(experts={0: [[1, 2]]}))
    ids, _ = router([0.0, 0.0, 1.0], [0.0] * 3).route(0, bf16(2, 0).view(1, 2), torch.tensor([0]), shared)
    assert ids.tolist() == [[1, 2]]
    s0, flat = math.sqrt(math.log1p(math.exp(2))), math.sqrt(math.log(2))
    assert shared.margins.experts[0] == pytest.approx([flat - s0])


def test_router_scores_do_not_cancel() -> None:
    scores = router_scores(torch.tensor([-30.0, 0.0, 30.0]))
    assert scores.tolist() == pytest.approx([math.exp(-15), math.sqrt(math.log(2)), math.sqrt(30)], rel=1e-5)


def test_expert_clamps_and_weighs_before_the_last_product() -> None:
    one = torch.eye(32).to(torch.bfloat16)
    tensors = {"e.w1.weight": one, "e.w3.weight": one * -3, "e.w2.weight": one}
    moe = Moe(read_settings(tiny_config()), Weights(tensors, F64), F64)
    x = torch.zeros(1, 32, dtype=torch.bfloat16)
    x[0, 0], x[0, 1] = 16.0, -16.0
    y = moe.expert("e", x, torch.tensor([[0.6]], dtype=torch.float64))
    # Gate 16 -> 10, up -48 -> -10: silu(10) * -10 * 0.6 = -59.997. Scale 2^-2: -239.99 -> -240.
    # Unweighted, -99.995 would become -96 first, and -57.6 afterwards.
    assert y[0, 0].item() == -60.0
    # Gate -16 is not clamped: silu = -1.8e-6, times 6 is below half a step of 2^-2 * 2^-9; silu(-10) is not.
    assert y[0, 1].item() == 0.0


def test_groups_are_averaged_channel_by_channel_and_incomplete_ones_dropped() -> None:
    value = torch.tensor([[1.0, 1.0], [3.0, 3.0], [9.0, 9.0]])
    score = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)], [0.0, 0.0]])
    assert pool_groups(F32, value, score, 2).tolist() == [[2.0, 2.5]]


def test_entries_become_visible_when_their_last_token_is_there() -> None:
    assert visible(5, 2, 2).int().tolist() == [[0, 0], [1, 0], [1, 0], [1, 1], [1, 1]]
    assert visible(3, 3, 1).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_sink_is_an_unscaled_logit_of_the_denominator() -> None:
    query, key = bf16(2.0, 0.0).view(1, 1, 2), bf16(3.0, 1.0).view(1, 2)
    o = attend(F64, query, key, torch.tensor([[True]]), torch.tensor([1.0]), 0.5)
    p = math.exp(3) / (math.exp(3) + math.exp(1))
    assert o.flatten().tolist() == bf16(3 * p, p).tolist()


def test_masked_keys_do_not_count() -> None:
    query, keys = torch.zeros(1, 1, 1, dtype=torch.bfloat16), bf16(2, 4, 1000).view(3, 1)
    o = attend(F32, query, keys, torch.tensor([[True, True, False]]), torch.tensor([0.0]), 1.0)
    assert o.item() == 2.0  # (2 + 4) / (1 + 1 + 1)


def test_rotary_tables_follow_the_ratio() -> None:
    attention = Attention(read_settings(tiny_config()), Weights({}, F32), F32)
    assert attention.frequencies(0)[1] == pytest.approx(10000 ** (-2 / 16))
    # low 0, high 2: the second pair is half way to a quarter of its speed, the third fully there.
    assert attention.frequencies(1)[1] == pytest.approx(160000 ** (-2 / 16) * (0.5 + 0.5 / 4))
    assert attention.frequencies(7)[2] == pytest.approx(160000 ** (-4 / 16) / 4)


def test_index_score_by_hand() -> None:
    query = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    key = torch.tensor([[2.0, 3.0], [-1.0, 1.0]])
    scores = index_scores(F32, query, key, bf16(0.5, -2.0).view(1, 2))
    assert scores.tolist() == [[0.5 * 2 - 2 * 3, -2.0]]
    fine = index_scores(F32, query, torch.tensor([[257.0, 0.0]]), bf16(1.0, 1.0).view(1, 2))
    assert fine.item() == 256.0  # stored as bf16


def test_selection_prefers_the_lower_id_in_a_tie() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, 2.0]])
    every = torch.ones(1, 4, dtype=torch.bool)
    assert select(scores, every, every, 2, {}, 0) == ([[1, 2]], [0.0])
    assert select(scores, every, every, 3, {}, 0) == ([[1, 2, 3]], [1.0])
    assert select(scores, every, every, 9, {}, 0) == ([[1, 2, 3, 0]], [math.inf])


def test_imposed_selections_are_checked() -> None:
    scores, legal = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[True, True, False]])
    assert select(scores, legal, legal, 1, {4: [[0]]}, 4) == ([[0]], [-2.0])
    assert select(scores, legal, legal, 1, {4: [None]}, 4)[0] == [[1]]
    for bad in ([2], [0, 0]):
        with pytest.raises(ValueError, match="not legal"):
            select(scores, legal, legal, 1, {4: [bad]}, 4)
    outside = torch.tensor([[False, True, False]])
    assert select(scores, legal, outside, 1, {4: [[0]]}, 4) == ([[0]], [-math.inf])


def test_block_scores_force_the_newest_visible_block() -> None:
    scores = torch.tensor([[5.0, 1.0, 2.0, 7.0, 0.0]])
    best, live = block_scores(scores, torch.tensor([[True, True, True, False, False]]), 2)
    assert best.tolist() == [[5.0, math.inf, -math.inf]] and live.tolist() == [[True, True, False]]


def test_candidate_pool_by_hand() -> None:
    scores = torch.tensor([[1.0, 1.0, 9.0, 0.0, 4.0, 4.0, -5.0, 8.0]])
    seen = torch.tensor([[True] * 7 + [False]])
    blocks, margins, pool = candidate_pool(scores, seen, 2, 2, {}, 4)
    # Blocks: 1, 9, 4 and the newest, forced. Kept: 1 and 3; of block 3 only the visible half.
    assert (blocks, margins) == ([[1, 3]], [5.0])
    assert pool.int().tolist() == [[0, 0, 1, 1, 0, 0, 1, 0]]


def test_engram_gate_by_hand() -> None:
    h, key = bf16(3, 4).view(1, 2), bf16(-1, 1).view(1, 2)
    product = torch.tensor([2.0, 1.0], dtype=torch.float64)
    s = (3 * 2 * -1 + 4 * 1 * 1) / math.sqrt(12.5) / 1.0 / math.sqrt(2)
    assert gate(F64, h, key, product, 1e-20).item() == pytest.approx(1 / (1 + math.exp(math.sqrt(-s))))
    nothing = gate(F64, torch.zeros(1, 2), key, product, 1e-20).item()
    assert nothing == pytest.approx(1 / (1 + math.exp(-1e-3)))
