"""The same request gives the same bits, whatever else runs and however its rows are cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engines import Job, Trace, World, arriving, jobs, same, same_all

BLOCKS_UNDER_PRESSURE = 6  # the longest of `jobs` needs 6 blocks of 16 tokens, all together 16


def test_reference_runs_cover_every_row_and_differ(alone: list[Trace]) -> None:
    for job, trace in zip(jobs(), alone, strict=True):
        length, drawn = len(job.prompt), job.params.max_tokens
        assert len(trace.result.token_ids) == drawn and trace.result.finish_reason == "length"
        assert sorted(trace.hidden) == list(range(length + drawn - 1))
        assert sorted(trace.logits) == list(range(length, length + drawn))
        assert len({logits.tobytes() for logits in trace.logits.values()}) == drawn


@pytest.mark.parametrize(
    ("order", "gap"),
    [((0, 1, 2, 3, 4), 0), ((4, 3, 2, 1, 0), 0), ((2, 0, 4, 1, 3), 1), ((1, 3, 0, 4, 2), 4), ((3, 4, 1, 2, 0), 9)],
)
def test_batches_and_arrival_orders(world: World, alone: list[Trace], order: tuple[int, ...], gap: int) -> None:
    got = world.run(list(arriving(order, gap)))
    same_all(got, [alone[index] for index in order])


def test_copies_of_one_request_in_a_batch(world: World, alone: list[Trace]) -> None:
    job = jobs()[1]
    copies = [Job(job.prompt, job.params, arrival=n) for n in range(6)]
    for trace in world.run(copies):
        same(trace, alone[1])


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 128])
def test_chunk_sizes(tiny: Path, alone: list[Trace], chunk: int) -> None:
    own = World(tiny, {"scheduler.max_chunk": chunk})
    same(own.run([jobs()[2]])[0], alone[2])
    longest = max(rows for _, _, rows in own.recorder.chunks)
    assert longest == min(chunk, 75)
    same_all(own.run(jobs()), alone)


def test_a_step_smaller_than_its_prompts(tiny: Path, alone: list[Trace]) -> None:
    own = World(tiny, {"scheduler.max_tokens_per_step": 8})
    same_all(own.run(list(arriving((2, 0, 1, 4, 3), 2))), [alone[i] for i in (2, 0, 1, 4, 3)])
    assert max(plan.total_rows for plan in own.recorder.plans) == 8


@pytest.mark.parametrize(("block", "window_block", "length"), [(16, 16, 256), (32, 4, 200), (128, 2, 512)])
def test_block_sizes_and_length_limits(
    tiny: Path, alone: list[Trace], block: int, window_block: int, length: int
) -> None:
    options = {"cache.block_size": block, "cache.window_block": window_block, "model.max_model_len": length}
    same_all(World(tiny, options).run(jobs()), alone)


@pytest.mark.parametrize(("order", "gap"), [((0, 1, 2, 3, 4), 0), ((3, 1, 4, 2, 0), 3)])
def test_preemption_with_every_block_in_use(
    tiny: Path, alone: list[Trace], order: tuple[int, ...], gap: int
) -> None:
    own = World(tiny, {"cache.num_blocks": BLOCKS_UNDER_PRESSURE})
    got = own.run(list(arriving(order, gap)))
    same_all(got, [alone[index] for index in order])
    assert own.engine.stats.preemptions > 0 and own.least_free == 0
    assert sum(trace.result.preemptions for trace in got) == own.engine.stats.preemptions


def test_preemption_while_chunks_are_small(tiny: Path, alone: list[Trace]) -> None:
    options = {
        "cache.num_blocks": BLOCKS_UNDER_PRESSURE, "scheduler.max_chunk": 7, "scheduler.max_tokens_per_step": 16
    }  # fmt: skip
    own = World(tiny, options)
    same_all(own.run(list(arriving((1, 3, 4, 0, 2), 1))), [alone[i] for i in (1, 3, 4, 0, 2)])
    assert own.engine.stats.preemptions > 0


def test_padding_rows(tiny: Path, alone: list[Trace]) -> None:
    own = World(tiny, {"scheduler.max_tokens_per_step": 160})
    own.recorder.padding = 5
    own.parts.scheduler._limits = World(tiny).parts.scheduler._limits  # leaves room for the padding rows
    same_all(own.run(jobs()), alone)


def test_memory_that_holds_anything(tiny: Path, alone: list[Trace]) -> None:
    own = World(tiny)
    own.poison()
    same_all(own.run(jobs()), alone)
    own.poison()  # and a reused slot reads nothing of what its last request left
    same_all(own.run(list(arriving((4, 2, 0, 3, 1), 1))), [alone[i] for i in (4, 2, 0, 3, 1)])


def test_a_chunk_longer_than_the_window(tiny: Path, alone: list[Trace]) -> None:
    own = World(tiny, {"scheduler.max_chunk": 128})
    assert own.parts.config.text.sliding_window == 8
    same(own.run([jobs()[2]])[0], alone[2])
    assert own.recorder.chunks[0][1:] == (0, 75)
