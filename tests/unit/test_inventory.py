"""The tensor inventory against the published sizes of the official checkpoint."""

from __future__ import annotations

import pytest

from tandem.checkpoint.inventory import TensorGroup, TensorSpec, tensor_inventory
from tandem.checkpoint.totals import inventory_totals
from tandem.cli.checkpoint import official_config
from tandem.model.config import ModelConfig

OFFICIAL = official_config()
INVENTORY = tensor_inventory(OFFICIAL)
BY_NAME = {spec.name: spec for spec in INVENTORY}


def test_official_count_and_bytes_are_exact() -> None:
    totals = inventory_totals(OFFICIAL, INVENTORY)
    assert len(BY_NAME) == totals.tensors == 96_085
    assert totals.nbytes == 510_286_023_000


def test_official_parameters_are_as_published() -> None:
    totals = inventory_totals(OFFICIAL, INVENTORY)
    assert round(totals.backbone / 1e9, 1) == 551.6
    # two tables of 24 prime-sized segments, 256 values a row
    assert totals.engram_tables == (384_006_168 + 384_016_682) * 256
    assert round(totals.engram_tables / 1e9, 1) == 196.6
    assert round(totals.engram / 1e9, 2) == 196.93
    assert round(totals.dspark / 1e9, 2) == 14.23
    assert round(totals.vision / 1e9, 3) == 0.485
    assert round(totals.active_prefill / 1e9, 2) == 7.58
    assert round(totals.active_decode / 1e9, 2) == 15.82


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("layers.0.hc_attn_fn", (24, 20480), "F32"),
        TensorSpec("layers.39.attn.wq_b.weight", (32768, 1280), "F8_E4M3"),
        TensorSpec("layers.39.attn.wq_b.scale", (1024, 40), "F8_E8M0"),
        TensorSpec("layers.7.attn.wo_a.weight", (8192, 4096), "F8_E4M3"),
        TensorSpec("layers.7.ffn.experts.383.w2.weight", (5120, 1152), "I8"),
        TensorSpec("layers.7.ffn.experts.383.w2.scale", (5120, 72), "F8_E8M0"),
        TensorSpec("layers.14.engram.embed.weight", (384_016_682, 256), "F8_E4M3"),
        TensorSpec("layers.14.engram.embed.scale", (384_016_682, 8), "F8_E8M0"),
        TensorSpec("layers.14.engram.wkv.weight", (25600, 6144), "F8_E4M3"),
        TensorSpec("layers.8.attn.compressor.wgate.weight", (512, 5120), "BF16"),
        TensorSpec("layers.36.attn.indexer.weights_proj.weight", (32, 5120), "BF16"),
        TensorSpec("mtp.0.main_proj.weight", (5120, 15360), "F8_E4M3"),
        TensorSpec("mtp.2.ffn.gate.bias_vl", (128,), "F32"),
        TensorSpec("mtp.2.confidence_head.proj.weight", (1, 5376), "BF16"),
        TensorSpec("vision.blocks.31.mlp.w1.weight", (5632, 1024), "BF16"),
        TensorSpec("aligner.w1.weight", (5120, 9216), "BF16"),
    ],
    ids=lambda spec: spec.name,
)
def test_official_tensors(spec: TensorSpec) -> None:
    assert BY_NAME[spec.name] == spec


@pytest.mark.parametrize(
    "name",
    [
        "layers.20.attn.compressor.wgate.weight",  # ratio 1 has no gate
        "layers.24.attn.compressor.wkv.weight",  # selects anew, but shares the KV of layer 20
        "layers.21.attn.indexer.wq_b.weight",  # reuses the selection of layer 20
        "layers.2.engram.wkv.weight",
        "hc_head_fn",
        "mtp.0.attn.indexer.wk.weight",
    ],
)
def test_tensors_that_do_not_exist(name: str) -> None:
    assert name not in BY_NAME


def test_params_of_packed_weights_and_scales() -> None:
    assert TensorSpec("w", (3, 4), "I8").params == 24
    assert TensorSpec("w", (3, 4), "I8").nbytes == 12
    assert TensorSpec("w", (3, 4), "F8_E8M0").params == 0
    assert TensorSpec("w", (3, 4), "BF16").nbytes == 24
    assert TensorSpec("w", (3, 4), "F32").nbytes == 48


def test_groups_without_vision_or_drafts() -> None:
    raw = OFFICIAL.to_dict()
    del raw["vision_config"]
    raw["text_config"]["num_nextn_predict_layers"] = 0
    raw["text_config"]["compress_ratios"] = raw["text_config"]["compress_ratios"][:40]
    text_only = ModelConfig.from_dict(raw)
    text_part = [spec for spec in INVENTORY if spec.group is TensorGroup.TEXT]
    assert tensor_inventory(text_only) == text_part
