"""The checkpoint reader: the right bytes, only those asked for, and a clear error for any damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.checkpoint.inventory import INDEX_NAME, TensorGroup
from tandem.checkpoint.progress import LoadProgress
from tandem.checkpoint.reader import Checkpoint
from tandem.checkpoint.tiny import make_tiny
from tandem.errors import CheckpointError, ConfigError

TABLE = "layers.1.engram.embed.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_tiny(path, 0)
    return path


@pytest.fixture
def tiny(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "model"))


def index_of(path: Path) -> dict[str, Any]:
    return json.loads((path / INDEX_NAME).read_text())


def write_index(path: Path, index: dict[str, Any]) -> None:
    (path / INDEX_NAME).write_text(json.dumps(index))


def rewrite(path: Path, name: str, change: Callable[[Tensors], None]) -> None:
    """Change the tensors of the shard that holds ``name``, through the safetensors library."""
    index = index_of(path)
    file = index["weight_map"][name]
    tensors = load_file(path / file)
    change(tensors)
    save_file(tensors, path / file)
    index["weight_map"] = {n: f for n, f in index["weight_map"].items() if f != file}
    index["weight_map"] |= dict.fromkeys(tensors, file)
    index["metadata"] = {}
    write_index(path, index)


def failure(path: Path, **scope: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught, Checkpoint.open(path) as checkpoint:
        checkpoint.validate(**scope)
    return caught.value


def test_all_tensors_are_those_that_safetensors_reads(source: Path) -> None:
    with Checkpoint.open(source) as checkpoint:
        seen = set()
        for file in source.glob("*.safetensors"):
            for name, expected in load_file(file).items():
                found = checkpoint.read(name)
                assert found.dtype == expected.dtype and found.shape == expected.shape
                assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
                assert checkpoint.spec(name).shape == tuple(expected.shape)
                seen.add(name)
        assert checkpoint.names() == sorted(seen)
        assert checkpoint.validate() == set(TensorGroup)


def test_row_ranges(source: Path) -> None:
    with Checkpoint.open(source) as checkpoint:
        whole = checkpoint.read(TABLE).view(torch.uint8)
        for rows in (slice(0, 1), slice(5, 9), slice(655, 660), slice(650, None), slice(7, 7)):
            assert torch.equal(checkpoint.read(TABLE, rows).view(torch.uint8), whole[rows])
        assert checkpoint.read(TABLE, slice(0, 0)).shape == (0, 32)
        for rows in (slice(0, 661), slice(661, None), slice(0, 8, 2), slice(9, 5)):
            with pytest.raises(CheckpointError, match="bad row range"):
                checkpoint.read(TABLE, rows)


def test_writing_to_a_view_does_not_change_the_file(tiny: Path) -> None:
    with Checkpoint.open(tiny) as checkpoint:
        before = checkpoint.read("norm.weight").clone()
        checkpoint.read("norm.weight").zero_()
    with Checkpoint.open(tiny) as checkpoint:
        assert torch.equal(checkpoint.read("norm.weight"), before)


def resident_file_bytes() -> int:
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("RssFile"))
    return int(line.split()[1]) * 1024


def test_release_gives_memory_back(tmp_path: Path) -> None:
    make_tiny(tmp_path, 0, {"text_config": {"engram_vocab_size": 50_000}})  # two tables of 300,000 x 32
    with Checkpoint.open(tmp_path) as checkpoint:
        before = resident_file_bytes()
        part = checkpoint.read(TABLE, slice(0, 1000)).view(torch.uint8)
        part.sum()
        # 32,000 bytes asked for; the kernel maps a few pages around them
        assert resident_file_bytes() - before < 1_000_000
        table = checkpoint.read(TABLE).view(torch.uint8)
        total = int(table.sum())
        assert resident_file_bytes() - before > 9_000_000
        checkpoint.release(TABLE)
        assert resident_file_bytes() - before < 1_000_000
        assert int(table.sum()) == total  # the view is still good
        checkpoint.release_all()
        assert resident_file_bytes() - before < 1_000_000


def test_model_prefix_is_stripped(tiny: Path, source: Path) -> None:
    index = index_of(tiny)
    for file in set(index["weight_map"].values()):
        save_file({f"model.{name}": t for name, t in load_file(tiny / file).items()}, tiny / file)
    index["weight_map"] = {f"model.{name}": file for name, file in index["weight_map"].items()}
    write_index(tiny, index)
    with Checkpoint.open(tiny) as prefixed, Checkpoint.open(source) as plain:
        assert prefixed.names() == plain.names()
        assert prefixed.validate() == set(TensorGroup)
        assert torch.equal(prefixed.read("norm.weight"), plain.read("norm.weight"))


def test_misaligned_tensors_are_read(tiny: Path) -> None:
    # A legal file whose bf16 data starts at an odd byte: one scale byte first.
    header = json.dumps(
        {
            "s": {"dtype": "F8_E8M0", "shape": [1], "data_offsets": [0, 1]},
            "w": {"dtype": "BF16", "shape": [3], "data_offsets": [1, 7]},
        }
    ).encode()
    header += b" " * (len(header) % 2)
    values = torch.tensor([1.0, -2.0, 0.5], dtype=torch.bfloat16)
    data = b"\x7f" + values.view(torch.uint8).numpy().tobytes()
    (tiny / "odd.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    write_index(tiny, {"weight_map": {"s": "odd.safetensors", "w": "odd.safetensors"}})
    with Checkpoint.open(tiny) as checkpoint:
        found = checkpoint.read("w")
        assert torch.equal(found, values)
        assert found.data_ptr() % 2 == 0  # some processors cannot load elements that lie across


def test_missing_files(tiny: Path, tmp_path: Path) -> None:
    assert "directory does not exist" in failure(tmp_path / "nowhere").what
    (tiny / INDEX_NAME).rename(tiny / "moved")
    assert INDEX_NAME in failure(tiny).what
    (tiny / "moved").rename(tiny / INDEX_NAME)
    (tiny / "config.json").unlink()
    assert "config.json" in failure(tiny).what


def test_bad_config_is_a_config_error(tiny: Path) -> None:
    (tiny / "config.json").write_text("{}")
    with pytest.raises(ConfigError):
        Checkpoint.open(tiny)


def test_index_that_points_nowhere(tiny: Path) -> None:
    index = index_of(tiny)
    file = index["weight_map"][TABLE]
    (tiny / file).unlink()
    error = failure(tiny)
    assert "index is damaged" in error.what and file in error.why and "does not exist" in error.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda index: index["weight_map"].update(ghost=index["weight_map"][TABLE]), "does not hold it"),
        (lambda index: index["weight_map"].pop(TABLE), "does not place there"),
        (lambda index: index["weight_map"].update(up="../x.safetensors"), "plain file name"),
        (lambda index: index["weight_map"].update(number=3), "plain file name"),
        (lambda index: index["metadata"].update(total_size=1), "total_size is 1"),
        (lambda index: index.pop("weight_map"), "no weight_map"),
        (lambda index: index.update(weight_map=[]), "not an object"),
    ],
)
def test_damaged_index(tiny: Path, change: Callable[[dict[str, Any]], object], why: str) -> None:
    index = index_of(tiny)
    change(index)
    write_index(tiny, index)
    error = failure(tiny)
    assert "index is damaged" in error.what and why in error.why


@pytest.mark.parametrize("cut", [1, 100, 800_000])
def test_truncated_shard(tiny: Path, cut: int) -> None:
    file = tiny / index_of(tiny)["weight_map"]["embed.weight"]
    data = file.read_bytes()
    file.write_bytes(data[: len(data) - cut])
    error = failure(tiny)
    assert "shard is damaged" in error.what and "truncated" in error.why
    assert file.name in error.where and "tensor '" in error.where


@pytest.mark.parametrize("keep", [0, 5, 8, 50])
def test_shard_cut_in_its_header(tiny: Path, keep: int) -> None:
    file = tiny / index_of(tiny)["weight_map"][TABLE]
    file.write_bytes(file.read_bytes()[:keep])
    assert "too few for the header" in failure(tiny).why


def entry(dtype: object, shape: object, *offsets: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"w": entry("F64", [1], 0, 8)}, "dtype 'F64'"),
        ({"w": entry("F32", [3], 0, 8)}, "takes 12 bytes"),
        ({"w": entry("F32", [-1], 0, 8)}, "found shape [-1]"),
        ({"w": entry("F32", [], 0, 8)}, "found shape []"),
        ({"w": entry("F32", [True], 0, 8)}, "found shape [True]"),
        ({"w": {"dtype": "F32"}}, "header entry"),
        ({"w": [1]}, "header entry"),
        ({"w": entry("F32", [1], 4, 8)}, "starts at byte"),
        ({"w": entry("F32", [2], 0, 8), "v": entry("F32", [1], 4, 8)}, "starts at byte"),
        ({"w": entry("F32", [1], 0, 4)}, "its tensors end at byte"),
        ([], "not an object"),
    ],
)
def test_damaged_header(tiny: Path, header: object, why: str) -> None:
    text = json.dumps(header).encode()
    (tiny / "bad.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    write_index(tiny, {"weight_map": {"w": "bad.safetensors"}})
    assert why in failure(tiny).why


def test_missing_tensor(tiny: Path) -> None:
    rewrite(tiny, "norm.weight", lambda tensors: tensors.pop("norm.weight"))
    error = failure(tiny)
    assert "tensor is missing" in error.what and error.where == "tensor 'norm.weight'"
    assert "expected BF16 [128]" in error.why
    with Checkpoint.open(tiny) as checkpoint, pytest.raises(CheckpointError, match="norm.weight"):
        checkpoint.read("norm.weight")


def test_fp8_weight_without_its_scale(tiny: Path) -> None:
    rewrite(tiny, "layers.3.attn.wkv.scale", lambda tensors: tensors.pop("layers.3.attn.wkv.scale"))
    error = failure(tiny)
    assert "has no scale" in error.what and error.where == "tensor 'layers.3.attn.wkv.weight'"
    assert "expected F8_E8M0 [2, 4]" in error.why


def test_wrong_shape_dtype_and_unexpected_tensor(tiny: Path, tmp_path: Path) -> None:
    def shape(tensors: Tensors) -> None:
        tensors["norm.weight"] = tensors["norm.weight"][:64].clone()

    def dtype(tensors: Tensors) -> None:
        tensors["layers.5.attn.attn_sink"] = tensors["layers.5.attn.attn_sink"].bfloat16()

    def extra(tensors: Tensors) -> None:
        tensors["layers.0.hc_attn_norm.weight"] = torch.ones(4)

    other = Path(shutil.copytree(tiny, tmp_path / "other"))
    third = Path(shutil.copytree(tiny, tmp_path / "third"))
    rewrite(tiny, "norm.weight", shape)
    error = failure(tiny)
    assert "wrong shape" in error.what and "found BF16 [64]; expected BF16 [128]" in error.why
    rewrite(other, "layers.5.attn.attn_sink", dtype)
    error = failure(other)
    assert "wrong dtype" in error.what and "found BF16 [4]; expected F32 [4]" in error.why
    rewrite(third, "norm.weight", extra)
    error = failure(third)
    assert "unexpected" in error.what and "layers.0.hc_attn_norm.weight" in error.where


def drop(prefixes: tuple[str, ...]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in [n for n in tensors if n.startswith(prefixes)]:
            del tensors[name]

    return change


def test_optional_groups_are_all_or_nothing(tiny: Path) -> None:
    last = index_of(tiny)["weight_map"]["mtp.0.main_norm.weight"]
    assert index_of(tiny)["weight_map"]["vision.norm.weight"] == last
    rewrite(tiny, "mtp.0.main_norm.weight", drop(("mtp.0.main_norm",)))
    assert failure(tiny).where == "tensor 'mtp.0.main_norm.weight'"
    rewrite(tiny, "mtp.1.norm.weight", drop(("mtp.", "vision.", "aligner.", "image_")))
    with Checkpoint.open(tiny) as checkpoint:
        assert checkpoint.validate() == {TensorGroup.TEXT}
    error = failure(tiny, scope=(TensorGroup.TEXT, TensorGroup.VISION))
    assert "missing" in error.what and "further tensors differ" in error.why


def test_draft_copies_of_embedding_and_head_are_ignored(tiny: Path) -> None:
    def add(tensors: Tensors) -> None:
        tensors["mtp.0.embed.weight"] = torch.zeros(2, 2)
        tensors["mtp.1.head.weight"] = torch.zeros(2, 2)

    rewrite(tiny, "mtp.1.norm.weight", add)
    with Checkpoint.open(tiny) as checkpoint:
        assert checkpoint.validate() == set(TensorGroup)


def test_scale_that_is_not_a_number(tiny: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["layers.2.attn.wq_a.scale"].view(torch.uint8)[1, 2] = 255

    rewrite(tiny, "layers.2.attn.wq_a.scale", change)
    with Checkpoint.open(tiny) as checkpoint:
        # shape [2, 4]: row 1, column 2 is element 6
        with pytest.raises(CheckpointError, match="element 6 is byte 255") as caught:
            checkpoint.read("layers.2.attn.wq_a.scale")
        assert "layers.2.attn.wq_a.scale" in caught.value.where
        checkpoint.read("layers.2.attn.wq_a.scale", slice(0, 1))


def test_progress_is_shown_on_a_terminal_or_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    for show in (None, False, True):
        with LoadProgress(2048, show) as progress:
            progress.advance(2048, "layer 7")
        captured = capsys.readouterr()  # captured output is not a terminal
        assert captured.out == ""
        assert ("100%" in captured.err and "layer 7" in captured.err) == (show is True)
        assert show or captured.err == ""
