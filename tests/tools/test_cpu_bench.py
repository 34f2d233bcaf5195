"""The CPU benchmark: floors on a configuration worked out by hand, cache bytes, goals, the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cpu import derive, floors, sizes
from benchmarks.cpu.__main__ import FORMAT, _merged
from benchmarks.cpu.costs import cost_of
from benchmarks.cpu.goals import Goal, goals
from benchmarks.cpu.meter import OpRow
from benchmarks.cpu.page import MEMORY, render
from benchmarks.cpu.settings import Settings, quick
from tandem.backends.cpu.backend import CpuBackend
from tandem.checkpoint.inventory import tensor_inventory
from tandem.contract.types import (
    CANONICAL,
    CacheKind,
    CanonicalWeight,
    KVCache,
    KVLayout,
    PackedWeight,
    QFormat,
    WeightKind,
)
from tandem.model.config import ModelConfig
from tandem.ops.head_sample import numbers

# One layer without compressed keys: every matrix can be counted by hand.
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_groups": 1,
    "o_lora_rank": 32,
    "sliding_window": 4,
    "compress_ratios": [0],
    "kv_source_layer_ids": [],
    "index_source_layer_ids": [],
    "candidate_source_layer_id": None,
    "index_n_heads": 1,
    "index_head_dim": 32,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "hc_mult": 2,
    "engram_layer_ids": [],
    "num_nextn_predict_layers": 0,
    "dspark_target_layer_ids": [],
    "dspark_noise_token_id": 60,
}


def small(**changes: Any) -> ModelConfig:
    """The configuration above, changed."""
    return ModelConfig.from_dict(sizes.raw_config("wide", 10, SMALL | changes))


def test_formats_have_the_bytes_of_their_codes_and_scales() -> None:
    assert floors.stored_bytes(QFormat.MXFP4, 2, 64) == 2 * (32 + 2)  # a scale for each 32 of a row
    assert floors.stored_bytes(QFormat.NVFP4, 64) == 32 + 4  # a scale for each 16
    assert floors.stored_bytes(QFormat.FP8_BLOCK32, 64, 64) == 64 * 64 + 4  # four blocks
    assert floors.stored_bytes(QFormat.MXFP8, 64) == 64 + 2


def test_uniform_routing() -> None:
    assert floors.expected_experts(4, 2, 1) == 2
    assert floors.expected_experts(4, 2, 2) == 3  # each is missed by both with 1/4


def test_decode_bytes_by_hand() -> None:
    """The screen of the head 64x32, for many rows the head; final norm; hyper-connections [8, 64] f32 twice; norms;
    sink; fp8 matrices; router."""
    parts = floors.decode_bytes(small(), batch=2, context=3, experts=[3.0])
    head = 64 * 32 + 2 + 64 * 4 + 32 * 2  # codes, two scales, bounds
    hyper = 2 * (8 * 64 * 4 + 8 * 4 + 3 * 4)
    norms = 2 * (32 * 2) + 32 * 2 + 32 * 2  # of two sub-layers, of q, of kv
    sink = 2 * 4
    # q_a 32x32, q_b 64x32, kv 32x32, o_a 32x64, o_b 32x32, three matrices of the shared expert 32x32
    fp8 = (1024 + 1) + (2048 + 2) + (1024 + 1) + (2048 + 2) + (1024 + 1) + 3 * (1024 + 1)
    router = 4 * 32 * 2 + 4 * 4
    assert parts.dense == head + hyper + norms + sink + fp8 + router
    many = floors.decode_bytes(small(), batch=17, context=3, experts=[3.0])
    assert many.dense - parts.dense == 64 * 32 * 2 - (64 * 32 + 2 + 64 * 4)
    assert parts.experts == 3 * 3 * (512 + 32)  # three of them, three matrices each, 32 rows of 16 + 1 bytes
    assert parts.cache == 2 * 3 * (32 + 1)
    assert parts.embedding == 2 * 32 * 2
    assert parts.engram == 0
    assert parts.total == parts.dense + parts.experts + parts.cache + parts.embedding


def compressed() -> ModelConfig:
    """Three layers: window only, ratio 2, ratio 1 with a pool of 8 entries."""
    return small(
        num_hidden_layers=4,
        compress_ratios=[0, 2, 1, 1],
        kv_source_layer_ids=[1, 2],
        index_source_layer_ids=[1, 2, 3],
        candidate_source_layer_id=2,
        candidate_topk_blocks=2,
        candidate_block_size=4,
        index_topk=5,
    )


def test_cache_bytes_per_token_by_hand() -> None:
    """A main entry is 32 codes of 4 bits and 2 scales, an index entry 16 bytes and 1; once per 2 tokens, once per 1."""
    assert floors.cache_bytes_per_token(compressed().text) == (18 + 17) / 2 + (18 + 17)
    assert floors.window_bytes(compressed().text) == 4 * 4 * 33


def test_cache_entries_that_a_row_reads() -> None:
    """At 21 tokens: 4 window entries in each layer, 5 selected in three, 10 + 21 + 8 (the pool) index keys."""
    assert floors.cache_read_bytes(compressed().text, 21) == 4 * 4 * 33 + 3 * 5 * 18 + (10 + 21 + 8) * 17


def test_inventory_counts_agree_with_the_totals_of_parameters() -> None:
    config = small()
    counts, read = sizes.parameters(config), floors.weights_read(config)
    assert counts["text"] == read["parameters"] == sum(spec.params for spec in tensor_inventory(config))
    # active: everything dense, of four experts two; image biases are no weights of text
    assert counts["active"] == read["dense_parameters"] + read["expert_parameters"] / 2 - 32 + 4  # final norm, bias_vl


@pytest.mark.parametrize(("nbytes", "flops", "seconds"), [(1e10, 0.0, 1.0), (1e9, 1e11, 1.0), (2e10, 1e11, 2.0)])
def test_a_floor_is_the_longer_of_bytes_and_products(nbytes: float, flops: float, seconds: float) -> None:
    assert floors.floor_seconds(nbytes, flops, 1.0e10, 1.0e11) == seconds


def weight(fmt: QFormat, kind: WeightKind, *shape: int) -> PackedWeight:
    """A weight of which only the description is read."""
    return PackedWeight(kind, fmt, shape, "none", None, 0)


def test_cost_of_a_product() -> None:
    """Rows in and out once, the weight once."""
    x, y = torch.zeros(3, 64, dtype=torch.bfloat16), torch.zeros(3, 32, dtype=torch.bfloat16)
    arguments = {"x": x, "weight": weight(QFormat.FP8_BLOCK32, WeightKind.LINEAR, 32, 64), "out_dtype": y.dtype}
    assert cost_of("linear", arguments, y, 0) == (3 * 64 * 2 + 3 * 32 * 2 + 32 * 64 + 2, 2 * 3 * 32 * 64)


def test_cost_of_experts_counts_those_with_rows() -> None:
    ends = torch.tensor([2, 2, 3, 3], dtype=torch.int32)
    x, y = torch.zeros(3, 64, dtype=torch.bfloat16), torch.zeros(3, 32, dtype=torch.bfloat16)
    arguments = {"x": x, "weight": weight(QFormat.MXFP4, WeightKind.EXPERTS, 4, 32, 64), "ends": ends}
    nbytes, flops = cost_of("grouped_linear", arguments, y, 0)
    assert nbytes == 3 * 64 * 2 + 3 * 32 * 2 + 2 * 32 * (32 + 2)
    assert flops == 2 * 3 * 32 * 64


def test_cost_of_greedy_tokens_is_that_of_the_screen() -> None:
    """A byte an element, one a block of 32 x 32, four a row; of many rows, and of others than greedy, the head's."""
    data = torch.zeros(64, 96, dtype=torch.bfloat16)
    head = CpuBackend(True).pack_weight(WeightKind.HEAD, CanonicalWeight(data, None, QFormat.BF16), (64, 96))
    screen, whole = 64 * 96 + 2 * 3 + 64 * 4, 64 * 96 * 2
    for rows, greedy, read in ((1, True, screen), (16, True, screen), (17, True, whole), (1, False, whole)):
        arguments = {"x": torch.zeros(rows, 96, dtype=torch.bfloat16), "head": head, **numbers(0, rows, greedy)}
        given = rows * (96 * 2 + 3 * 4 + 2 * 8)
        cost = cost_of("head_sample", arguments, torch.zeros(rows, dtype=torch.int32), 0)
        assert cost == (read + given + 4 * rows, 2 * rows * 64 * 96)


