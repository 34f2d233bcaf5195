"""Bounded replay: which rows are kept, what is refused, and that nothing but the prompt's length decides a bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import ROOMY, Job, Overlap, Trace, World, same, same_all, tokens
from support.tiny import memory

from tandem.config import load_config
from tandem.engine.llm import LLM
from tandem.engine.request_state import RequestState
from tandem.errors import ConfigError, RequestError
from tandem.model.config import ModelConfig, TextConfig
from tandem.model.replay import HostKept, Replay, plan_replay
from tandem.sampling.params import SamplingParams

WINDOW, ROLLBACK, BOUNDARY, LAYERS = 8, 2, 4, 8  # of the tiny model without drafts
KEEP = WINDOW + ROLLBACK
COMPACT: Mapping[str, Any] = {"model.swa_replay": "compact", "model.swa_keep": KEEP}
MASK: Mapping[str, Any] = {"model.swa_replay": "mask", "model.swa_keep": KEEP}


def asks() -> list[Job]:
    """Prompts longer than what is kept, as long, one shorter, and one far shorter."""
    fixed: dict[str, Any] = {"ignore_eos": True, "max_tokens": 5}
    return [
        Job(tokens(1, 43), SamplingParams(temperature=0.0, **fixed)),
        Job(tokens(2, KEEP), SamplingParams(temperature=0.8, seed=5, **fixed)),
        Job(tokens(3, KEEP + 1), SamplingParams(temperature=1.0, seed=6, **fixed)),
        Job(tokens(4, 2), SamplingParams(temperature=1.3, seed=9, **fixed)),
    ]


def kept(trace: Trace, length: int) -> Trace:
    """The trace without rows that `compact` drops."""
    first = max(0, length - KEEP)
    return dataclasses.replace(trace, hidden={p: bits for p, bits in trace.hidden.items() if p >= first})


def all_kept(traces: list[Trace]) -> list[Trace]:
    return [kept(trace, len(job.prompt)) for trace, job in zip(traces, asks(), strict=True)]


@pytest.fixture(scope="module")
def narrow(tiny: Path) -> World:
    """An engine that narrows prompts."""
    return World(tiny, COMPACT)


@pytest.fixture(scope="module")
def masked(tiny: Path) -> list[Trace]:
    """Each request by itself, every row computed."""
    own = World(tiny, MASK)
    return [own.run([job])[0] for job in asks()]


@pytest.fixture(scope="module")
def text(tiny: Path) -> TextConfig:
    return ModelConfig.from_file(tiny / "config.json").text


# -- which rows are kept ---------------------------------------------------------------------------


def ints(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int32)


def test_kept_rows_of_a_mixed_step() -> None:
    """Keep 4.  Entries: a decode row at 20 of a prompt of 9; rows 3..7 of a prompt of 9, which keeps 5..8; rows 0..2
    of a prompt of 50; rows 0..1 of a prompt of 3."""
    replay = Replay("compact", 4)
    found = replay.kept(ints(20, 3, 0, 0), ints(1, 5, 3, 2), ints(9, 9, 50, 3))
    assert found is not None
    # Rows of the step: 0 | 1 2 3 4 5 | 6 7 8 | 9 10.  Positions 5, 6, 7 of the second entry are rows 3, 4, 5.
    want = HostKept(
        rows=ints(0, 3, 4, 5, 9, 10),
        place=ints(0, -1, -1, 1, 2, 3, -1, -1, -1, 4, 5),
        chunk_start=ints(0, 1, 1, 1, 4, 4),
        chunk_end=ints(1, 4, 4, 4, 6, 6),
    )
    for name, array in found._asdict().items():
        assert array.dtype == np.int32 and array.tolist() == getattr(want, name).tolist(), name


def test_a_step_without_a_kept_row() -> None:
    found = Replay("compact", 4).kept(ints(0, 8), ints(6, 2), ints(10, 50))
    assert found is not None and found.rows.size == 0 and found.place.tolist() == [-1] * 8


def test_a_step_that_keeps_all() -> None:
    steps = ints(0, 6, 30), ints(4, 4, 1), ints(4, 10, 10)
    assert Replay("compact", 4).kept(*steps) is None
    assert Replay("mask", 4).kept(ints(0), ints(9), ints(99)) is None
    assert Replay().kept(ints(0), ints(9), ints(99)) is None


def test_what_follows_from_the_length_of_a_prompt() -> None:
    replay = Replay("compact", 10)
    assert [replay.first(n) for n in (1, 10, 11, 300)] == [0, 0, 1, 290]
    assert [replay.reusable(n) for n in (10, 300)] == [0, 290]
    assert Replay().first(300) == 0 and Replay().reusable(300) == 300


# -- what is refused -------------------------------------------------------------------------------


def test_the_least_that_is_kept(text: TextConfig) -> None:
    assert plan_replay("compact", None, text, 14) == Replay("compact", 8 + 14)
    assert plan_replay("mask", 22, text, 14) == Replay("mask", 22)
    with pytest.raises(ConfigError, match=r"swa_keep = 21.*at least 22: the window of 8 tokens and 14") as caught:
        plan_replay("compact", 21, text, 14)
    assert "raise it to 22" in caught.value.fix


@pytest.mark.parametrize(
    ("mode", "keep", "changes", "why"),
    [
        ("some", None, {}, "one of off, mask, compact"),
        ("off", 40, {}, "swa_replay is off"),
        ("compact", None, {"kv_source_layer_ids": (1, 4, 6)}, "layer 6 makes compressed keys from decoder rows"),
        ("compact", None, {"compress_ratios": (0, 2, 2, 2, 2, 2, 2, 2, 0, 0)}, "no encoder half and decoder half"),
    ],
)
def test_refusals(text: TextConfig, mode: str, keep: int | None, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        plan_replay(mode, keep, dataclasses.replace(text, **changes), ROLLBACK)


def test_options_are_checked_before_the_model_is_loaded(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.swa_replay.*one of off, mask, compact"):
        load_config(env={"TANDEM_MODEL_SWA_REPLAY": "masked"})
    with pytest.raises(ConfigError, match=f"at least {KEEP}"):
        World(tiny, {**COMPACT, "model.swa_keep": KEEP - 1})


def test_prompt_logprobs_are_refused_by_name(narrow: World, world: World) -> None:
    scored = SamplingParams(max_tokens=1, prompt_logprobs=0)
    with pytest.raises(RequestError, match=r"prompt_logprobs.*'compact': only the last 10 tokens"):
        narrow.engine.add_request([5, 6, 7], scored)
    request = world.engine.add_request([5, 6, 7], scored)
    with pytest.raises(RequestError, match=r"prompt_logprobs.*'compact'"):
        narrow.engine.import_request(world.engine.export_request(request))
    world.engine.cancel(request)
    Replay().check_request(3)
    Replay("compact", 10).check_request(None)
    for mode in ("mask", "compact"):
        with pytest.raises(RequestError, match=rf"prompt_logprobs.*'{mode}': only the last 10 tokens"):
            Replay(mode, 10).check_request(0)


# -- what is computed ------------------------------------------------------------------------------


def test_narrowed_rows_have_the_bits_of_masked_ones(narrow: World, masked: list[Trace]) -> None:
    """Alone, and in a batch of prompts and decoding rows; all rows before the kept ones give zeros."""
    got = narrow.run([dataclasses.replace(job, arrival=2 * place) for place, job in enumerate(asks())])
    same_all(all_kept(got), all_kept(masked))
    zeros = bytes(len(got[0].hidden[0]))
    assert [sum(bits == zeros for bits in trace.hidden.values()) for trace in got] == [33, 0, 1, 0]
    assert all(bits != zeros for trace in masked for bits in trace.hidden.values())


def test_a_bound_at_the_start_of_the_prompt_changes_nothing(
    tiny: Path, world: World, masked: list[Trace]
) -> None:
    """Kept in full, a prompt has the bits of ``off``; a longer one has not."""
    full = world.run(asks())
    same_all(World(tiny, {**COMPACT, "model.swa_keep": 43}).run(asks()), full)
    for index in (1, 3):
        same(masked[index], full[index])
    assert masked[0].hidden[42] != full[0].hidden[42]
    # One row further: only rows whose windows hold position 0 can tell, and the decoder's first does.
    assert masked[2].hidden[1] != full[2].hidden[1]


def test_how_many_rows_make_the_last_one_exact(tiny: Path, world: World) -> None:
    """Four decoder layers, each of which reaches seven positions further back: 1 + 4 * 7."""
    job = asks()[0]
    full = world.run([job])[0].hidden[42]
    exact = [World(tiny, {**COMPACT, "model.swa_keep": n}).run([job])[0].hidden[42] == full for n in (28, 29)]
    assert exact == [False, True]


@pytest.mark.parametrize("chunk", [7, 33])
def test_chunks(tiny: Path, masked: list[Trace], chunk: int) -> None:
    """With 33 the first chunk ends where the kept rows begin."""
    own = World(tiny, {**COMPACT, "scheduler.max_chunk": chunk})
    same_all(all_kept(own.run(asks())), all_kept(masked))


def test_preemption(tiny: Path, narrow: World, masked: list[Trace]) -> None:
    """The bound is that of the prompt, also when drawn tokens are computed again with it."""
    longer = [
        Job(job.prompt, dataclasses.replace(job.params, max_tokens=20))
        for job in (asks()[2], asks()[0], asks()[0])
    ]
    want = narrow.run(longer)
    own = World(tiny, {**COMPACT, "cache.num_blocks": 7})
    same_all(own.run(longer), want)
    assert own.engine.stats.preemptions > 0
    assert want[1].result.token_ids[:5] == masked[0].result.token_ids


def test_a_cached_prefix(tiny: Path, narrow: World) -> None:
    """At most what stands before the kept rows is taken from the cache, so a hit has the bits of a miss."""
    own = World(tiny, {**COMPACT, "cache.prefix": "on"})
    own.poison()
    base, params = tokens(7, 70), SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    own.run([Job(base, params)])
    cache = own.parts.prefix
    assert cache is not None
    # Of 16, 32 and 64 shared tokens; the prompts are 5 and 20 tokens longer, of which 10 are kept.
    for shared, more, taken in ((16, 5, 0), (32, 5, 16), (64, 5, 48), (32, 20, 32), (70, 20, 64)):
        job = Job(base[:shared] + tokens(100 + shared, more), params)
        before = cache.stats().hit_tokens
        (got,), (want,) = own.run([job]), narrow.run([job])
        assert cache.stats().hit_tokens - before == taken
        assert got.result.token_ids == want.result.token_ids
        assert got.hidden == {p: bits for p, bits in want.hidden.items() if p >= taken}


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.8, marks=pytest.mark.slow)])
def test_drafts(tiny: Path, temperature: float) -> None:
    """Draft stages read context keys of kept rows only: NaN elsewhere changes neither drafts nor tokens."""
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=9, ignore_eos=True, logprobs=2)
    found, keep = {}, {"model.swa_keep": WINDOW + 6}
    for mode, drafts in (("mask", 2), ("compact", 2), ("compact", 0)):
        options = {**ROOMY, "model.path": str(tiny), "model.swa_replay": mode, "speculation.draft_tokens": drafts}
        llm = LLM(config=load_config(env={}, args=options | keep))
        caches = llm.engine._parts.model.caches
        for tensor in memory(caches):
            tensor.view(torch.uint8).fill_(0xFF)
        (result,) = llm.generate([tokens(1, 43)], params)
        found[mode, drafts] = result.token_ids, result.logprobs
        if (mode, drafts) == ("compact", 2):
            stages = [caches.window[layer].data for layer in (LAYERS, LAYERS + 1)]
            assert [bool((data == 0xFF).all(-1).any()) for data in stages] == [True, True]
        llm.close()
    assert found["mask", 2] == found["compact", 2]
    assert (found["compact", 2] == found["compact", 0]) == (temperature == 0.0)


def test_two_steps_in_flight(narrow: World, masked: list[Trace]) -> None:
    overlap = Overlap(narrow)
    same_all(all_kept(narrow.run(asks(), overlap.step)), all_kept(masked))
    assert overlap.most == 2 and overlap.from_device > 0


def test_memory_that_holds_anything(tiny: Path, masked: list[Trace]) -> None:
    """0xFF is NaN in a window entry.  Dropped rows leave it there, and nothing reads it."""
    own = World(tiny, COMPACT)
    own.poison()
    job, want = asks()[0], masked[0]
    same(kept(own.run([job])[0], 43), kept(want, 43))
    untouched = [bool((own.parts.model.caches.window[n].data == 0xFF).all(-1).any()) for n in range(LAYERS)]
    assert untouched[BOUNDARY:] == [True] * (LAYERS - BOUNDARY)


def test_dropped_rows_write_compressed_keys_and_no_decoder_window(tiny: Path) -> None:
    """After a chunk wholly before the kept rows: 16 positions of one slot, in pages of 8."""
    pages: dict[str, list[torch.Tensor]] = {}
    keys: dict[str, torch.Tensor] = {}
    for mode in ("mask", "compact"):
        own = World(tiny, {"model.swa_replay": mode, "scheduler.max_chunk": 16})
        own.poison()
        request = own.add(asks()[0])
        own.step()
        window = own.parts.model.caches.window
        blocks = own.parts.tables.window.blocks(0)[:2]
        pages[mode] = [torch.from_numpy(own.engine._parts.plan.backend.kv_export(window[n], blocks)) for n in window]
        main = own.parts.model.caches.main[BOUNDARY]
        keys[mode] = torch.from_numpy(own.parts.plan.backend.kv_export(main, own.parts.tables.main.blocks(0)[:1]))
        own.engine.cancel(request)
    assert torch.equal(keys["mask"], keys["compact"]) and not bool((keys["mask"] == 0xFF).all(-1).any())
    for layer in range(LAYERS):
        same_bytes = torch.equal(pages["mask"][layer], pages["compact"][layer])
        assert same_bytes == (layer < BOUNDARY), layer
        assert bool((pages["compact"][layer] == 0xFF).all()) == (layer >= BOUNDARY), layer


@pytest.mark.parametrize(("steps", "length"), [(1, 18), (2, 36), (3, 43), (5, 45)])
def test_a_request_moves(tiny: Path, narrow: World, masked: list[Trace], steps: int, length: int) -> None:
    """Exported before, inside and after the kept rows 33 to 42, it goes on to the same bits."""
    source = World(tiny, {**COMPACT, "scheduler.max_chunk": 18, "scheduler.turn_ms": 0})
    request = source.add(asks()[0])
    for _ in range(steps):
        source.step()
    state = RequestState.from_bytes(source.engine.export_request(request).to_bytes())
    assert state.num_computed == length
    moved = narrow.engine.import_request(state)
    narrow.finish()
    got, want = narrow.recorder.trace(moved), masked[0]
    first = max(length, 43 - KEEP)
    assert kept(got, 43).hidden == {p: bits for p, bits in want.hidden.items() if p >= first}
    assert got.result.token_ids == want.result.token_ids
