"""Row invariance, memory discipline and equal bits of the residual, Engram and quantising kernels everywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cpu.residual_cases import ARGUMENTS, BACKEND, CALLS, MOST, ROWS, Guarded, outputs, run, same
from support.cpu_sets import SETS, using
from torch import Tensor

OPS = sorted(CALLS)


@pytest.fixture(scope="module")
def whole() -> dict[str, list[Tensor]]:
    """Each op on all rows, one thread."""
    torch.set_num_threads(1)
    return {name: run(name, slice(None)) for name in OPS}


@pytest.fixture
def two_threads() -> Any:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def pick(arrays: list[Tensor], index: Any) -> list[Tensor]:
    return [array[index] for array in arrays]


@pytest.mark.parametrize("name", OPS)
def test_row_bits_do_not_depend_on_the_batch(name: str, whole: dict[str, list[Tensor]]) -> None:
    """Rows alone, in batches of every tested size, at other places, and several times over."""
    for t in (0, 1, 31, 63):
        assert same(run(name, slice(t, t + 1)), pick(whole[name], slice(t, t + 1)))
    for rows in ROWS:
        assert same(run(name, slice(0, rows)), pick(whole[name], slice(0, rows)))
    order = torch.randperm(MOST, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        assert same(run(name, order), pick(whole[name], order))


@pytest.mark.parametrize("name", OPS)
def test_two_threads_give_the_same_bits(name: str, whole: dict[str, list[Tensor]], two_threads: None) -> None:
    for rows in (1, 3, MOST):
        assert same(run(name, slice(0, rows)), pick(whole[name], slice(0, rows)))


@pytest.mark.parametrize("name", OPS)
def test_rows_beyond_a_group(name: str, whole: dict[str, list[Tensor]], two_threads: None) -> None:
    """More rows than are summed between two meetings of the threads."""
    index = torch.arange(3 * MOST + 5) % MOST
    assert same(run(name, index), pick(whole[name], index))


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("isa", SETS)
def test_every_instruction_set_gives_the_same_bits(name: str, isa: str, whole: dict[str, list[Tensor]]) -> None:
    with using(isa):
        for rows in (1, 17, MOST):
            assert same(run(name, slice(0, rows)), pick(whole[name], slice(0, rows)))


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("rows", (1, 17))
def test_writes_all_of_its_outputs_and_nothing_else(name: str, rows: int, whole: dict[str, list[Tensor]]) -> None:
    """Whatever outputs and scratch held before, between guard bytes."""
    arguments = {key: value[:rows].contiguous() for key, value in ARGUMENTS[name].items()}
    for fill in (0xFF, 0x3C):
        with Guarded(fill) as guarded:
            result = CALLS[name](arguments)
        assert guarded.intact()
        assert same(outputs(result), pick(whole[name], slice(0, rows)))


@pytest.mark.parametrize("name", OPS)
def test_reads_only_its_rows(name: str, whole: dict[str, list[Tensor]]) -> None:
    """Rows lie between others of bytes 0xFF, which are NaN or no indexes; they stay as they are."""
    arguments = {}
    for key, value in ARGUMENTS[name].items():
        pool = torch.empty((5, *value.shape[1:]), dtype=value.dtype)
        pool.view(torch.uint8).fill_(0xFF)
        pool[1:4] = value[:3]
        arguments[key] = pool[1:4]
    before = {key: value.clone() for key, value in arguments.items()}
    assert same(outputs(CALLS[name](arguments)), pick(whole[name], slice(0, 3)))
    assert all(torch.equal(arguments[key], value) for key, value in before.items())


@pytest.mark.parametrize("name", OPS)
def test_no_rows(name: str) -> None:
    assert all(array.shape[0] == 0 for array in run(name, slice(0, 0)))


@pytest.mark.parametrize("name", OPS)
def test_replayed_bits(name: str, whole: dict[str, list[Tensor]]) -> None:
    """A recorded call reads what its arguments hold when it is replayed."""
    arguments = {key: torch.zeros_like(value[:3]) for key, value in ARGUMENTS[name].items()}
    results: list[Any] = []
    with torch.inference_mode():
        graph = BACKEND.capture(lambda: results.append(CALLS[name](arguments)))
        for key, value in ARGUMENTS[name].items():
            arguments[key].copy_(value[:3])
        graph.replay()
        assert same(outputs(results[0]), pick(whole[name], slice(0, 3)))