def test_cost_of_attention_counts_visible_entries_once() -> None:
    layout = KVLayout(CacheKind.WINDOW, QFormat.MXFP8, 32, 4)
    cache = KVCache(layout, 2, torch.zeros(9, layout.entry_bytes, dtype=torch.uint8), CANONICAL)
    q = torch.zeros(2, 3, 32, dtype=torch.bfloat16)
    slots = torch.tensor([[0, 1, -1], [0, 1, 2]], dtype=torch.int32)  # three entries, seen five times
    arguments = {"q": q, "window": cache, "window_slots": slots, "main": None, "main_slots": None}
    nbytes, flops = cost_of("sparse_attn", arguments, q, 0)
    assert nbytes == 2 * (2 * 3 * 32 * 2) + 2 * 3 * 4 + 3 * 33  # q, output, slots, entries
    assert flops == 4 * 3 * 32 * 5


def test_settings_survive_the_way_to_a_worker() -> None:
    assert Settings.from_json(quick(3).to_json()) == quick(3)


def middle(value: float) -> dict[str, float]:
    """A figure without spread."""
    return {"median": value, "min": value, "max": value}


def one_round(seconds: float, bandwidth: float = 1e10) -> dict[str, list[float]]:
    """Rounds of a figure without spread."""
    return {"seconds": [seconds], "bandwidth": [bandwidth]}


