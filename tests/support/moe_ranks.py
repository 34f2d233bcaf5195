"""Dispatch and combine as data movement between simulated ranks, each of which holds a range of experts.

Every rank sees the tokens of all ranks and takes the rows of its experts, as after an all-gather.  Results come back in
one of two ways: as rows, which are put where one rank that holds everything would have them, or as sums of each rank,
which are added.  Sums are rounded, so there the numbers are small integers, which every order of addition keeps exact.

``CASES`` has a check for each backend's `Kernels`, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.conformance.poison import PoisonMode
from tandem.contract.types import MoEBatch, QFormat, QTensor

Tensor = torch.Tensor
Array = npt.NDArray[Any]
Ranges = tuple[tuple[int, int], ...]

RANGES: dict[str, Ranges] = {
    "one": ((0, 12),),
    "two": ((0, 6), (6, 12)),
    "three uneven": ((0, 1), (1, 9), (9, 12)),
    "four, two of them empty": ((0, 0), (0, 5), (5, 5), (5, 12)),
    "two and experts nowhere": ((2, 5), (5, 11)),
}
TOKENS = {1: (23,), 2: (16, 1), 3: (7, 0, 26), 4: (5, 0, 17, 1)}  # of each rank, by the number of ranks
POISONS = (0x00, 0x7F, 0xFF)


@dataclass(frozen=True)
class Kernels:
    """What a backend brings.

    Args:
        dispatch, combine: the launchers of `moe_dispatch` and `moe_combine`.
        layout: name of its mxfp8 activations.
        pack: scale bytes [rows, groups] as they lie in it.
        canonical: such activations with row-major scales.
    """

    dispatch: Callable[..., MoEBatch]
    combine: Callable[..., Tensor]
    layout: str
    pack: Callable[[Array], Tensor]
    canonical: Callable[[QTensor], QTensor]


@dataclass(frozen=True)
class Tokens:
    """Tokens of all ranks, one rank after another: codes and scales as numpy has them, and as the op takes them."""

    codes: Array
    scale: Array
    experts: Array
    weights: Array
    slots: Array

    def dispatch(self, kernels: Kernels, local: tuple[int, int]) -> MoEBatch:
        """The rows of a range of experts."""
        codes, shape = torch.from_numpy(self.codes), self.codes.shape
        xq = QTensor(codes, kernels.pack(self.scale), QFormat.MXFP8, shape, kernels.layout)
        parts = (torch.from_numpy(part) for part in (self.experts, self.weights, self.slots))
        return kernels.dispatch(xq, *parts, local)


def draw(seed: int, counts: tuple[int, ...], experts: int = 12, k: int = 3, width: int = 96) -> Tokens:
    """Random tokens: of each rank every fifth is padding, of the last rank all but the first."""
    rng = np.random.default_rng(seed)
    rows = sum(counts)
    slots = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    slots[3::5] = -1
    if len(counts) > 1:
        slots[rows - counts[-1] + 1 :] = -1
    order = rng.permuted(np.tile(np.arange(experts, dtype=np.int32), (rows, 1)), axis=1)
    return Tokens(
        rng.integers(0, 0x7F, (rows, width)).astype(np.uint8),
        rng.integers(100, 140, (rows, width // 32)).astype(np.uint8),
        np.ascontiguousarray(order[:, :k]),
        rng.random((rows, k), dtype=np.float32),
        slots,
    )


def sent(tokens: Tokens, local: tuple[int, int]) -> list[tuple[int, int, int]]:
    """(expert, token, k) of the rows of a range of experts, in order."""
    return sorted(
        (int(expert), t, i)
        for t, chosen in enumerate(tokens.experts)
        for i, expert in enumerate(chosen)
        if tokens.slots[t] >= 0 and local[0] <= expert < local[1]
    )


def used(batch: MoEBatch) -> int:
    """Rows of a batch that hold something."""
    return int(batch.ends[-1]) if len(batch.ends) else 0


def owners(batch: MoEBatch, local: tuple[int, int]) -> Array:
    """Expert of each used row, as the ends say."""
    return np.repeat(np.arange(*local), np.diff(batch.ends.numpy(), prepend=0))


def small(codes: Array, expert: int, weight: float) -> Array:
    """What an expert makes of a row: integers below 16, so that sums of all experts of a token are exact in bf16."""
    return ((codes.astype(np.int64) * (expert + 3) + int(weight * 1000)) % 16).astype(np.float32)


def broad(codes: Array, expert: int, weight: float) -> Array:
    """What an expert makes of a row: small numbers, or large ones that cancel those of another expert.

    What is left of the small ones depends on the order of the sum.
    """
    wide = codes.astype(np.float32)
    return (np.float32(weight) * (wide - 50.5), wide * np.float32(2.0**18), wide * np.float32(-(2.0**18)))[expert % 3]


def bf16(x: Array) -> Array:
    """f32 rounded to bf16, ties to even, as its 16 bits."""
    raw = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)


def bits(y: Tensor) -> Array:
    return y.contiguous().view(torch.int16).numpy().view(np.uint16)


def apply(batch: MoEBatch, local: tuple[int, int], function: Any) -> Tensor:
    """Rows of expert results bf16, NaN where the batch has none."""
    y = torch.full(batch.x.shape, float("nan"), dtype=torch.bfloat16)
    for row, expert in enumerate(owners(batch, local)):
        made = function(batch.x.data[row].numpy(), expert, float(batch.weight[row]))
        y[row] = torch.from_numpy(bf16(made).view(np.int16)).view(torch.bfloat16)
    return y


def expected(tokens: Tokens, ranges: Ranges, function: Any, shared: Array | None) -> Array:
    """Bits of the combined rows, token by token: f32 sums in the order of k, then the shared row."""

    def widen(rounded: Array) -> Array:
        return (rounded.astype(np.uint32) << 16).view(np.float32)

    result = np.zeros(tokens.codes.shape, np.float32)
    for t, i in np.ndindex(*tokens.experts.shape):
        expert = int(tokens.experts[t, i])
        if tokens.slots[t] >= 0 and any(first <= expert < end for first, end in ranges):
            result[t] += widen(bf16(function(tokens.codes[t], expert, float(tokens.weights[t, i]))))
    return bf16(result if shared is None else result + widen(shared))


def check_batch(kernels: Kernels, tokens: Tokens, local: tuple[int, int], batch: MoEBatch) -> None:
    """A batch against its derivation."""
    rows = sent(tokens, local)
    places = {(t, i): place for place, (_, t, i) in enumerate(rows)}
    index = [t for _, t, _ in rows]
    plain = kernels.canonical(batch.x)
    assert used(batch) == len(rows)
    assert np.array_equal(owners(batch, local), [expert for expert, _, _ in rows])
    assert np.array_equal(plain.data[: len(rows)].numpy(), tokens.codes[index])
    assert np.array_equal(plain.scale[: len(rows)].numpy(), tokens.scale[index])
    assert np.array_equal(batch.weight[: len(rows)].numpy(), [tokens.weights[t, i] for _, t, i in rows])
    source = [[places.get((t, i), -1) for i in range(tokens.experts.shape[1])] for t in range(len(tokens.experts))]
    assert np.array_equal(batch.source.numpy(), np.array(source, np.int32).reshape(tokens.experts.shape))


def joined(batches: list[MoEBatch], results: list[Tensor]) -> tuple[Tensor, MoEBatch]:
    """Used rows of all ranks one after another, and where each (token, k) finds its own."""
    starts = np.cumsum([0, *(used(batch) for batch in batches)])
    source = torch.full_like(batches[0].source, -1)
    for start, batch in zip(starts, batches, strict=False):
        source = torch.where(batch.source >= 0, batch.source + int(start), source)
    y = torch.full_like(results[0], float("nan"))
    for start, batch, result in zip(starts, batches, results, strict=False):
        y[int(start) : int(start) + used(batch)] = result[: used(batch)]
    return y, MoEBatch(batches[0].x, batches[0].weight, batches[0].ends, source)


def each_rank_gets_the_rows_of_its_experts(ranges: Ranges, kernels: Kernels) -> None:
    tokens = draw(1, TOKENS[len(ranges)])
    for local in ranges:
        check_batch(kernels, tokens, local, tokens.dispatch(kernels, local))


def rows_that_come_back_give_the_bits_of_one_rank(ranges: Ranges, kernels: Kernels) -> None:
    tokens = draw(2, TOKENS[len(ranges)])
    shared = bf16(np.random.default_rng(3).normal(size=tokens.codes.shape).astype(np.float32))
    device_shared = torch.from_numpy(shared.view(np.int16)).view(torch.bfloat16)
    whole = (ranges[0][0], ranges[-1][1])
    batches = [tokens.dispatch(kernels, local) for local in ranges]
    results = [apply(batch, local, broad) for batch, local in zip(batches, ranges, strict=True)]
    alone = tokens.dispatch(kernels, whole)
    one = kernels.combine(apply(alone, whole, broad), alone, device_shared)
    y, batch = joined(batches, results)
    assert torch.equal(batch.source, alone.source)
    assert np.array_equal(bits(kernels.combine(y, batch, device_shared)), bits(one))
    assert np.array_equal(bits(one), expected(tokens, ranges, broad, shared))


def sums_of_ranks_add_up_to_those_of_one_rank(ranges: Ranges, kernels: Kernels) -> None:
    tokens = draw(4, TOKENS[len(ranges)])
    whole = (ranges[0][0], ranges[-1][1])
    total = torch.zeros(tokens.codes.shape)
    for local in ranges:
        batch = tokens.dispatch(kernels, local)
        total += kernels.combine(apply(batch, local, small), batch, None).to(torch.float32)
    alone = tokens.dispatch(kernels, whole)
    one = kernels.combine(apply(alone, whole, small), alone, None)
    assert np.array_equal(bits(total.to(torch.bfloat16)), bits(one))
    assert np.array_equal(bits(one), expected(tokens, ranges, small, None))


def more_pairs_than_one_program_ranks(kernels: Kernels) -> None:
    tokens = draw(5, (90, 83, 2))
    for local in ((3, 5), (0, 12)):
        check_batch(kernels, tokens, local, tokens.dispatch(kernels, local))


def official_sizes(kernels: Kernels) -> None:
    tokens = draw(6, (2, 1), experts=384, k=6, width=5120)
    tokens.slots[:] = 0
    ranges = ((0, 96), (96, 192), (192, 288), (288, 384))
    batches = [tokens.dispatch(kernels, local) for local in ranges]
    for local, batch in zip(ranges, batches, strict=True):
        check_batch(kernels, tokens, local, batch)
    results = [apply(batch, local, broad) for batch, local in zip(batches, ranges, strict=True)]
    combined = kernels.combine(*joined(batches, results), None)
    assert np.array_equal(bits(combined), expected(tokens, ranges, broad, None))


def ranks_without_tokens(ranks: int, kernels: Kernels) -> None:
    tokens = draw(7, (0,) * ranks)
    batch = tokens.dispatch(kernels, (2, 7))
    assert batch.ends.tolist() == [0] * 5
    assert kernels.combine(torch.empty((0, 96), dtype=torch.bfloat16), batch, None).shape == (0, 96)


def memory_that_no_row_uses_is_neither_read_nor_written(local: tuple[int, int], kernels: Kernels) -> None:
    tokens = draw(8, (11, 20))
    outputs = []
    for poison in POISONS:
        with PoisonMode(poison):
            batch = tokens.dispatch(kernels, local)
            y = kernels.combine(apply(batch, local, broad), batch, None)
        plain, count = kernels.canonical(batch.x), used(batch)
        junk = (plain.data[count:], plain.scale[count:], batch.weight[count:].view(torch.uint8))
        assert all(bool((part == poison).all()) for part in junk)
        outputs.append((plain.data[:count], plain.scale[:count], batch.weight[:count], batch.ends, batch.source, y))
    for other in outputs[1:]:
        assert all(torch.equal(one, two) for one, two in zip(outputs[0], other, strict=True))


CASES: dict[str, Callable[[Kernels], None]] = {
    f"{check.__name__.replace('_', ' ')}: {name}": partial(check, ranges)
    for check in (
        each_rank_gets_the_rows_of_its_experts,
        rows_that_come_back_give_the_bits_of_one_rank,
        sums_of_ranks_add_up_to_those_of_one_rank,
    )
    for name, ranges in RANGES.items()
}
CASES |= {
    "more pairs than one program ranks": more_pairs_than_one_program_ranks,
    "official sizes": official_sizes,
    **{f"ranks without tokens: {ranks}": partial(ranks_without_tokens, ranks) for ranks in (1, 3)},
    **{
        f"unused memory: {local}": partial(memory_that_no_row_uses_is_neither_read_nor_written, local)
        for local in ((0, 12), (4, 6), (5, 5))
    },
}
