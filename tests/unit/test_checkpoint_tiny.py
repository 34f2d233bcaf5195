"""Synthetic checkpoints: complete, reproducible, and shaped like a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.checkpoint.inventory import TensorGroup, TensorSpec
from tandem.checkpoint.reader import Checkpoint
from tandem.checkpoint.tiny import make_tiny
from tandem.checkpoint.tiny_weights import random_rows
from tandem.errors import ConfigError
from tandem.model.config import ModelConfig
from tandem.model.engram_tables import engram_vocabulary_map
from tandem.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_tiny(path, 0)
    return path


def test_it_is_complete(tiny: Path) -> None:
    config = ModelConfig.from_file(tiny / "config.json")
    with Checkpoint.open(tiny) as checkpoint:
        assert checkpoint.config == config
        assert checkpoint.validate(scope=tuple(TensorGroup)) == set(TensorGroup)
        for name in checkpoint.names():
            tensor = checkpoint.read(name)
            if tensor.dtype is not torch.int8:
                assert tensor.float().isfinite().all(), name
    assert Tokenizer.load(tiny).vocab_size == config.text.vocab_size == 512
    assert engram_vocabulary_map(config.text, tiny / "tokenizer.json").shape == (512,)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("layers.0.attn.wq_b.weight", (256, 64)),
        ("layers.0.attn.wkv.weight", (64, 128)),
        ("layers.0.attn.wo_a.weight", (64, 128)),
        ("layers.0.attn.wo_b.weight", (128, 64)),
        ("layers.0.hc_ffn_fn", (24, 512)),
        ("layers.1.engram.embed.weight", (660, 32)),
        ("layers.2.engram.wkv.weight", (640, 192)),
        ("layers.3.attn.indexer.wq_b.weight", (64, 64)),
        ("mtp.0.main_proj.weight", (128, 384)),
        ("mtp.1.markov_head.embed.weight", (512, 32)),
        ("mtp.1.confidence_head.proj.weight", (1, 160)),
        ("vision.blocks.1.mlp.w1.weight", (256, 64)),
        ("vision.patch_embed.proj.weight", (64, 588)),
        ("aligner.w1.weight", (128, 576)),
    ],
)
def test_shapes(tiny: Path, name: str, shape: tuple[int, ...]) -> None:
    with Checkpoint.open(tiny) as checkpoint:
        assert checkpoint.spec(name).shape == shape


def test_the_seed_decides_every_byte(tiny: Path, tmp_path: Path) -> None:
    make_tiny(tmp_path / "same", 0)
    for file in tiny.iterdir():
        assert (tmp_path / "same" / file.name).read_bytes() == file.read_bytes()
    make_tiny(tmp_path / "other", 1)
    with Checkpoint.open(tiny) as a, Checkpoint.open(tmp_path / "other") as b:
        codes = [name for name in a.names() if a.spec(name).dtype != "F8_E8M0"]
        assert all(not torch.equal(raw(a, name), raw(b, name)) for name in codes)


def raw(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    return checkpoint.read(name).view(torch.uint8)


def test_experts_and_layers_differ(tiny: Path) -> None:
    with Checkpoint.open(tiny) as checkpoint:
        first = raw(checkpoint, "layers.0.ffn.experts.0.w1.weight")
        assert not torch.equal(first, raw(checkpoint, "layers.0.ffn.experts.1.w1.weight"))
        assert not torch.equal(first, raw(checkpoint, "layers.1.ffn.experts.0.w1.weight"))
        assert not torch.equal(first, raw(checkpoint, "layers.0.ffn.experts.0.w3.weight"))


def test_weights_are_shaped_like_a_trained_model(tiny: Path) -> None:
    with Checkpoint.open(tiny) as checkpoint:
        assert 3.8 < checkpoint.read("embed.weight").float().std() < 4.2
        base = checkpoint.read("layers.6.hc_attn_base")
        assert (base[[0, 1, 3]] < -2).all() and base[2] > 2  # layer 6 reads stream 6 mod 4
        comb = base[8:].view(4, 4)
        assert (comb.diagonal() > 1).all()
        assert (comb[~torch.eye(4, dtype=torch.bool)] < -1).all()
        for layer in range(8):
            text = checkpoint.read(f"layers.{layer}.ffn.gate.bias")
            image = checkpoint.read(f"layers.{layer}.ffn.gate.bias_vl")
            assert (text != 0).all() and (image != 0).all() and (text != image).all()
            scale = checkpoint.read(f"layers.{layer}.hc_ffn_scale")
            assert ((scale >= 0.01) & (scale <= 1)).all()
        sinks = torch.cat([checkpoint.read(f"layers.{layer}.attn.attn_sink") for layer in range(8)])
        assert 0.6 < sinks.std() < 1.4


def test_the_clamp_is_reached_now_and_then() -> None:
    # unit-scale inputs through an expert's gate: some pass 10, but far less than one in a hundred
    weight = next(random_rows(TensorSpec("layers.0.ffn.experts.0.w1.weight", (4096, 64), "I8"), 0))
    x = torch.randn(256, 128, generator=torch.Generator().manual_seed(0))
    share = (x @ weight.T > 10).float().mean()
    assert 1e-6 < share < 1e-2


def test_overrides_make_other_models(tmp_path: Path) -> None:
    changes = {"text_config": {"n_routed_experts": 16, "engram_vocab_size": 1000}, "vision_config": None}
    config = make_tiny(tmp_path, 3, changes)
    assert config.vision is None
    assert config.text.hidden_size == 128
    # the first twelve primes from 1000 on, in two layers
    assert config.text.engram_num_embeddings == (
        1009 + 1013 + 1019 + 1021 + 1031 + 1033,
        1039 + 1049 + 1051 + 1061 + 1063 + 1069,
    )
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.validate() == {TensorGroup.TEXT, TensorGroup.DSPARK}
        assert checkpoint.spec("layers.7.ffn.experts.15.w2.weight").shape == (128, 32)


def test_large_tensors_are_made_in_pieces() -> None:
    spec = TensorSpec("layers.1.engram.embed.weight", (200_000, 32), "F8_E4M3")
    pieces = list(random_rows(spec, 0))
    assert len(pieces) > 1 and sum(len(piece) for piece in pieces) == 200_000
    assert not torch.equal(pieces[0][:32], pieces[1][:32])


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed is negative"):
        make_tiny(tmp_path, -1)
    with pytest.raises(ConfigError, match=r"text_config\.hidden_size"):
        make_tiny(tmp_path, 0, {"text_config": {"hidden_size": 100}})