def made_up() -> dict[str, Any]:
    """A result of round numbers: bandwidth 10 GB/s beside everything, peak 100 GFLOP/s."""
    facts = {"processor": "Made Up 1", "family": "family 1, model 2", "features": ["avx2"], "processors": 2,
             "caches": {"L1 data": "1K"}, "memory_bytes": 1 << 30, "system": "None 1", "python": "3", "torch": "2",
             "threads": 2, "date": "2026-01-02", "load": 0.0}  # fmt: skip
    small_pages = {"one": middle(5e9), "all": middle(8e9), "huge_bytes": 0, "refused": ""}
    huge_pages = {"one": middle(6e9), "all": middle(1.2e10), "huge_bytes": 1 << 29, "refused": "not today"}
    stream = {"small": small_pages, "huge": huge_pages, "kernel": "none", "buffer_bytes": 1 << 30}
    sums = {"parameters": 302e6, "bytes": 4e8, "dense_parameters": 50e6, "dense_bytes": 1e8,
            "expert_parameters": 8e8, "expert_bytes": 8e8}  # fmt: skip
    speeds = {f"{what}_{count}": middle(100.0) for what in ("prefill", "decode") for count in (1, 8)}
    beside = {f"bandwidth_{count}": middle(1e10) for count in (1, 8)}
    op = {"op": "linear bf16", "calls": 4.0, "seconds": 0.006, "nbytes": 3e7, "flops": 0.0, "floor_s": 0.003}
    step = {"batch": 1, "step_s": 0.0101, "in_ops_s": 0.009, "calls": 100.0, "experts": [2.0], "rows": [op],
            "bandwidth": 1e10}  # fmt: skip
    parts = {name: middle(0.0) for name in ("schedule_s", "forward_s", "sample_s", "deliver_s")}
    decode = {"batch": 1, "steps": 8, "context": 3, "tokens_per_s": middle(50.0), "step_s": middle(0.02),
              "rounds": one_round(0.02), "outside": middle(0.25), "clock_s": 1e-4} | parts  # fmt: skip
    prefill = {"tokens": 512, "rounds": 1, "first_token_s": middle(2.0), "tokens_per_s": middle(256.0), "flops": 1e11}
    memory = dict.fromkeys(MEMORY, 1) | {"private_bytes": 120, "peak_bytes": 130, "weight_bytes": 90, "cache_bytes": 10}
    config = small().to_dict()
    size = {"about": "made up", "config": config, "errors": {}, "decode": [decode], "prefill": [prefill],
            "memory": memory, "ops": {"call_overhead_s": 1e-6, "decode": [step], "prefill": []},
            "parameters": sizes.parameters(small()), "beside": {"variant": "own"} | sums | speeds | beside}  # fmt: skip
    products = [{"op": "linear", "format": "bf16", "rows": 1, "nbytes": 1e7, "flops": 0.0, "seconds": middle(0.00125),
                 "rounds": one_round(0.00125)}]  # fmt: skip
    slow = {key: middle(value["median"] / 2) for key, value in speeds.items()}
    rows = [{"variant": "q4_0"} | sums | slow | {"bandwidth_1": middle(2e10)}]
    own = [{key: middle(factor * value["median"]) for key, value in speeds.items()} for factor in (0.8, 1.2)]
    peer = {"peer": "llama-cpp", "packages": ["p==1"], "differs": "another", "rows": rows, "own": own}
    gone = {"peer": "flyweight", "packages": ["f==1"], "differs": "another", "skipped": "no wheel", "own": own}
    return {
        "machine": {"facts": facts, "stream": stream, "gemm_f32": {"best": 1e11}, "gemm_bf16": {"best": 2e11}},
        "products": products,
        "sizes": {"mid": size},
        "context": {"rows": [{"context": 1024, "step_s": middle(0.02), "cache_bytes": 2e6,
                              "rounds": one_round(0.02)}],
                    "cache": {"bytes_per_token": 35.0, "layout": 35.0}},
        "startup": {"tandem doctor": middle(0.5), "first token": middle(4.0), "import tandem": middle(0.1)},
        "peers": [peer, gone],
    }  # fmt: skip


