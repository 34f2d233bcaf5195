"""Number formats, rotary tables, Engram tables and the compressed vocabulary against hand-derived values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from .arith import Arith, round_to_grid
from .build import build_tiny, build_tokenizer, tiny_config
from .engram import Engram, hash_sizes, look_back, multipliers, table_rows
from .quant import (
    ceil_power_of_two,
    decode_e8m0,
    dequantize_blocks,
    dequantize_packed,
    fp8_values,
    index_values,
    main_kv_values,
    round_e2m1,
    round_e4m3,
)
from .rope import rotate, yarn_bounds, yarn_frequencies
from .settings import Settings, read_settings
from .vocabulary import compressed_vocabulary

F32 = Arith(torch.float32, None)


def tiny_settings() -> Settings:
    return read_settings(tiny_config())


def test_e2m1_ties_go_to_the_even_code() -> None:
    midpoints = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0])
    expected = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0])
    assert torch.equal(round_e2m1(midpoints), expected)
    assert torch.equal(round_e2m1(-midpoints), -expected)
    assert torch.equal(round_e2m1(midpoints + 1e-3), torch.tensor([0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 6.0]))


def test_grids_agree_with_the_casts_of_torch() -> None:
    x = torch.randn(20000, generator=torch.Generator().manual_seed(1))
    x = x * torch.exp2(torch.arange(20000) % 22 - 12.0)
    x = x[x.abs() <= 448]
    assert torch.equal(round_e4m3(x), x.to(torch.float8_e4m3fn).float())
    assert torch.equal(round_to_grid(x, 7, -126, math.inf), x.bfloat16().float())


def test_bf16_of_float64_rounds_once() -> None:
    """1 + 2^-8 is halfway between two bf16 values; a hair above goes up, though float32 drops it."""
    x = torch.tensor([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8], dtype=torch.float64)
    result = Arith(torch.float64, None).bf16(x)
    assert result.dtype == torch.bfloat16
    assert result.tolist() == [1 + 2.0**-7, 1.0]


@pytest.mark.parametrize(
    ("x", "scale"), [(1.0, 1.0), (1.0001, 2.0), (0.5, 0.5), (3.0, 4.0), (2.0**-140, 2.0**-126)]
)
def test_ue8m0_rounds_up(x: float, scale: float) -> None:
    assert ceil_power_of_two(torch.tensor([x], dtype=torch.float64)).item() == scale


def test_fp8_groups() -> None:
    row = torch.zeros(64)
    row[0], row[1], row[2] = 448.0, 17.0, 0.0009
    row[32], row[33] = 449.0, 17.0
    result = fp8_values(row)
    # Scale 1: 17 is a tie between 16 and 18, code even -> 16; 0.0009 < half of 2^-9.
    assert result[:3].tolist() == [448.0, 16.0, 0.0]
    # Scale 2: 224.5 -> 224 (step 16), 8.5 -> 8 (tie, even).
    assert result[32:34].tolist() == [448.0, 16.0]
    # The amax is at least 1e-4, so the scale at least 2^-22 and the step at least 2^-31.
    tiny = torch.zeros(32)
    tiny[0], tiny[1] = 1.4 * 2.0**-31, 0.5 * 2.0**-31
    assert fp8_values(tiny)[:2].tolist() == [2.0**-31, 0.0]


def test_main_kv_groups_use_the_rounded_e4m3_scale() -> None:
    row = torch.zeros(32)
    row[0], row[1] = 6.375, 1.0  # 6.375 / 6 = 1.0625, a tie of E4M3 -> scale 1.0; 6.375 saturates to 6
    row[16], row[17] = 6.5, 1.0  # 1.0833 -> 1.125; 5.78 -> 6; 0.889 -> 1
    result = main_kv_values(row)
    assert result[:2].tolist() == [6.0, 1.0]
    assert result[16:18].tolist() == [6.75, 1.125]
    assert main_kv_values(torch.full((16,), 2.0**-9)).tolist() == [2.0**-9] * 16  # smallest scale 2^-9


def test_index_groups() -> None:
    row = torch.zeros(32)
    row[0], row[1], row[2] = 6.5, 5.0, 0.5
    # 6.5 / 6 > 1 -> scale 2: 3.25 -> 3, 2.5 -> 2, 0.25 -> 0.
    assert index_values(row)[:3].tolist() == [6.0, 4.0, 0.0]


def test_weight_blocks_of_32_by_32_with_a_ragged_edge() -> None:
    weight = torch.ones(33, 64).to(torch.float8_e4m3fn)
    scale = torch.tensor([[127, 128], [129, 126]], dtype=torch.uint8)
    result = dequantize_blocks(weight, scale.view(torch.float8_e8m0fnu))
    corners = result[[0, 31, 32, 32], [0, 32, 31, 63]]
    assert corners.tolist() == [1, 2, 4, 0.5]
    assert decode_e8m0(torch.tensor([0, 255], dtype=torch.uint8))[0] == 2.0**-127


def test_packed_fp4_low_nibble_first() -> None:
    packed = torch.zeros(1, 32, dtype=torch.uint8)
    packed[0, 0], packed[0, 16] = 0x7A, 0xF1  # low A = -1.0, high 7 = 6; low 1 = 0.5, high F = -6
    scale = torch.tensor([[128, 126]], dtype=torch.uint8)
    result = dequantize_packed(packed.view(torch.int8), scale)
    assert result[0, :2].tolist() == [-2.0, 12.0]
    assert result[0, 32:34].tolist() == [0.25, -3.0]


def test_yarn_of_the_official_model() -> None:
    scaling = {"factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536}
    assert yarn_bounds(160000.0, 64, scaling) == (15, 25)
    f = yarn_frequencies(160000.0, 64, scaling)
    assert f[15] == pytest.approx(160000 ** (-30 / 64))
    assert f[25] == pytest.approx(160000 ** (-50 / 64) / 16)
    assert f[20] == pytest.approx(160000 ** (-40 / 64) * (0.5 + 0.5 / 16))


def test_rotation_of_interleaved_pairs_in_the_tail() -> None:
    x = torch.tensor([[9.0, 1.0, 0.0, 0.0, 2.0], [9.0, 1.0, 0.0, 0.0, 2.0]], dtype=torch.bfloat16)
    turned = rotate(F32, x, torch.tensor([0, 1]), [1.0, 0.5])
    assert torch.equal(turned[0], x[0])
    expected = [9.0, math.cos(1), math.sin(1), -2 * math.sin(0.5), 2 * math.cos(0.5)]
    assert turned[1].tolist() == torch.tensor(expected).bfloat16().tolist()
    back = rotate(F32, turned, torch.tensor([0, 1]), [1.0, 0.5], inverse=True)
    assert torch.allclose(back.float(), x.float(), atol=2e-2)


def official_engram() -> Settings:
    return replace(
        tiny_settings(),
        engram_layers=(1, 14),
        engram_vocab_size=16000000,
        engram_heads=8,
        engram_compressed=99092,
    )


def test_official_engram_tables() -> None:
    sizes = hash_sizes(official_engram())
    assert [sum(s) for s in sizes.values()] == [384006168, 384016682]
    assert (sizes[1][0], sizes[1][8], sizes[14][0], sizes[14][-1]) == (16000057, 16000189, 16000477, 16000889)


def test_official_engram_multipliers() -> None:
    first = [76632096046245, 4839876093313, 35959672319349, 73987337458391]
    second = [67716810739261, 51510806800915, 30921347202721, 82619226485591]
    assert multipliers(official_engram(), 1).tolist() == first
    assert multipliers(official_engram(), 14).tolist() == second


def test_tiny_engram_tables() -> None:
    assert hash_sizes(tiny_settings()) == {
        1: [101, 103, 107, 109, 113, 127],
        2: [131, 137, 139, 149, 151, 157],
    }


def test_look_back_stops_for_good_at_the_start_and_at_images() -> None:
    compressed = np.arange(100) + 1000
    history = look_back(tiny_settings(), compressed, [10, 11, 12, 13, 14, 15], [0, 0, 3, 0, 0, 0])
    pad = 1002
    assert history[0].tolist() == [1010, pad, pad, pad]
    assert history[1].tolist() == [1011, 1010, pad, pad]
    assert history[2].tolist() == [pad] * 4
    assert history[4].tolist() == [1014, 1013, pad, pad]
    assert history[5].tolist() == [1015, 1014, 1013, pad]


def test_rows_are_xor_hashes_in_consecutive_segments() -> None:
    history, factors = np.array([[3, 5, 7]]), np.array([11, 13, 17])
    # 33 ^ 65 = 96; 96 ^ 119 = 23.
    rows = table_rows(history, factors, [10, 100, 7, 11], heads=2)
    assert rows.tolist() == [[96 % 10, 96 % 100 + 10, 23 % 7 + 110, 23 % 11 + 117]]


def test_engram_refuses_a_foreign_tokenizer() -> None:
    with pytest.raises(ValueError, match="compressed ids"):
        Engram(tiny_settings(), None, F32, np.arange(5))  # type: ignore[arg-type]


def test_byte_vocabulary_compresses_to_230_ids() -> None:
    """3 specials + 128 lone high bytes + 128 ASCII - 26 capitals - 3 of the four blanks."""
    result = compressed_vocabulary(build_tokenizer())
    assert len(result) == 259 and len(set(result.tolist())) == 3 + 128 + 128 - 26 - 3
    assert result[3 + ord("Q")] == result[3 + ord("q")] != result[3 + ord("p")]
    assert result[3 + ord(" ")] == result[3 + ord("\n")] != result[3 + ord("\v")]
    assert build_tiny()[2].tolist() == result.tolist()


def test_vocabulary_strips_accents_blanks_and_width() -> None:
    words = ["é", "E", "Ａ", "a", " a", "é ", "  ", " ", "\n"]
    state = '{"version":"1.0","added_tokens":[],"model":{"type":"WordLevel","unk_token":"E","vocab":{}}}'
    tokenizer = Tokenizer.from_str(state)
    tokenizer.add_tokens(words)
    keys = compressed_vocabulary(tokenizer).tolist()
    assert keys == [0, 0, 1, 1, 1, 0, 2, 2, 2]
