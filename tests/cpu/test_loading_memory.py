"""What of a checkpoint is resident while it is packed, and what the benchmark of memory takes for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.cpu import memory
from tandem.backends.cpu.backend import CpuBackend
from tandem.checkpoint.reader import Checkpoint
from tandem.config import load_config
from tandem.contract.types import CanonicalWeight, PackedWeight, ShardSpec, WeightKind
from tandem.engine.assembly import assemble
from tandem.model.weights import WeightLoader


class Noting(CpuBackend):
    """Notes when weights are packed."""

    _notes: list[str]

    def pack_weight(self, kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...]) -> PackedWeight:
        self._notes.append(f"pack {kind.value}")
        return super().pack_weight(kind, weight, shape)


def test_pages_of_experts_go_before_their_copy_is_packed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Noting(True)
    notes: list[str] = []
    backend._notes = notes
    with Checkpoint.open(tiny) as checkpoint:
        monkeypatch.setattr(checkpoint, "release", notes.append)
        count = checkpoint.config.text.n_routed_experts
        packed = WeightLoader(checkpoint, backend, ShardSpec()).experts("layers.0.ffn.experts", "w1", count)
        names = {f"layers.0.ffn.experts.{e}.w1.{part}" for e in range(count) for part in ("weight", "scale")}
        assert set(notes[:-1]) == names and notes[-1] == "pack experts"
        first = checkpoint.read("layers.0.ffn.experts.0.w1.weight").view(torch.uint8)
        assert torch.equal(backend.unpack_weight(packed).data[0], first)


def test_large_tensors_come_first_and_no_page_stays(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every module that is read, and at the end, all pages of the file have been given back."""
    events: list[str] = []
    read, release_all = Checkpoint.read, Checkpoint.release_all

    def reading(self: Checkpoint, name: str, rows: slice | None = None) -> torch.Tensor:
        events.append(name)
        return read(self, name, rows)

    def releasing(self: Checkpoint) -> None:
        events.append("")
        release_all(self)

    monkeypatch.setattr(Checkpoint, "read", reading)
    monkeypatch.setattr(Checkpoint, "release_all", releasing)
    assemble(load_config(env={}, args={"model.path": str(tiny), "backend.name": "cpu"})).close()
    names = [name for name in events if name]
    assert names.index("embed.weight") < names.index("head.weight") < names.index("layers.0.attn.wq_a.weight")
    for before, after in zip(events, events[1:], strict=False):
        modules = [".".join(name.split(".")[:2]) for name in (before, after) if name.startswith("layers.")]
        assert len(set(modules)) < 2 or "engram" in before + after
    assert events[-1] == ""


def test_peaks_of_steps_are_told_apart(tmp_path: Path) -> None:
    """A step that reads a file and one that fills memory: only the second is private."""
    size = 96 << 20
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    held: list[object] = []

    class Engine:
        def step(self) -> None:
            if held:
                held.append(np.ones(size, dtype=np.uint8))
                held.append(int(held[0].sum()))  # type: ignore[attr-defined]  # a system may take back what is idle
            else:
                held.append(np.memmap(path, dtype=np.uint8, mode="r"))
                held.append(int(held[-1].sum()))  # type: ignore[attr-defined]

    class Served:
        engine = Engine()

    before = memory.resident()
    watch = memory.Watch(Served())  # type: ignore[arg-type]
    watch.step()
    watch.step()
    room = size // 8
    assert watch.peak - sum(before.values()) > 2 * size - room
    assert abs(watch.private - before["private"] - size) < room
    assert memory.resident()["file"] - before["file"] > size - room