def test_goals_are_judged_by_the_figures() -> None:
    found = {goal.text: goal for goal in goals(made_up())}
    bf16 = found["bf16 GEMV op, share of the stream floor"]
    assert bf16.found == pytest.approx(0.8) and bf16.verdict == "met"  # 1 ms of bytes in 1.25 ms
    assert found["mxfp4 GEMV op, share of the stream floor"].verdict == "not measured"
    assert found["prefill, mid, 512 tokens, share of the fp32 GEMM peak"].found == pytest.approx(0.5)
    outside = found["work outside ops, mid, batch 1, share of a replayed step"]
    assert outside.found == 0.25 and outside.verdict == "not met"  # of the steps as they run, not of the eager ones
    assert found["work outside ops, mid, batch 8, share of a replayed step"].verdict == "not measured"
    assert found["peak private memory, mid, over stored weights and caches"].found == pytest.approx(1.2)
    assert found["peak memory with pages of files, mid, over the same"].found == pytest.approx(1.3)
    q4_0 = found["decode, batch 1, against llama.cpp q4_0"]
    assert q4_0.found == pytest.approx(2.0) and q4_0.verdict == "met"  # 80 and 120 around 50 tokens/s
    assert found["decode, batch 1, against transformers"].verdict == "not measured"
    assert found["first token, a fresh process"].verdict == "not met"
    assert found["cache bytes per token, distance from the layout's figure (rounding aside)"].verdict == "met"


def test_a_bound_can_lie_on_either_side() -> None:
    assert Goal("", 1.0, 1.0, "x", True).verdict == Goal("", 1.0, 1.0, "x", False).verdict == "met"
    assert Goal("", 1.0, 0.9, "x", True).verdict == Goal("", 1.0, 1.1, "x", False).verdict == "not met"


def test_ceiling_of_a_peer() -> None:
    """A token uses 1e8 dense bytes and 4 of 32 experts of 8e8: 2e8 bytes at the 10 GB/s beside its rounds."""
    row = {"dense_bytes": 1e8, "expert_bytes": 8e8, "bandwidth_1": middle(1e10)}
    assert derive.ceiling(row, 1) == pytest.approx(50.0)


