"""A weight that is no number is refused while loading; routing and top-k would hide it from the logits."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from tandem import LLM
from tandem.errors import CheckpointError

NAN, INFINITY = b"\xc0\x7f", b"\x80\x7f"  # bf16, little-endian; as the upper half of an f32 they are the same
TENSORS = [
    "layers.1.attn.compressor.norm.weight",
    "layers.1.attn.compressor.wgate.weight",
    "layers.4.attn.indexer.wk.weight",
    "layers.4.attn.indexer.weights_proj.weight",
    "layers.2.ffn.gate.bias",
    "layers.0.attn.attn_sink",
    "layers.3.hc_ffn_fn",
    "embed.weight",
]


@pytest.mark.parametrize("value", [NAN, INFINITY], ids=["nan", "infinity"])
@pytest.mark.parametrize("name", TENSORS)
def test_one_bad_element_is_refused_by_name(tiny: Path, tmp_path: Path, name: str, value: bytes) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny, damaged)
    weight_map = json.loads((damaged / "model.safetensors.index.json").read_text())["weight_map"]
    shard = damaged / weight_map[name]
    data = bytearray(shard.read_bytes())
    header = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8 : 8 + header])[name]
    end = 8 + header + entry["data_offsets"][1]
    data[end - 2 : end] = value  # the last bf16, or the upper half of the last f32
    shard.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        LLM(damaged, backend="cpu")
    assert f"'{name}'" in caught.value.where and "NaN or infinity" in caught.value.why
