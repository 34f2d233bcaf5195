"""The draft module's memory, rows and limits: what a draft may depend on, what is written, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.drafting import DraftModel, first_positions
from support.tiny import TinyModel, memory

from tandem.checkpoint.reader import Checkpoint
from tandem.checkpoint.tiny import make_tiny
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend
from tandem.contract.types import ShardSpec
from tandem.errors import CheckpointError, ConfigError
from tandem.model.caches import CacheSpec
from tandem.model.config import ModelConfig
from tandem.model.registry import build_model
from tandem.model.step import KeptRows, StepInput

Tensor = torch.Tensor
LENGTH, WINDOW, BLOCK = 30, 8, 3
# Taps of an encoder layer, of the first decoder layer and of the last layer.
TAPS = {"text_config": {"dspark_target_layer_ids": [1, 4, 7]}}
ANCHORS, PLACES, SLOTS = [11, 205, 77, 300], [LENGTH, LENGTH - 1, 4, 9], [0, 1, 2, 3]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("taps")
    make_tiny(made, 3, TAPS)
    return made


@pytest.fixture(scope="module")
def model(path: Path) -> DraftModel:
    """A model that has read `LENGTH` tokens of each slot; tests leave its window caches as they were."""
    made = DraftModel(path)
    made.read(LENGTH)
    return made


@pytest.fixture(scope="module")
def drafted(model: DraftModel) -> tuple[Tensor, Tensor]:
    return model.block(ANCHORS, PLACES, SLOTS)


def same(got: Iterable[Tensor], want: Iterable[Tensor]) -> None:
    """Bitwise, and nothing is NaN."""
    for one, other in zip(got, want, strict=True):
        assert bool(torch.isfinite(one).all())
        assert torch.equal(one, other)


# -- rows ----------------------------------------------------------------------------------------------------


def test_blocks_do_not_depend_on_one_another(model: DraftModel, drafted: tuple[Tensor, Tensor]) -> None:
    """Alone, in another order, between padding, with another anchor beside it."""
    for n in range(4):
        same(model.block([ANCHORS[n]], [PLACES[n]], [n]), [part[n : n + 1] for part in drafted])
    order = [2, 0, 3, 1]
    turned = model.block(*([values[n] for n in order] for values in (ANCHORS, PLACES, SLOTS)))
    same(turned, [part[order] for part in drafted])
    padded = model.block([7, 11, -1, 77, 5], [3, LENGTH, 9, 4, 90], [-1, 0, 1, 2, -1])
    same([part[[1, 3]] for part in padded], [part[[0, 2]] for part in drafted])
    other = model.block([*ANCHORS[:3], 12], PLACES, SLOTS)
    same([part[:3] for part in other], [part[:3] for part in drafted])
    assert not torch.equal(other[0][3], drafted[0][3])


def test_heads_do_not_depend_on_one_another(model: DraftModel, drafted: tuple[Tensor, Tensor]) -> None:
    """Rows taken out of the middle of a block, one at a time, and with rows that have no token before them."""
    hidden, base = drafted
    previous = torch.tensor(ANCHORS, dtype=torch.int32)
    for i in range(BLOCK):
        whole = model.model.draft_head(base[:, i], hidden[:, i], previous, i)
        for n in range(4):
            part = slice(n, n + 1)
            one = model.model.draft_head(base[part, i].clone(), hidden[part, i].clone(), previous[part], i)
            same(one, [value[part] for value in whole])
        gaps = previous.clone()
        gaps[1::2] = -1
        logits, belief = model.model.draft_head(base[:, i], hidden[:, i], gaps, i)
        same((logits[::2], belief[::2]), [value[::2] for value in whole])
        assert bool((logits[1::2] == float("-inf")).all()) and belief[1::2].tolist() == [0.0, 0.0]


def test_a_temperature_of_the_confidence_changes_no_draft(
    model: DraftModel, drafted: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, base = drafted
    drafts, belief = model.chain(hidden, base, ANCHORS)
    monkeypatch.setattr(model.drafter, "temperatures", (1.0, 2.0, 0.5))
    again, scaled = model.chain(hidden, base, ANCHORS)
    assert torch.equal(again, drafts)
    odds = torch.logit(belief.double()) / torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(scaled.double(), torch.sigmoid(odds), rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_drafts_are_the_first_of_many(path: Path, drafted: tuple[Tensor, Tensor], count: int) -> None:
    fewer = DraftModel(path, count)
    assert fewer.model.drafts == count
    fewer.read(LENGTH)
    got = fewer.block(ANCHORS, PLACES, SLOTS)
    assert got[0].shape == (4, count, 128) and got[1].shape == (4, count, 512)
    same(got, [part[:, :count] for part in drafted])


# -- memory --------------------------------------------------------------------------------------------------


def image(model: DraftModel) -> list[Tensor]:
    """All that outlives a call; the scratch entry of a cache and the keys of draft rows do not."""
    draft = model.model.caches.draft
    return [t[:-1].clone() for t in memory(model.model.caches) if draft is None or t is not draft.data]


def test_blocks_write_nothing_that_outlives_them(model: DraftModel) -> None:
    before = image(model)
    model.block(ANCHORS, PLACES, SLOTS)
    assert all(torch.equal(a, b) for a, b in zip(before, image(model), strict=True))


def test_padding_writes_nothing(model: DraftModel) -> None:
    draft = model.model.caches.draft
    assert draft is not None
    before = draft.data[:-1].clone()
    hidden, base = model.block([5, -1, 6], [9, 12, 0], [-1, 2, -1])
    assert torch.equal(draft.data[:-1], before)
    assert bool(torch.isfinite(hidden).all()) and bool(torch.isfinite(base).all())
    keys = [cache.data[:-1].clone() for cache in model.stages]
    model.logits([(-1, 0, 3)])
    assert all(torch.equal(cache.data[:-1], kept) for cache, kept in zip(model.stages, keys, strict=True))


def test_memory_that_held_anything(path: Path, model: DraftModel, drafted: tuple[Tensor, Tensor]) -> None:
    """NaN everywhere before the first row, and in the keys of draft rows before each block; other chunks too."""
    own = DraftModel(path)
    own.poison(0xFF)
    own.read(LENGTH, step=7)
    for slot in range(4):
        assert torch.equal(own.keys(slot, range(LENGTH)), model.keys(slot, range(LENGTH)))
    draft = own.model.caches.draft
    assert draft is not None
    draft.data.fill_(0xFF)
    same(own.block(ANCHORS, PLACES, SLOTS), drafted)
    same(own.block(ANCHORS, PLACES, SLOTS), drafted)  # over keys of the call before


def test_only_the_window_before_the_anchor_is_seen(path: Path, drafted: tuple[Tensor, Tensor]) -> None:
    """NaN at the anchor and after it, where rejected drafts leave keys, and before the window; a key inside counts."""
    own = DraftModel(path)
    own.read(LENGTH)
    for slot, place in zip(SLOTS, PLACES, strict=True):
        outside = [*range(max(0, place - WINDOW)), *range(place, 128)]
        for cache in own.stages:
            cache.data[[own.entries(slot, range(p, p + 1))[0] for p in outside]] = 0xFF
    same(own.block(ANCHORS, PLACES, SLOTS), drafted)
    for edge in (PLACES[0] - WINDOW, PLACES[0] - 1):
        kept = [cache.data.clone() for cache in own.stages]
        own.stages[0].data[own.entries(0, range(edge, edge + 1))] = 0xFF
        assert bool(torch.isnan(own.block(ANCHORS, PLACES, SLOTS)[0][0]).all())
        for cache, data in zip(own.stages, kept, strict=True):
            cache.data.copy_(data)


def test_a_window_that_begins_later(path: Path, drafted: tuple[Tensor, Tensor]) -> None:
    """Keys before window_first are not read; with none left a block still has its own."""
    own = DraftModel(path)
    own.read(LENGTH)
    first = first_positions(LENGTH - 3)
    want = own.block(ANCHORS[:1], [LENGTH], [0], first)
    assert not torch.equal(want[0][0], drafted[0][0])
    for cache in own.stages:
        cache.data[own.entries(0, range(LENGTH - 3))] = 0xFF
    same(own.block(ANCHORS[:1], [LENGTH], [0], first), want)
    for cache in own.stages:
        cache.data.fill_(0xFF)
    assert all(bool(torch.isfinite(x).all()) for x in own.block(ANCHORS[:1], [LENGTH], [0], first_positions(LENGTH)))
    assert all(bool(torch.isfinite(x).all()) for x in own.block(ANCHORS[:1], [0], [0]))  # nothing is before it


def test_rejected_rows_are_written_over(path: Path, model: DraftModel, drafted: tuple[Tensor, Tensor]) -> None:
    own = DraftModel(path)
    own.read(LENGTH - 2)
    right = own.tokens.clone()
    own.tokens[:, LENGTH - 2 :] = 9
    own.logits([(slot, LENGTH - 2, 4) for slot in SLOTS])
    assert not torch.equal(own.keys(0, range(LENGTH)), model.keys(0, range(LENGTH)))
    own.tokens.copy_(right)
    own.logits([(slot, LENGTH - 2, 2) for slot in SLOTS])
    same(own.block(ANCHORS, PLACES, SLOTS), drafted)


def test_the_last_position(path: Path) -> None:
    """A block behind the longest sequence has rows beyond it."""
    own = DraftModel(path)
    own.window_table = torch.full((5, 32), -1, dtype=torch.int32)  # 256 positions, none held
    hidden, base = own.block([5, 6], [256, 255], [0, 1])
    assert bool(torch.isfinite(hidden).all()) and bool(torch.isfinite(base).all())


# -- the backbone --------------------------------------------------------------------------------------------


def test_the_backbone_is_the_same_with_and_without(path: Path, model: DraftModel) -> None:
    plain = TinyModel(open_backend("cpu"), path)
    assert plain.model.drafts == 0 and plain.model.caches.draft is None
    assert sorted(plain.model.caches.window) == list(range(8)) and sorted(model.model.caches.window) == list(range(10))
    assert not [b.site for b in plain.plan.bindings if b.site.startswith("mtp")]
    chunks = [(0, 0, 12), (-1, 0, 2), (1, 0, 5)]
    assert torch.equal(plain.logits(chunks), DraftModel(path).logits(chunks))


def test_rows_dropped_at_the_boundary(path: Path) -> None:
    """Context keys of rows that go on into decoder layers are those of a run of all rows with the same windows."""
    length, keep = 24, 14
    masked, compact = DraftModel(path), DraftModel(path)
    upper = first_positions(length - keep)

    def run(model: DraftModel, kept: KeptRows | None) -> None:
        step = model.step(model.rows([(0, 0, length)]), "prefill")
        values = {name: getattr(step, name) for name in StepInput.__slots__}
        with torch.no_grad():
            model.model.forward(StepInput(**values | {"window_first_upper": upper, "kept": kept}))

    run(masked, None)
    compact.poison(0xFF)
    rows = np.arange(length - keep, length, dtype=np.int32)
    place = np.concatenate((np.full(length - keep, -1, np.int32), np.arange(keep, dtype=np.int32)))
    bounds = np.zeros(keep, np.int32), np.full(keep, keep, np.int32)
    run(compact, KeptRows(*(torch.from_numpy(array) for array in (rows, place, *bounds))))
    where = range(length - keep, length)
    assert torch.equal(compact.keys(0, where), masked.keys(0, where))
    same(compact.block([5], [length], [0], upper), masked.block([5], [length], [0], upper))


# -- what is refused -----------------------------------------------------------------------------------------


class Edited:
    """A checkpoint of which some tensors are missing or changed."""

    def __init__(self, checkpoint: Checkpoint, edit: Callable[[str, Tensor], Tensor | None]) -> None:
        self._checkpoint, self._edit = checkpoint, edit

    def names(self) -> list[str]:
        return [n for n in self._checkpoint.names() if self._edit(n, torch.zeros(1)) is not None]

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        found = self._edit(name, self._checkpoint.read(name, rows))
        assert found is not None
        return found

    def release(self, name: str) -> None:
        self._checkpoint.release(name)


def build(
    path: Path, drafts: int, edit: Callable[[str, Tensor], Tensor | None] = lambda name, value: value, **more: Any
) -> Any:
    config = more.get("config") or ModelConfig.from_file(path / "config.json")
    plan = Plan(open_backend("cpu"), more.get("shard"))
    with Checkpoint.open(path) as source:
        return build_model(
            plan, Edited(source, edit), config, path / "tokenizer.json", CacheSpec(16, 8, 4, 4, 2, draft_tokens=drafts),
            max_rows=8, max_positions=64, progress=lambda name: None,
        )  # fmt: skip


def without_drafts(name: str, value: Tensor) -> Tensor | None:
    return None if name.startswith("mtp.") else value


def test_drafts_that_the_checkpoint_cannot_give(path: Path) -> None:
    raw = ModelConfig.from_file(path / "config.json").to_dict()
    text = raw["text_config"]
    text |= {"num_nextn_predict_layers": 0, "compress_ratios": text["compress_ratios"][:8]}
    bare = ModelConfig.from_dict(raw)
    cases: list[tuple[int, dict[str, Any], str]] = [
        (BLOCK + 1, {}, "text_config.dspark_block_size"),
        (-1, {}, "text_config.dspark_block_size"),
        (1, {"edit": without_drafts}, "tensor 'mtp.0.main_proj.weight'"),
        (1, {"edit": without_drafts, "config": bare}, "text_config.num_nextn_predict_layers"),
        (1, {"shard": ShardSpec(experts=(0, 4))}, "shard.experts"),
    ]
    for drafts, more, where in cases:
        with pytest.raises(ConfigError) as caught:
            build(path, drafts, **more)
        assert caught.value.where == where
        assert str(drafts) in caught.value.why or where == "shard.experts"
    assert build(path, 0, without_drafts).drafts == 0


@pytest.mark.parametrize(
    "name", ["markov_head.embed.weight", "markov_head.head.weight", "confidence_head.proj.weight"]
)
def test_a_head_of_another_dtype_is_named(path: Path, name: str) -> None:
    full = f"mtp.1.{name}"
    with pytest.raises(CheckpointError) as caught:
        build(path, 1, lambda n, value: value.to(torch.float32) if n == full else value)
    assert caught.value.where == f"tensor '{full}'" and "torch.float32" in caught.value.why


def test_a_model_without_drafts_says_so(path: Path) -> None:
    plain = build(path, 0)
    one = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ConfigError, match="the draft module was not loaded"):
        plain.draft_block(one, one, one, one, one)
    with pytest.raises(ConfigError, match="the draft module was not loaded"):
        plain.draft_head(one, one, one, 0)
