"""The count of floating-point work against the tensors of the checkpoint, and against sums by hand."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest

from tandem.checkpoint.inventory import tensor_inventory
from tandem.checkpoint.shipped import shipped_model
from tandem.cli.checkpoint import official_config
from tandem.model.config import ModelConfig
from tandem.model.flops import entry_flops, key_flops, prompt_flops, row_flops

# Matrices of a layer that rows meet up to the compressed keys; the other ones come after.
_ENTRY = (
    "hc_attn_fn",
    "attn.compressor.wkv.weight",
    "attn.compressor.wgate.weight",
    "attn.indexer.wk.weight",
    "engram.wkv.weight",
)
_NO_MATRIX = ("engram.embed.weight", "engram.q_weight", "engram.k_weight")  # rows are looked up, elements scaled


@pytest.mark.parametrize("config", [official_config(), ModelConfig.from_file(shipped_model() / "config.json")])
def test_weights_are_those_of_the_checkpoint(config: ModelConfig) -> None:
    """Each parameter of a matrix is one multiplication and one addition; of the routed experts a row meets some."""
    text = config.text
    met = tuple(f"ffn.experts.{number}." for number in range(text.num_experts_per_tok))
    entry, row = defaultdict[int, int](int), defaultdict[int, int](int)
    for spec in tensor_inventory(config):
        found = re.fullmatch(r"layers\.(\d+)\.(.*)", spec.name)
        if found is None or len(spec.shape) != 2 or spec.params == 0 or found[2] in _NO_MATRIX:
            continue
        if ".experts." in found[2] and not found[2].startswith(met):
            continue
        early = found[2] in _ENTRY
        (entry if early else row)[int(found[1])] += spec.params
    for layer in range(text.num_hidden_layers):
        assert entry_flops(text, layer) == 2 * entry[layer]
        assert row_flops(text, layer) == 2 * row[layer]


def test_keys_of_one_row_by_hand() -> None:
    """The official model at position 40000: 128 window keys and 512 entries of 64 heads of 512; 32 index heads of 128
    score every entry in layer 20, 2048 blocks of 8 in layer 24, nothing in layer 21."""
    text, at = official_config().text, np.array([40_000])
    attention = 2 * 2 * 64 * 512 * (128 + 512)
    assert key_flops(text, 20, at, 0) == attention + 2 * 32 * 128 * 40_001
    assert key_flops(text, 24, at, 0) == attention + 2 * 32 * 128 * 2048 * 8
    assert key_flops(text, 21, at, 0) == attention
    assert key_flops(text, 2, at, 0) == attention + 2 * 32 * 128 * 20_000
    assert key_flops(text, 0, at, 0) == 2 * 2 * 64 * 512 * 128
    # A bounded window that begins three positions before.
    assert key_flops(text, 21, at, 39_997) == 2 * 2 * 64 * 512 * (4 + 512)


def test_positions_add_up() -> None:
    text = ModelConfig.from_file(shipped_model() / "config.json").text
    at = np.arange(200)
    for layer in range(text.num_hidden_layers):
        assert key_flops(text, layer, at, 0) == sum(key_flops(text, layer, at[p : p + 1], 0) for p in at)


def test_what_a_bound_spares() -> None:
    """Of the official model's 20 decoder layers a dropped row still enters the first and makes its keys."""
    text = official_config().text
    full, bounded = prompt_flops(text, 1000), prompt_flops(text, 1000, 134)
    assert prompt_flops(text, 134, 134) == prompt_flops(text, 134)
    assert (bounded.encoder, bounded.head) == (full.encoder, full.head) == (full.encoder, 2 * 5120 * 129_280)
    dropped, kept = np.arange(866), np.arange(866, 1000)
    spared = 0
    for layer in range(20, 40):
        spared += 866 * (row_flops(text, layer) + (0 if layer == 20 else entry_flops(text, layer)))
        spared += key_flops(text, layer, dropped, 0)
        spared += key_flops(text, layer, kept, 0) - key_flops(text, layer, kept, 866)
    assert full.total - bounded.total == spared
    # Half of the layers, for 866 rows of 1000, less what a dropped row still does.
    assert 0.42 < 1 - bounded.total / full.total < 866 / 1000 / 2
