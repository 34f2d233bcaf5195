"""The checkpoint writer, read back by the safetensors library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tandem.checkpoint.inventory import TensorSpec
from tandem.checkpoint.writer import INDEX_NAME, CheckpointWriter
from tandem.errors import CheckpointError

SPECS = [
    TensorSpec("bias", (3,), "F32"),
    TensorSpec("a.weight", (4, 32), "F8_E4M3"),
    TensorSpec("a.scale", (1, 1), "F8_E8M0"),
    TensorSpec("layers.1.engram.embed.weight", (6, 32), "F8_E4M3"),
    TensorSpec("layers.1.engram.embed.scale", (6, 1), "F8_E8M0"),
    TensorSpec("b.weight", (2, 8), "I8"),
    TensorSpec("b.scale", (2, 1), "F8_E8M0"),
    TensorSpec("norm.weight", (5,), "BF16"),
]
DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
}


def values() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {
        spec.name: torch.randint(0, 100, (spec.nbytes,), dtype=torch.uint8, generator=generator)
        .view(DTYPES[spec.dtype])
        .view(spec.shape)
        for spec in SPECS
    }


def write_all(directory: Path, **options: int) -> dict[str, torch.Tensor]:
    tensors = values()
    with CheckpointWriter(directory, SPECS, **options) as writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor)
    return tensors


def weight_map(directory: Path) -> dict[str, str]:
    return json.loads((directory / INDEX_NAME).read_text())["weight_map"]


def test_the_safetensors_library_reads_the_same_bytes(tmp_path: Path) -> None:
    tensors = write_all(tmp_path)
    for name, file in weight_map(tmp_path).items():
        with safe_open(tmp_path / file, "pt") as shard:
            read = shard.get_tensor(name)
        assert read.dtype == tensors[name].dtype and read.shape == tensors[name].shape
        assert torch.equal(read.view(torch.uint8), tensors[name].view(torch.uint8))


def test_index_and_shard_names(tmp_path: Path) -> None:
    write_all(tmp_path)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    # 3*4 + 128 + 1 + 192 + 6 + 16 + 2 + 5*2
    assert index["metadata"] == {"total_size": 367}
    assert set(index["weight_map"]) == {spec.name for spec in SPECS}
    # what comes before the Engram table, the table, what comes after it
    assert sorted(set(index["weight_map"].values())) == [
        f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("limit", [1, 64, 150, 1 << 20])
def test_a_scale_stays_with_its_weight(tmp_path: Path, limit: int) -> None:
    write_all(tmp_path, max_shard_bytes=limit)
    placed = weight_map(tmp_path)
    for base in ("a", "b", "layers.1.engram.embed"):
        assert placed[f"{base}.weight"] == placed[f"{base}.scale"]
    table = placed["layers.1.engram.embed.weight"]
    assert [name for name, file in placed.items() if file == table] == [
        "layers.1.engram.embed.scale",
        "layers.1.engram.embed.weight",
    ]


def test_rows_in_pieces_give_the_same_files(tmp_path: Path) -> None:
    tensors = write_all(tmp_path / "whole")
    with CheckpointWriter(tmp_path / "pieces", SPECS) as writer:
        for start in range(0, 6, 2):
            for name, tensor in tensors.items():
                if tensor.shape[0] > start:
                    writer.write(name, tensor[start : start + 2])
    for file in (tmp_path / "whole").iterdir():
        assert (tmp_path / "pieces" / file.name).read_bytes() == file.read_bytes()


def test_an_incomplete_checkpoint_has_no_index(tmp_path: Path) -> None:
    write_all(tmp_path)
    writer = CheckpointWriter(tmp_path, SPECS)
    writer.write("a.weight", values()["a.weight"][:3])
    with pytest.raises(CheckpointError, match="incomplete") as caught:
        writer.finish()
    assert "bias" in caught.value.where
    with pytest.raises(ZeroDivisionError), CheckpointWriter(tmp_path, SPECS):
        raise ZeroDivisionError
    assert not (tmp_path / INDEX_NAME).exists()


@pytest.mark.parametrize(
    ("name", "tensor", "what"),
    [
        ("c.weight", torch.zeros(1), "not announced"),
        ("bias", torch.zeros(3, dtype=torch.bfloat16), "not as announced"),
        ("b.weight", torch.zeros(2, 9, dtype=torch.int8), "not as announced"),
        ("bias", torch.zeros(4), "too many rows"),
    ],
)
def test_what_was_not_announced_is_refused(
    tmp_path: Path, name: str, tensor: torch.Tensor, what: str
) -> None:
    writer = CheckpointWriter(tmp_path, SPECS)
    with pytest.raises(CheckpointError, match=what) as caught:
        writer.write(name, tensor)
    assert f"'{name}'" in caught.value.where
