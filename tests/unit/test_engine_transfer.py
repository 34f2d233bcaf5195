"""A request exported from one engine goes on in another to the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import Job, Overlap, Trace, World, jobs, same, tokens

from tandem.cache.pool import AccountingError
from tandem.checkpoint.tiny import make_tiny
from tandem.engine.request_state import RequestState
from tandem.engine.transfer import params_of
from tandem.engine.turns import Turns
from tandem.errors import CapacityError, RequestError
from tandem.sampling.params import SamplingParams

OTHER: Mapping[str, Any] = {
    "cache.block_size": 32, "cache.window_block": 4, "cache.num_blocks": 40, "scheduler.max_slots": 3,
    "model.max_model_len": 300, "scheduler.max_tokens_per_step": 50, "scheduler.max_chunk": 9,
}  # fmt: skip


@pytest.fixture(scope="module")
def other(tiny: Path) -> World:
    """An engine with other blocks, pools, slots and limits; one slot is taken, so that slot numbers differ."""
    return World(tiny, OTHER)


def exported(world: World, job: Job, steps: int, with_caches: bool) -> RequestState:
    """Run a job for some steps and take it out, through bytes."""
    request = world.add(job)
    turns, world.parts.turns = world.parts.turns, Turns(0.0)
    for _ in range(steps):
        world.step()
    world.parts.turns = turns
    state = world.engine.export_request(request, with_caches)
    # It stays, and going on does not change what was taken.
    before = state.to_bytes()
    world.step()
    assert state.to_bytes() == before
    world.engine.cancel(request)
    world.check_clean()
    return RequestState.from_bytes(before)


def continues(world: World, state: RequestState, want: Trace) -> None:
    """Import, finish, and compare everything that is computed or drawn from there on."""
    neighbour = world.add(jobs()[3])
    world.step()
    request = world.engine.import_request(state)
    world.finish()
    assert len(world.recorder.trace(neighbour).result.token_ids) == jobs()[3].params.max_tokens
    got = world.recorder.trace(request)
    first, drawn = state.num_computed, len(state.tokens)
    assert got.hidden == {p: row for p, row in want.hidden.items() if p >= first}
    assert sorted(got.logits) == [p for p in want.logits if p >= drawn]
    for position, logits in got.logits.items():
        np.testing.assert_array_equal(logits.view(np.uint32), want.logits[position].view(np.uint32))
    have, expected = got.result, want.result
    assert have.token_ids == expected.token_ids and have.prompt_token_ids == expected.prompt_token_ids
    assert (have.text, have.finish_reason, have.stop_reason) == (
        expected.text, expected.finish_reason, expected.stop_reason
    )  # fmt: skip
    assert have.logprobs == expected.logprobs


# Job 2 is 75 tokens in chunks of 64: after one step it stands in the middle of its prompt.  Lengths of both
# parities matter to the compressor, which pools pairs.
@pytest.mark.parametrize("with_caches", [True, False])
@pytest.mark.parametrize(("index", "steps"), [(2, 1), (0, 1), (0, 4), (0, 5), (1, 16), (3, 9), (4, 2), (4, 7)])
def test_goes_on_in_an_engine_of_another_shape(
    world: World, other: World, alone: list[Trace], index: int, steps: int, with_caches: bool
) -> None:
    job = jobs()[index]
    state = exported(world, job, steps, with_caches)
    length = 64 if (index, steps) == (2, 1) else len(job.prompt) + steps - 1
    assert state.num_computed == (length if with_caches else 0)
    assert bool(state.device) == with_caches
    continues(other, state, alone[index])


def test_goes_on_from_an_engine_with_smaller_pages(other: World, world: World, alone: list[Trace]) -> None:
    state = exported(other, jobs()[0], 9, True)
    continues(world, state, alone[0])


def test_moves_twice(world: World, other: World, alone: list[Trace]) -> None:
    state = exported(world, jobs()[4], 5, True)
    request = other.engine.import_request(state)
    for _ in range(4):
        other.step()
    again = other.engine.export_request(request)
    other.engine.cancel(request)
    assert again.num_computed == state.num_computed + 4
    continues(world, again, alone[4])


def test_caches_hold_what_the_layouts_say(world: World) -> None:
    """Sizes by hand: source layer 1 keeps an entry for 2 tokens, layer 4 one for each; 8 windows; rings of 2 + 2 and
    4 + 2 positions.  A main entry is 64 / 2 + 64 / 16 bytes, an index entry 32 / 2 + 1, a window entry 64 + 2."""
    state = exported(world, jobs()[0], 4, True)  # 40 prompt tokens and 3 drawn are computed
    assert state.num_computed == 43 and state.window_start == 43 - 8 - 2
    shapes = {name: (array.dtype.name, array.shape) for name, array in state.device.items()}
    expected: dict[str, Any] = {
        "main.1": ("uint8", (21, 36)), "main.4": ("uint8", (43, 36)),
        "index.1": ("uint8", (21, 17)), "index.4": ("uint8", (43, 17)),
        "compressor.1": ("float32", (4, 2, 64)), "ngram": ("int32", (6,)),
    }  # fmt: skip
    assert shapes == expected | {f"window.{layer}": ("uint8", (10, 66)) for layer in range(8)}


def test_with_steps_in_flight(world: World, other: World, alone: list[Trace]) -> None:
    overlap = Overlap(world)
    request = world.add(jobs()[1])
    for _ in range(5):
        overlap.step()
    overlap.launch()
    with pytest.raises(AccountingError, match="being drawn"):
        world.engine.export_request(request)
    while overlap.flying:
        overlap.deliver()
    state = world.engine.export_request(request)
    world.engine.cancel(request)
    continues(other, state, alone[1])


def test_a_preempted_request(tiny: Path, other: World, alone: list[Trace]) -> None:
    own = World(tiny, {"cache.num_blocks": 5})
    long = replace(jobs()[0].params, max_tokens=40)
    older, younger = own.add(Job(jobs()[0].prompt, long)), own.add(jobs()[1])
    # The younger one gets one of two free blocks, draws until it is full, waits, and is put back for position 64 of
    # the older one, whose first token is drawn in step 1 from position 39.
    for _ in range(25):
        own.step()
    assert own.engine.stats.preemptions == 0
    own.step()
    assert own.engine.stats.preemptions == 1
    state = own.engine.export_request(younger)
    assert state.num_computed == 0 and not state.device
    assert len(state.tokens) == 16 + 1  # the block is full, and its last row drew one more
    own.engine.cancel(younger)
    own.finish()
    assert own.recorder.trace(older).result.token_ids[:12] == alone[0].result.token_ids
    continues(other, state, alone[1])


def test_a_request_that_waits_for_a_slot(tiny: Path, other: World, alone: list[Trace]) -> None:
    own = World(tiny, {"scheduler.max_slots": 1})
    running, waiting = own.add(jobs()[0]), own.add(jobs()[4])
    state = RequestState.from_bytes(own.engine.export_request(waiting).to_bytes())
    assert state.tokens.tolist() == jobs()[4].prompt
    continues(other, state, alone[4])
    own.engine.cancel(running)
    own.finish()
    same(own.recorder.trace(waiting), alone[4])


def test_computes_again_where_there_is_no_room_now(
    tiny: Path, world: World, alone: list[Trace]
) -> None:
    state = exported(world, jobs()[0], 5, True)
    full = World(tiny, {"cache.num_blocks": 7})
    older = full.add(jobs()[2])  # takes 5 of the 7 blocks with its prompt; the import would need 3
    full.step()
    full.step()
    request = full.engine.import_request(state)
    full.finish()
    same(full.recorder.trace(older), alone[2])
    got = full.recorder.trace(request)
    assert got.hidden == alone[0].hidden and got.result.token_ids == alone[0].result.token_ids
    assert full.parts.pools.main.num_blocks == 7


def test_roles_overrides_bias_and_stops_move_along(world: World, other: World) -> None:
    rows = np.random.default_rng(1).normal(size=(3, 128)).astype(np.float32)
    params = SamplingParams(
        temperature=0.9, top_p=0.8, top_k=50, seed=4, max_tokens=14, min_tokens=2, stop=("zq!",),
        stop_token_ids=(7,), logit_bias={3: -2.0, 9: float("-inf"), 440: 1.5}, logprobs=3, processed_logprobs=True,
    )  # fmt: skip
    extras = {
        "roles": [0] * 4 + [1] * 5 + [0] * 6, "media_digest": bytes(range(32)), "embed_rows": rows,
        "embed_positions": [4, 6, 8],
    }  # fmt: skip
    job = Job(tokens(9, 15), params, extras)
    (want,) = world.run([job])
    state = exported(world, job, 3, True)
    assert params_of(state) == replace(
        params, temperature=float(np.float32(0.9)), top_p=float(np.float32(0.8)), logit_bias=params.logit_bias
    )
    assert state.roles is not None and state.roles.tolist() == extras["roles"] + [0] * (len(state.tokens) - 15)
    assert state.media_digest == extras["media_digest"]
    continues(other, state, want)
    continues(other, exported(world, job, 3, False), want)


def test_a_stop_string_that_was_half_drawn(world: World, other: World) -> None:
    """Only 'a' and 'b' can be drawn, so a stop string of four letters takes four tokens."""
    a, b = world.llm.tokenizer.encode("a")[-1], world.llm.tokenizer.encode("b")[-1]
    base = SamplingParams(temperature=1.0, seed=11, max_tokens=24, logit_bias={a: 1e4, b: 1e4}, ignore_eos=True)
    (free,) = world.run([Job([a], base)])
    text = free.result.text
    assert len(text) == 24 and set(text) == {"a", "b"}
    stop = text[10:14]
    cut = text.index(stop)
    job = Job([a], replace(base, stop=(stop,)))
    state = exported(world, job, cut + 2, True)  # two of its four letters are drawn
    request = other.engine.import_request(state)
    other.finish()
    result = other.recorder.trace(request).result
    assert (result.text, result.finish_reason, result.stop_reason) == (text[:cut], "stop", stop)
    assert result.token_ids == free.result.token_ids[: cut + 4]


def test_what_does_not_fit_is_refused(world: World, other: World, tmp_path: Path) -> None:
    state = exported(world, jobs()[0], 3, True)
    make_tiny(tmp_path, 0, {"text_config": {"head_dim": 32, "kv_source_layer_ids": [1, 4]}})
    smaller = World(tmp_path)
    for changed, what in (
        (state, "device array"),
        (replace(state, device={**state.device, "main.99": np.zeros(1, np.uint8)}), "device arrays"),
        (replace(state, tokens=np.array([*state.tokens[:-1], 512], np.int32)), "0 .. 511"),
        (replace(state, past_logprobs={}), "past_logprobs"),
        (replace(state, logit_bias={512: 1.0}), "logit_bias"),
    ):
        target = smaller if changed is state else other
        with pytest.raises(RequestError, match=what):
            target.engine.import_request(changed)
        target.check_clean()
    with pytest.raises(RequestError, match="does not hold it"):
        world.engine.export_request(10**6)
    long = replace(state, sampling=replace(state.sampling, max_tokens=280))
    with pytest.raises(RequestError, match="max_model_len"):
        other.engine.import_request(long)
    other.check_clean()


def test_no_free_slot(tiny: Path, world: World, alone: list[Trace]) -> None:
    state = exported(world, jobs()[0], 3, True)
    single = World(tiny, {"scheduler.max_slots": 1})
    held = single.add(jobs()[3])
    with pytest.raises(CapacityError, match="slot"):
        single.engine.import_request(state)
    single.finish()
    same(single.recorder.trace(held), alone[3])


def test_too_short_a_window_is_computed_again(world: World, other: World, alone: list[Trace]) -> None:
    """A state that keeps less of the past than this engine may read again is not trusted with it."""
    state = exported(world, jobs()[0], 5, True)
    short = {n: a[1:] if n.startswith("window") else a for n, a in state.device.items()}
    request = other.engine.import_request(replace(state, device=short, window_start=state.window_start + 1))
    other.finish()
    got = other.recorder.trace(request)
    assert got.hidden == alone[0].hidden and got.result.token_ids == alone[0].result.token_ids
