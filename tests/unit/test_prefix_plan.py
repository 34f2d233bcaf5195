"""How the prefix cache is sized, when it says that it cannot hit, and how a request is named to it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.cache.hashing import Identity
from tandem.config import load_config
from tandem.engine.assembly import Sizes, size_engine
from tandem.engine.prefix_plan import identity_of
from tandem.engine.request_state import Sampling
from tandem.engine.requests import RequestExtras, RequestTable
from tandem.engine.resume import prefix_state
from tandem.errors import ConfigError
from tandem.model.config import ModelConfig, TextConfig


@pytest.fixture(scope="module")
def text(repo_root: Path) -> TextConfig:
    """The official model: 40 layers with windows of 128 positions, 528 bytes for each."""
    return ModelConfig.from_file(repo_root / "core/assets/official_config.json").text


def sized(text: TextConfig, **options: Any) -> Sizes:
    args = {key.replace("__", "."): value for key, value in options.items()}
    return size_engine(load_config(env={}, args=args), text)


def test_by_default_windows_have_as_much_room_again(text: TextConfig):
    on, off = sized(text), sized(text, cache__prefix="off")
    assert off.prefix is None and on.prefix is not None
    assert on.spec.num_window_blocks == 2 * off.spec.num_window_blocks
    assert on.spec.num_blocks == off.spec.num_blocks
    assert (on.prefix.max_blocks, on.prefix.max_pages, on.prefix.replay) == (None, None, 0)
    # 890 bytes of main and index entries for each token; 32 positions of 528 bytes in 40 layers, and in the draft
    # stages where there are any.
    layers = on.prefix.page_bytes // (32 * 528)
    assert on.prefix.block_bytes == 890 * 128 and layers >= 40 and on.prefix.page_bytes == layers * 32 * 528


def test_a_budget_is_split_and_room_for_it_is_added(text: TextConfig):
    off, on = sized(text, cache__prefix="off"), sized(text, cache__prefix_mib=100)
    assert on.prefix is not None
    half = 50 << 20
    assert on.prefix.max_blocks == half // on.prefix.block_bytes == 460
    assert on.prefix.max_pages == half // on.prefix.page_bytes
    assert on.spec.num_blocks - off.spec.num_blocks == on.prefix.max_blocks
    assert on.spec.num_window_blocks - off.spec.num_window_blocks == on.prefix.max_pages
    chosen = sized(text, cache__prefix_mib=100, cache__num_blocks=300)
    assert chosen.spec.num_blocks == 300
    replayed = sized(text, cache__prefix_mib=100, cache__prefix_state="replay")
    assert replayed.prefix is not None and replayed.prefix.max_blocks == (100 << 20) // on.prefix.block_bytes
    assert replayed.spec.num_window_blocks == off.spec.num_window_blocks
    assert replayed.prefix.replay == 128 + replayed.geometry.rollback


@pytest.mark.parametrize("mib", [1000, 700])
def test_within_a_given_memory_everything_fits(text: TextConfig, mib: int):
    on, off = sized(text, cache__memory_mib=mib), sized(text, cache__memory_mib=mib, cache__prefix="off")
    assert on.prefix is not None
    page, block = on.prefix.page_bytes, on.prefix.block_bytes
    used = on.spec.num_window_blocks * page + on.spec.num_blocks * block
    assert (mib << 20) - block < used <= mib << 20
    left = (mib << 20) - off.spec.num_window_blocks * page
    spare = on.spec.num_window_blocks - off.spec.num_window_blocks
    assert 0 < spare == min(off.spec.num_window_blocks, left // 4 // page)


UNABLE: list[tuple[dict[str, Any], str]] = [
    ({"model__max_model_len": 128}, "no full block of 128"),
    ({"model__max_model_len": 129}, "no full block of 128"),
    ({"cache__prefix_mib": 1}, "does not hold one block"),  # half a MiB is four blocks, and no four pages
    ({"cache__num_blocks": 1}, "a cached block and the one that follows are two"),
    ({"cache__prefix_state": "replay", "model__max_model_len": 300}, "tokens again, and a request has at most 300"),
    ({"model__max_model_len": 299, "model__swa_replay": "mask", "model__swa_keep": 171}, "the last 171 tokens"),
]


@pytest.mark.parametrize(("options", "why"), UNABLE)
def test_a_cache_that_cannot_hit_says_so(
    text: TextConfig, options: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
):
    args = {key.replace("__", "."): value for key, value in options.items()}
    own = any(key.startswith("cache.prefix") for key in args)
    if not own:
        with caplog.at_level(logging.WARNING, "tandem"):
            sizes = size_engine(load_config(env={}, args=args), text)
        assert sizes.prefix is None
        (record,) = caplog.records
        assert why in record.getMessage() and record.unasked == (not any(key.startswith("cache.") for key in args))
    # Asked for, it is an error.
    with pytest.raises(ConfigError) as caught:
        size_engine(load_config(env={}, args=args | {"cache.prefix": "on"}), text)
    assert why in caught.value.why and "cache.prefix" in caught.value.where


def test_the_shortest_request_that_can_hit_is_enough(text: TextConfig):
    # 128 cached tokens, one to compute, one to draw.
    assert sized(text, model__max_model_len=130).prefix is not None
    # Bounded replay computes 171 tokens, one is drawn.
    bounded = {"model__swa_replay": "compact", "model__swa_keep": 171}
    assert sized(text, model__max_model_len=128 + 171 + 1, **bounded).prefix is not None
    # Replay of 128 and the margin for drafts: two blocks again, and one that is spared.
    assert sized(text, model__max_model_len=3 * 128 + 2, cache__prefix_state="replay").prefix is not None


def test_options_that_contradict_each_other():
    with pytest.raises(ConfigError, match="given only with cache.prefix on"):
        load_config(env={}, args={"cache.prefix": "off", "cache.prefix_mib": 5})
    with pytest.raises(ConfigError, match="leaves nothing to replay"):
        load_config(env={}, args={"cache.prefix": "off", "cache.prefix_state": "replay"})
    assert load_config(env={}, args={"cache.prefix": "off", "cache.prefix_state": "stored"}).cache.prefix == "off"
    for key, value in (("prefix", "yes"), ("prefix_state", "ring")):
        with pytest.raises(ConfigError, match="one of"):
            load_config(env={}, args={f"cache.{key}": value})


# -- names of requests -------------------------------------------------------------------------


def identity(**more: Any) -> Identity:
    table = RequestTable(2, 40)
    slot = table.create(np.arange(1, 21), Sampling(max_tokens=3), **more)
    return identity_of(table, slot, "tenant")


def test_a_text_request_is_its_tokens_and_its_salt():
    found = identity()
    assert (found.salt, found.media, found.roles, found.private) == ("tenant", b"", None, False)
    assert found.context(0, 4) == identity().context(8, 12)


def test_media_begin_at_the_first_role_or_override():
    roles, digest = [0] * 6 + [1] * 3 + [0] * 11, b"d" * 32
    found = identity(roles=roles, media_digest=digest)
    assert (found.media, found.media_start, found.private) == (digest, 6, False)
    assert found.context(0, 6) == identity().context(0, 6) != found.context(4, 8)
    rows = RequestExtras(embed_rows=np.zeros((1, 4), np.float32), embed_positions=np.array([3], np.int32))
    found = identity(roles=roles, media_digest=digest, extras=rows)
    assert found.media_start == 3 and not found.private
    assert identity(extras=rows).private  # nothing names what replaces the embedding
    assert identity(extras=rows, media_digest=digest).media_start == 3


def test_roles_of_a_request_outlive_its_slot():
    table = RequestTable(1, 40)
    roles = [0] * 6 + [1] * 3 + [0] * 11
    slot = table.create(np.arange(1, 21), Sampling(max_tokens=3), roles=roles, media_digest=b"d" * 32)
    found = identity_of(table, slot)
    before = found.context(4, 8)
    table.free(slot)
    assert found.context(4, 8) == before


# -- state that follows from tokens ------------------------------------------------------------


def test_history_is_that_of_the_last_tokens_before_the_first_row():
    table = RequestTable(4, 40)
    for first in (100, 200, 300):
        table.create(np.arange(first, first + 20), Sampling(max_tokens=3), roles=[0] * 10 + [5] * 2 + [0] * 8)
    i32 = np.int32
    state = prefix_state(
        table, np.array([2, 0, 1], i32), np.array([12, 2, 0], i32), np.array([8, 0, 0], i32), ring=5
    )
    assert state.slots.tolist() == [2, 0, 1] and state.window_start.tolist() == [8, 0, 0]
    assert {name: array.tolist() for name, array in state.rows.items()} == {
        "ids": [307, 308, 309, 310, 311, 100, 101],
        "positions": [7, 8, 9, 10, 11, 0, 1],
        "slot": [2, 2, 2, 2, 2, 0, 0],
        "chunk_start": [0, 0, 0, 0, 0, 5, 5],
        "chunk_end": [5, 5, 5, 5, 5, 7, 7],
        "roles": [0, 0, 0, 5, 5, 0, 0],
    }
    assert all(array.dtype == np.int32 for array in state.rows.values())
    nothing = prefix_state(table, np.array([1], i32), np.array([0], i32), np.array([0], i32), ring=5)
    assert nothing.rows == {}
