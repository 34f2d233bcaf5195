"""The whole oracle: causality, selection without effect, imposed choices, roles, loading."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from .build import build_tiny, build_tokenizer
from .choices import Choices
from .load import load_oracle, load_tensors
from .model import Oracle

TINY = build_tiny(0)
IDS: list[int] = np.random.default_rng(5).integers(3, 259, size=200).tolist()


def oracle(accumulate: torch.dtype = torch.float64, **changes: Any) -> Oracle:
    config = copy.deepcopy(TINY[0])
    config["text_config"].update(changes)
    return Oracle(config, TINY[1], TINY[2], accumulate)


def with_noise(names: tuple[str, ...]) -> Oracle:
    """The tiny oracle after replacing the bf16 tensors whose names end so."""
    generator = torch.Generator().manual_seed(9)
    tensors = dict(TINY[1])
    for name, value in TINY[1].items():
        if name.endswith(names):
            tensors[name] = torch.randn(value.shape, generator=generator).to(value.dtype)
    return Oracle(wide_selection(), tensors, TINY[2], torch.float64)


def wide_selection() -> dict[str, Any]:
    config = copy.deepcopy(TINY[0])
    config["text_config"].update(index_topk=64, candidate_topk_blocks=8)
    return config


def test_two_hundred_tokens_take_less_than_three_seconds() -> None:
    judge = oracle(torch.float32)
    start = time.monotonic()
    result = judge.forward(IDS)
    assert time.monotonic() - start < 3.0
    assert result.logits.shape == (200, 512) and result.logits.dtype == torch.float32
    assert bool(result.logits.isfinite().all())


@pytest.mark.parametrize("position", [0, 30, 77, 98])
def test_a_token_never_changes_earlier_logits(position: int) -> None:
    ids = IDS[:99]
    changed = list(ids)
    changed[position] = 3 + (ids[position] - 3 + 101) % 256
    before, after = oracle().forward(ids).logits, oracle().forward(changed).logits
    difference = (before - after).abs().amax(dim=1)
    assert difference[:position].max() == 0 if position else True
    assert difference[position] > 1e-3


def test_a_prefix_gives_the_same_logits() -> None:
    full = oracle().forward(IDS[:41]).logits
    for length in (1, 2, 3, 9, 40):
        part = oracle().forward(IDS[:length]).logits
        assert torch.allclose(part, full[:length], atol=1e-6)


def test_selection_has_no_effect_while_everything_fits() -> None:
    """64 entries fit a top-64 and 8 blocks of 8: the indexer may compute what it likes."""
    names = ("indexer.wk.weight", "indexer.weights_proj.weight")
    ids = IDS[:64]
    plain = Oracle(wide_selection(), TINY[1], TINY[2], torch.float64).forward(ids)
    assert torch.equal(plain.logits, with_noise(names).forward(ids).logits)
    assert plain.choices.indices[4][63] == list(range(64)) and plain.choices.indices[3][62] == list(range(31))
    narrow = oracle().forward(ids).logits
    assert torch.equal(narrow[:16], plain.logits[:16])
    assert (narrow[40:] - plain.logits[40:]).abs().max() > 1e-2


def test_choice_lists_have_the_promised_shape() -> None:
    choices = oracle().forward(IDS[:70]).choices
    assert set(choices.indices) == {1, 3, 4, 6} and set(choices.blocks) == {4}
    assert set(choices.experts) == set(range(8))
    assert choices.indices[1][0] == [] and choices.indices[1][1] == [0] and choices.indices[4][0] == [0]
    for position in range(70):
        assert len(choices.indices[3][position] or ()) == min((position + 1) // 2, 16)
        assert len(choices.indices[6][position] or ()) == min(position + 1, 16)
        blocks = choices.blocks[4][position] or ()
        assert len(blocks) == min(position // 8 + 1, 4) and position // 8 in blocks
        assert {j // 8 for j in choices.indices[6][position] or ()} <= set(blocks)


def test_margins_are_infinite_exactly_while_nothing_is_left_out() -> None:
    margins = oracle().forward(IDS[:70]).margins
    assert [m == float("inf") for m in margins.indices[1]] == [(p + 1) // 2 <= 16 for p in range(70)]
    assert [m == float("inf") for m in margins.blocks[4]] == [p // 8 + 1 <= 4 for p in range(70)]
    assert all(0 <= m < float("inf") for m in margins.experts[0])


def test_imposing_the_own_choices_changes_nothing() -> None:
    own = oracle().forward(IDS[:60])
    again = oracle().forward(IDS[:60], choices=own.choices)
    assert torch.equal(own.logits, again.logits) and own.choices == again.choices


def test_an_imposed_choice_is_followed_from_its_position_on() -> None:
    own = oracle().forward(IDS[:60])
    other = list(own.choices.experts[5])
    other[50] = [e for e in range(8) if e not in (own.choices.experts[5][50] or ())][:2]
    result = oracle().forward(IDS[:60], choices=Choices(experts={5: other}))
    assert torch.equal(result.logits[:50], own.logits[:50])
    assert (result.logits[50] - own.logits[50]).abs().max() > 1e-2
    assert result.margins.experts[5][50] < 0


def test_float32_and_a_reordered_float32_are_near_float64_step_by_step() -> None:
    """From the same entry states, a step may flip a bf16 rounding here and there, but not many."""
    exact = oracle().forward(IDS)
    for seed in (None, 3):
        judge = Oracle(*TINY, torch.float32, seed)
        near = judge.forward(IDS, choices=exact.choices, entries=exact.steps)
        assert (near.logits - exact.logits).abs().max() < 0.02
        for step, (trunk, pre) in near.steps.items():
            assert (trunk != exact.steps[step][0]).float().mean() < 0.02, step
            assert (pre - exact.steps[step][1]).abs().max() < 1e-5, step
    assert torch.equal(Oracle(*TINY, torch.float32, 3).forward(IDS).logits, judge.forward(IDS).logits)
    assert not torch.equal(oracle(torch.float32).forward(IDS).logits, judge.forward(IDS).logits)


def test_a_fault_in_one_step_shows_in_that_step() -> None:
    """Sinks of layer 5 set to zero: a subtle fault, invisible before its step and wide in it."""
    exact = oracle().forward(IDS)
    tensors = dict(TINY[1])
    tensors["layers.5.attn.attn_sink"] = torch.zeros(4)
    faulty = Oracle(TINY[0], tensors, TINY[2], torch.float64)
    steps = faulty.forward(IDS, choices=exact.choices, entries=exact.steps).steps
    wrong = {k: (s[0] != exact.steps[k][0]).float().mean().item() for k, s in steps.items()}
    assert wrong.pop((5, "ffn")) > 0.3
    assert set(wrong.values()) == {0.0}


def test_a_sublayer_reads_through_the_pre_of_the_one_before() -> None:
    """What enters with a step decides its input; the pre it hands on depends on the trunk alone."""
    judge = oracle()
    trunk = judge.forward(IDS[:12]).steps[3, "ffn"][0]
    outcomes = []
    for stream in (0, 3):
        pre = torch.zeros(12, 4)
        pre[:, stream] = 1
        steps = judge.forward(IDS[:12], entries={(3, "ffn"): (trunk, pre)}).steps
        outcomes.append(steps[4, "attn"])
    assert torch.equal(outcomes[0][1], outcomes[1][1])
    assert (outcomes[0][0] != outcomes[1][0]).float().mean() > 0.5


def test_roles_change_routing_and_engram_only() -> None:
    ids, roles = [500] * 6 + IDS[:20], [3, 2, 2, 5, 2, 4] + [0] * 20
    ids = IDS[:10] + ids
    roles = [0] * 10 + roles
    judge = oracle()
    result = judge.forward(ids, roles)
    for position in range(10, 16):
        for layer in (1, 2):
            trunk = result.steps[layer, "engram"][0][position]
            assert torch.equal(trunk, result.steps[layer, "attn"][0][position])
    assert not torch.equal(result.steps[1, "engram"][0][16], result.steps[1, "attn"][0][16])
    tensors: dict[str, Tensor] = dict(TINY[1])
    for layer in range(8):
        tensors[f"layers.{layer}.ffn.gate.bias_vl"] = TINY[1][f"layers.{layer}.ffn.gate.bias"]
    same_bias = Oracle(TINY[0], tensors, TINY[2], torch.float64).forward(ids, roles)
    assert torch.equal(result.logits[:10], same_bias.logits[:10])
    for layer in range(8):
        assert result.choices.experts[layer][:10] == same_bias.choices.experts[layer][:10]
    differing = [
        x for x in range(8) if result.choices.experts[x][10:16] != same_bias.choices.experts[x][10:16]
    ]
    assert differing


def test_embedding_rows_can_be_replaced() -> None:
    row = TINY[1]["embed.weight"][7]
    other = list(IDS[:12])
    other[5] = 7
    roles = [0] * 5 + [2] + [0] * 6
    replaced = oracle().forward(IDS[:12], roles, embeds={5: row}).logits
    assert torch.equal(replaced, oracle().forward(other, roles).logits)
    assert not torch.equal(replaced, oracle().forward(IDS[:12], roles).logits)


@pytest.mark.parametrize(
    ("ids", "roles", "words"),
    [
        ([], None, "0 tokens"),
        ([3, 4], [0], "1 roles"),
        ([512], None, "outside"),
        ([300], None, "not in the tokenizer"),
    ],
)
def test_bad_requests_are_refused(ids: list[int], roles: list[int] | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        oracle().forward(ids, roles)


@pytest.mark.parametrize(
    ("field", "value"), [("hc_shifted", False), ("num_hash_layers", 3), ("scoring_func", "sigmoid")]
)
def test_unknown_variants_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match="the oracle"):
        oracle(**{field: value})


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_saved_checkpoint_loads_back(tmp_path: Path, prefix: str) -> None:
    config, tensors, _ = TINY
    (tmp_path / "config.json").write_text(json.dumps(config))
    build_tokenizer().save(str(tmp_path / "tokenizer.json"))
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        shard = f"model-{number:05}-of-00002.safetensors"
        save_file({prefix + n: tensors[n].contiguous() for n in part}, tmp_path / shard)
        weight_map.update({prefix + n: shard for n in part})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded_config, loaded = load_tensors(tmp_path)
    assert loaded_config == config and set(loaded) == set(tensors)
    for name, value in tensors.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name].view(torch.uint8), value.contiguous().view(torch.uint8))
    reloaded = load_oracle(tmp_path, torch.float64).forward(IDS[:20]).logits
    assert torch.equal(reloaded, oracle().forward(IDS[:20]).logits)
