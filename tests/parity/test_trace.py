"""The trace format: what is written is read back, and whatever is wrong with a trace is a TraceError."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.contract.cases import CacheInput, PartlyUsed, WeightInput
from tandem.contract.opspec import OP_TABLE
from tandem.contract.types import CanonicalWeight, QFormat, WeightKind
from tandem.errors import TraceError
from tandem.parity import guard
from tandem.parity.records import Call, Record
from tandem.parity.trace import Trace, header_digest
from tandem.parity.values import PartOfWeight
from tandem.parity.writer import TraceWriter

OPS = sorted(name for name, spec in OP_TABLE.items() if spec.cases)


def same(one: Any, two: Any) -> bool:
    """Equal types and equal bits."""
    if isinstance(one, PartlyUsed):
        one = one.value
    if isinstance(one, torch.Tensor):
        return bool(one.dtype is two.dtype and one.shape == two.shape and raw(one) == raw(two))
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, two))
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return type(one) is type(two) and all(
            same(getattr(one, f.name), getattr(two, f.name)) for f in dataclasses.fields(one)
        )
    if isinstance(one, tuple):
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and one == two


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def record(number: int, op: str, **more: Any) -> Record:
    return Record(number, 0, number, op, f"layers.3.{op}", 3, 1, **more)


def writers(call: Call) -> dict[str, torch.Tensor]:
    """Nobody is known to have written what caches hold."""
    caches = {name: value for name, value in call.inputs.items() if isinstance(value, CacheInput)}
    return {name: torch.full((len(value.held),), -1, dtype=torch.int32) for name, value in caches.items()}


def write(path: Path, calls: list[tuple[Record, Call]], **header: Any) -> Trace:
    writer = TraceWriter(path, {"prompts": ["one"], **header})
    for item, call in calls:
        writer.add(item, call, writers(call))
    writer.close()
    return Trace.open(path)


def two_calls() -> list[tuple[Record, Call]]:
    """A linear whose output a second one reads."""
    inputs = OP_TABLE["linear"].cases[0].build(0)
    y = torch.arange(64, dtype=torch.float32).view(1, 64).to(torch.bfloat16)
    table = WeightInput(WeightKind.LINEAR, CanonicalWeight(torch.ones(8, 64).bfloat16(), None, QFormat.BF16), (8, 64))
    after = {"x": y, "weight": table, "out_dtype": torch.float32}
    return [
        (record(0, "linear", attrs={"x": "bf16", "shape": (40, 96)}), Call(inputs, {"y": y})),
        (record(1, "linear", sources={"x": (0, "y")}), Call(after, {"y": torch.zeros(1, 8)})),
    ]


def test_inputs_of_every_op_come_back_as_they_were(tmp_path: Path) -> None:
    built = [OP_TABLE[op].cases[0].build(0) for op in OPS]
    trace = write(tmp_path / "t", [(record(i, op), Call(built[i], {})) for i, op in enumerate(OPS)])
    assert [item.op for item in trace.records] == OPS
    for item, inputs in zip(trace.records, built, strict=True):
        loaded = trace.load(item).inputs
        assert list(loaded) == list(inputs), item.op
        for name, value in inputs.items():
            assert same(value, loaded[name]), f"{item.op}.{name}"


def test_records_and_outputs_come_back(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", two_calls(), seed=7)
    assert trace.header["seed"] == 7 and trace.header["contract"] == [1, 2]
    assert [item for item, _ in two_calls()] == trace.records
    assert trace.records[0].attrs == {"x": "bf16", "shape": (40, 96)}
    loaded = trace.load(trace.records[1])
    assert same(loaded.inputs["x"], trace.outputs(trace.records[0])["y"])


def test_bytes_are_stored_once(tmp_path: Path) -> None:
    once = write(tmp_path / "one", [(record(0, "hc_expand"), Call({"x": torch.ones(500, 8), "m": 4}, {}))])
    calls = [(record(i, "hc_expand"), Call({"x": torch.ones(500, 8), "m": 4}, {})) for i in range(9)]
    nine = write(tmp_path / "nine", calls)
    sizes = [t.header["files"]["tensors-00000.safetensors"]["bytes"] for t in (once, nine)]
    assert sizes[0] == sizes[1] > 500 * 8 * 4


def test_rows_left_out_of_a_weight_are_nan(tmp_path: Path) -> None:
    kept = WeightInput(WeightKind.EMBED, CanonicalWeight(torch.ones(2, 32).bfloat16(), None, QFormat.BF16), (5, 32))
    part = PartOfWeight(kept, torch.tensor([1, 4]))
    inputs = {"ids": torch.tensor([1, 4], dtype=torch.int32), "table": part}
    trace = write(tmp_path / "t", [(record(0, "embed"), Call(inputs, {}))])
    table = trace.load(trace.records[0]).inputs["table"].weight.data
    assert table.shape == (5, 32)
    assert torch.isnan(table).all(dim=1).tolist() == [True, False, True, True, False]
    assert bool((table[[1, 4]] == 1).all())


def test_a_replay_refers_to_the_trace_it_replays(tmp_path: Path) -> None:
    base = write(tmp_path / "a", two_calls())
    writer = TraceWriter(tmp_path / "b", {"replay_of": base.digest, "mode": "local"}, base)
    for item in base.records:
        writer.add_tree(base.tree(item))
    writer.close()
    assert not list((tmp_path / "b").glob("*.safetensors"))
    again = Trace.open(tmp_path / "b", base)
    assert same(again.load(again.records[0]).outputs["y"], base.outputs(base.records[0])["y"])
    alone = Trace.open(tmp_path / "b")
    with pytest.raises(TraceError, match="open a replay with the trace it replays"):
        alone.load(alone.records[0])
    with pytest.raises(TraceError, match="it is no replay of the other trace"):
        Trace.open(tmp_path / "a", base)


def test_another_major_contract_is_refused_word_for_word(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        write(tmp_path / "t", two_calls(), contract=[2, 3])
    assert str(caught.value) == (
        f"a trace of contract 2.3 cannot be read under contract 1.2. Where: {tmp_path / 't' / 'header.json'}. "
        "Why: the major versions differ, so the same bits may mean something else. "
        "Fix: record it again with a version of Tandem that has the same major."
    )
    assert write(tmp_path / "minor", two_calls(), contract=[1, 9]).header["contract"] == [1, 9]


@pytest.mark.parametrize("model", [[1], "x", 3])
def test_a_model_that_is_no_object_is_refused(tmp_path: Path, model: Any) -> None:
    write(tmp_path / "t", two_calls())
    index = (tmp_path / "t" / "index.jsonl").read_bytes()
    with pytest.raises(TraceError, match="expected an object"):
        Trace.open(resigned(tmp_path / "t", index, model=model))


@pytest.mark.parametrize("block", [-8, (1 << 20) + 1, 1 << 30])
def test_sizes_are_bounded(tmp_path: Path, block: int) -> None:
    """A judge lists what a size speaks of, so a large number alone could occupy it for hours."""
    inputs = OP_TABLE["pool_expand"].cases[0].build(0)
    entries = torch.zeros((1, 32), dtype=torch.int32)
    write(tmp_path / "t", [(record(0, "pool_expand"), Call(inputs, {"entries": entries}))])
    with pytest.raises(TraceError, match="'block'"):
        Trace.open(rewritten(tmp_path / "t", set_in([0, "inputs", "block"], block)))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "t", two_calls())
    with pytest.raises(TraceError, match="the directory is not empty"):
        TraceWriter(tmp_path / "t", {})


# -- hostile traces --------------------------------------------------------------------------------------------


def rewritten(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> Path:
    """Change the records and set all hashes right again, as somebody who means harm would."""
    lines = [json.loads(line) for line in (path / "index.jsonl").read_text().splitlines()]
    change(lines)
    return resigned(path, b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def resigned(path: Path, index: bytes, **header: Any) -> Path:
    (path / "index.jsonl").write_bytes(index)
    told = json.loads((path / "header.json").read_text()) | header
    told["files"]["index.jsonl"] = {"sha256": hashlib.sha256(index).hexdigest(), "bytes": len(index)}
    told["sha256"] = header_digest(told)
    (path / "header.json").write_text(json.dumps(told))
    return path


def set_in(keys: list[Any], value: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        place: Any = lines
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_in([0, "op"], "shell"), "op 'shell' is not in the contract"),
        (set_in([0, "inputs", "y"], None), "'linear' has no argument 'y'"),
        (set_in([0, "inputs", "parts"], None), "'linear' has no argument 'parts'"),
        (set_in([0, "inputs", "x"], 3), "argument 'x' is int, not Tensor | QTensor"),
        (set_in([0, "outputs", "z"], None), "'linear' has no output 'z'"),
        (lambda lines: lines[0]["inputs"].pop("x"), "'linear' lacks its argument 'x'"),
        (lambda lines: lines[0].pop("site"), "it lacks site"),
        (set_in([0, "code"], "x"), "it has code, which the format does not know"),
        (set_in([0, "step"], -1), "expected an integer from 0"),
        (set_in([0, "rows"], True), "expected an integer from 0"),
        (set_in([1, "id"], 0), "record numbers do not ascend"),
        (set_in([1, "sources", "x"], [1, "y"]), "comes from record 1, which is not earlier"),
        (set_in([0, "sources", "x"], [1, "y"]), "comes from record 1, which is not earlier"),
        (set_in([1, "sources", "x"], [0, "z"]), "record 0 has no output 'z'"),
        (set_in([1, "sources", "w"], [0, "y"]), "source of 'w', which is no input"),
        (set_in([1, "parent"], -1), "expected an integer from 0"),
        (set_in([1, "views", "x"], {"offset": 0, "shape": [2, 32], "stride": [32, 1]}), "has its own shape"),
        (set_in([1, "views", "x"], {"offset": -1, "shape": [], "stride": []}), "expected an integer from 0"),
        (set_in([1, "views", "weight"], {}), "a view of 'weight', which has no source"),
        (set_in([1, "inputs", "x", "d"], "f16"), "dtype 'f16' is none of f32"),
        (set_in([1, "inputs", "x", "d"], "f32"), "it has 128 bytes; torch.float32 (1, 64) takes 256"),
        (set_in([1, "inputs", "x", "s"], [1, 1 << 39]), "is too large"),
        (set_in([1, "inputs", "x", "s"], [1] * 9), "a list of at most 8 items"),
        (set_in([1, "inputs", "x", "t"], "0" * 64), "it is in no shard"),
        (set_in([1, "inputs", "x", "t"], "../../etc/passwd"), "a tensor's name is no SHA-256"),
        (set_in([1, "inputs", "weight", "weight", "fmt"], "mxfp4"), "bfloat16 (8, 64); expected torch.uint8 (8, 32)"),
        (set_in([1, "inputs", "weight", "weight", "shape"], [8, 32]), "expected torch.bfloat16 (8, 32)"),
        (set_in([1, "inputs", "out_dtype"], {"pickle": "x"}), "there is no value of kind 'pickle'"),
        (set_in([1, "inputs", "out_dtype"], {"group": "object", "fields": {}}), "of no known type"),
        (set_in([1, "site"], "x" * 500), "a text of at most 400 characters"),
        (set_in([1, "attrs"], {"shape": {}}), "an attribute is neither"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    write(tmp_path / "t", two_calls())
    with pytest.raises(TraceError) as caught:
        Trace.open(rewritten(tmp_path / "t", change))
    assert message in str(caught.value)
    assert all(caught.value.to_dict().values())


def test_entries_have_one_writer_each(tmp_path: Path) -> None:
    inputs = OP_TABLE["kv_load"].cases[0].build(0)
    writer = TraceWriter(tmp_path / "t", {})
    writer.add(record(0, "kv_load"), Call(inputs, {}), {"cache": torch.zeros(1, dtype=torch.int32)})
    writer.close()
    with pytest.raises(TraceError, match="the writers of 'cache' are not one for each entry"):
        Trace.open(tmp_path / "t")


def test_values_of_caches_and_parts_are_checked_when_loaded(tmp_path: Path) -> None:
    cache = OP_TABLE["kv_load"].cases[0].build(0)
    cache["cache"] = dataclasses.replace(cache["cache"], held=(cache["cache"].held[1], *cache["cache"].held[1:]))
    trace = write(tmp_path / "t", [(record(0, "kv_load"), Call(cache, {}))])
    with pytest.raises(TraceError, match="slots of a cache repeat"):
        trace.load(trace.records[0])


@pytest.mark.parametrize(
    "index",
    [b"[" * 100_000, b'{"a":' * 50_000, b"NaN\n", b"\xff\xfe\n", b"1" * 5000 + b"\n", b'"' + b"x" * (2 << 20) + b'"\n'],
)
def test_an_index_that_is_no_index_is_refused(tmp_path: Path, index: bytes) -> None:
    write(tmp_path / "t", two_calls())
    with pytest.raises(TraceError):
        Trace.open(resigned(tmp_path / "t", index))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "tensors-00000.safetensors/../x", "tensors-1.pt"])
def test_no_other_file_is_ever_read(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "t", two_calls()).path
    (tmp_path / "secret").write_bytes(b"secret")
    files = json.loads((path / "header.json").read_text())["files"] | {name: {"sha256": "0" * 64, "bytes": 6}}
    with pytest.raises(TraceError, match="is no file of a trace"):
        Trace.open(resigned(path, (path / "index.jsonl").read_bytes(), files=files))


def test_links_pipes_and_missing_files_are_refused(tmp_path: Path) -> None:
    shard = "tensors-00000.safetensors"
    for i, harm in enumerate((Path.unlink, lambda p: os.mkfifo(p), lambda p: p.symlink_to(tmp_path / "elsewhere"))):
        path = write(tmp_path / str(i), two_calls()).path
        shutil.copy(path / shard, tmp_path / "elsewhere")
        if i:
            (path / shard).unlink()
        harm(path / shard)
        with pytest.raises(TraceError):
            Trace.open(path)
    with pytest.raises(TraceError, match="it is no directory"):
        Trace.open(tmp_path / "nowhere")


def test_cut_files_are_refused(tmp_path: Path) -> None:
    for name in ("header.json", "index.jsonl", "tensors-00000.safetensors"):
        path = write(tmp_path / name, two_calls()).path
        data = (path / name).read_bytes()
        for size in (0, 7, len(data) // 2, len(data) - 2):
            (path / name).write_bytes(data[:size])
            with pytest.raises(TraceError):
                Trace.open(path)


def test_flipped_bytes_are_noticed_and_nothing_else_happens(tmp_path: Path) -> None:
    """Two hundred seeded flips in any file: a TraceError, or the trace as it was (white space of the header)."""
    path = write(tmp_path / "t", two_calls()).path
    want = [two_calls()[i][1] for i in range(2)]
    files = sorted(path.iterdir())
    rng, refused = np.random.default_rng(11), 0
    for _ in range(200):
        file = files[rng.integers(len(files))]
        good = file.read_bytes()
        data = bytearray(good)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        file.write_bytes(data)
        try:
            trace = Trace.open(path)
            loaded = [trace.load(item) for item in trace.records]
        except TraceError as error:
            assert all(error.to_dict().values())
            refused += 1
        else:
            assert file.name == "header.json"
            assert all(same(a.outputs["y"], b.outputs["y"]) for a, b in zip(loaded, want, strict=True))
        file.write_bytes(good)
    assert refused > 150


def test_flips_behind_right_hashes_raise_nothing_else(tmp_path: Path) -> None:
    """The same in the index, with the hashes set right: what gets through is a value like another."""
    path = write(tmp_path / "t", two_calls()).path
    good = (path / "index.jsonl").read_bytes()
    rng, refused = np.random.default_rng(12), 0
    for _ in range(200):
        data = bytearray(good)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        try:
            trace = Trace.open(resigned(path, bytes(data)))
            for item in trace.records:
                trace.load(item)
        except TraceError as error:
            assert all(error.to_dict().values())
            refused += 1
    assert refused > 100


def plain(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, PartlyUsed) else value for name, value in arguments.items()}


def test_the_guard_lets_every_legal_call_through() -> None:
    for op in OPS:
        for case in OP_TABLE[op].cases:
            guard.check(op, plain(case.build(0)), case.name)


@pytest.mark.parametrize(
    ("op", "name", "value"),
    [
        ("index_scores", "lens", 1 << 30),
        ("index_scores", "table", 1 << 30),
        ("index_scores", "row_slot", -2),
        ("attn_block", "main_slots", 24),  # six blocks of four entries
        ("attn_block", "window_slots", -2),
        ("kv_write", "slots", 1 << 30),
        ("embed", "ids", 40),  # of a table of 40 rows
        ("embed", "ids", -1),
        ("engram_gather", "rows", 99),  # the first row held is 100
        ("gather_rows", "index", 1 << 30),
        ("aux.take", "index", 1 << 30),
        ("aux.commit", "slots", 6),  # of arrays of six
    ],
)
def test_the_guard_stops_what_points_outside(op: str, name: str, value: int) -> None:
    arguments = plain(OP_TABLE[op].cases[0].build(0))
    arguments[name].view(-1)[0] = value
    with pytest.raises(TraceError, match=f"an index of '{op}' is outside"):
        guard.check(op, arguments, "record 0")