def test_share_of_a_round_is_that_of_its_own_bandwidth() -> None:
    """Of 1e9 bytes the floors are 0.5, 1 and 0.25 s; the third is one of products, 0.4 s."""
    rounds = {"seconds": [1.0, 1.25, 0.5], "bandwidth": [2e9, 1e9, 4e9]}
    found = derive.against_floor(rounds, 1e9, 4e10, {"machine": {"gemm_f32": {"best": 1e11}}})
    assert found["floor_s"] == 0.5
    assert found["share"] == {"median": 0.8, "min": 0.5, "max": 0.8}
    assert found["bandwidth"] == {"median": 2e9, "min": 1e9, "max": 4e9}


def test_calls_are_bound_one_by_one() -> None:
    """1 s of bytes and 2 s of products: together each is bound by something else."""
    row = OpRow(costs=[(1e10, 0.0), (1e9, 2e11)])
    assert row.cost(1e10, 1e11) == {"nbytes": 1.1e10, "flops": 2e11, "floor_s": 3.0}


def test_eager_steps_are_counted_without_their_metering() -> None:
    """(10.1 - 9 - 0.1) of (10.1 - 0.1) ms."""
    assert derive.outside_share(made_up()["sizes"]["mid"]["ops"]["decode"][0], 1e-6) == pytest.approx(0.1)


def test_a_file_of_another_format_is_refused() -> None:
    with pytest.raises(SystemExit, match="another version"):
        _merged([made_up()])
    merged = _merged([made_up() | {"format": FORMAT}, {"format": FORMAT, "sizes": {"wide": {}}, "peers": []}])
    assert sorted(merged["sizes"]) == ["mid", "wide"] and len(merged["peers"]) == 2


def test_the_page_says_what_was_measured() -> None:
    text = render(made_up(), ["decode.png"], "Kept by hand.\n")
    assert "| processor | Made Up 1 (family 1, model 2), 2 processors |" in text
    assert "| bf16 GEMV op, share of the stream floor | at least 80.0% | 80.0% | met |" in text
    assert "| 5.0 (5.0 to 5.0) GB/s with 1 thread, 8.0 (8.0 to 8.0) GB/s with 2 |" in text
    assert "GB/s with 2; only 512 MiB of the buffer got huge pages: not today |" in text
    product = "1,250.0 (1,250.0 to 1,250.0) | 1000.0 | 80% (80% to 80%) | 10.0 (10.0 to 10.0) | 8.0 | 0 |"
    assert f"| linear bf16 | 1 | {product}" in text
    assert "| 25.0% (25.0% to 25.0%) |" in text and "takes at most 0.50% of a step" in text
    assert "10.10 ms, 100 calls, 10.0% outside; stream 10.0 GB/s:" in text
    assert "| 50.0 (50.0 to 50.0) | 100 | 20.0 (20.0 to 20.0) | 50.0 (50.0 to 50.0) |  |  |" in text  # llama.cpp
    assert "| linear bf16 | 4 | 6.000 | 59.4% | 30.000 | 0.0 | 3.000 | 50% |" in text
    assert "flyweight (f==1): another.  Skipped: no wheel." in text
    assert "Not asked for: transformers, nano-deepseek-v4." in text
    assert "(performance/decode.png)" in text and "context.png" not in text
    assert text.endswith("## What was tried\n\nKept by hand.\n")


def test_a_page_of_nothing_but_the_machine() -> None:
    result = {"machine": made_up()["machine"], "sizes": {}, "peers": []}
    text = render(result, [], "")
    assert "not measured" in text and "## Beside" not in text and "## Long context" not in text


def test_sizes_are_valid_configurations() -> None:
    for name in ("mid", "wide"):
        config = ModelConfig.from_dict(sizes.raw_config(name, 30_000))
        assert config.text.max_position_embeddings >= 262_144
        assert 0 < sizes.parameters(config)["active"] < sizes.parameters(config)["text"]


def test_checkpoint_folder_is_named_by_its_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sizes, "BUILD", tmp_path)
    assert sizes.directory("mid", 1) == sizes.directory("mid", 1) != sizes.directory("mid", 2)
    assert sizes.directory("mid", 1).parent == tmp_path


def test_mean_of_experts_by_layer() -> None:
    assert floors.mean_experts(np.array([[2, 4], [4, 4]]).tolist()) == [3.0, 4.0]
