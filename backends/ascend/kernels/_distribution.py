"""What the ops that draw have in common: see csrc/ascend/distribution.h."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.accelerator.strided import with_stride
from tandem.backends.ascend import native
from tandem.backends.ascend.kernels._grid import THREADS
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor
SMALLEST_CHUNK, MOST_CHUNKS = 4096, 256
PASSES, BINS, FIELDS, PLACES, NUMBERS = 5, 256, 6, 6, 4  # as in _filters.h and _distribution.h
BINNED = (40, 4, 1, 0, 0)  # bytes of UB that bins take in each pass, for each token of a chunk
WARPS = THREADS // 32
WIDE = 8 * WARPS * (WARPS + 1)  # bytes of UB that a sum of int64 over a block takes; of int32 the half
SHARED = 8 * THREADS  # the same of a number that all threads read
FOUND = 3 * SHARED  # of a place on a line and in its chunk


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of rows of logits.

    Args:
        line, stride: the logits and the distance of their rows.
        rows, vocab, chunk: sizes; a row is measured in chunks.
        places, numbers, kept: results, see csrc/ascend/distribution.h.
    """

    line: Tensor
    stride: int
    rows: int
    vocab: int
    chunk: int
    places: Tensor
    numbers: Tensor
    kept: Tensor

    @property
    def found(self) -> tuple[Tensor, Tensor, Tensor]:
        """Results in the order of the entries."""
        return self.places, self.numbers, self.kept

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Rows, vocabulary, stride and chunk, in the order of the entries."""
        return self.rows, self.vocab, self.stride, self.chunk


def chunk_of(vocab: int) -> int:
    """Tokens of a chunk."""
    needed = -(-vocab // MOST_CHUNKS)
    return max(SMALLEST_CHUNK, 1 << (needed - 1).bit_length())


def measure(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor | None,
    filtered: bool,
    with_all: bool,
) -> Measured:
    """Measure rows of logits f32 [N, V]; with_all: also the log of the sum over all tokens."""
    rows, vocab = logits.shape
    chunk = chunk_of(vocab)
    splits = -(-vocab // chunk)
    line, stride = with_stride(logits)

    def scratch(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    places, numbers = scratch(torch.int32, rows, PLACES), scratch(torch.float32, rows, NUMBERS)
    found = Measured(line, stride, rows, vocab, chunk, places, numbers, scratch(torch.int64, rows, splits))
    searched = rows if filtered else 0
    native.run(
        "distribution", line, temperature, top_p, top_k, min_p, scratch(torch.int64, rows, splits),
        scratch(torch.int64, 2, searched, FIELDS), scratch(torch.int64, 3, searched, BINS),
        scratch(torch.int32, 3, 3, searched, BINS), scratch(torch.int32, 2, rows, splits),
        scratch(torch.int64, 2, rows, splits), *found.found, *found.sizes, int(filtered), int(with_all),
    )  # fmt: skip
    return found


def chunk_plan(device: Device, logits: Tensor, read: int, written: int, ub: int = 0) -> Plan:
    """A launch in which a block takes a chunk of a row at a time; bytes of UB are those of a chunk."""
    rows, vocab = logits.shape
    tasks = rows * -(-vocab // chunk_of(vocab))
    return Plan("vector", tasks, min(tasks, device.vector_cores), read, written, ub * tasks)


def row_plan(device: Device, logits: Tensor, read: int, written: int, ub: int) -> Plan:
    """A launch in which a block takes a row at a time; bytes of UB are those of a row."""
    rows = logits.shape[0]
    return Plan("vector", rows, min(rows, device.vector_cores), read, written, ub * rows)


def plans(device: Device, logits: Tensor, filtered: bool, with_all: bool) -> list[Plan]:
    """The launches of `measure`; at most, for a row is read only until its bracket closes."""
    rows, vocab = logits.shape
    if not rows:
        return []
    parts = rows * -(-vocab // chunk_of(vocab))
    read, bins, sums = rows * vocab * 4, rows * BINS * 20, rows * BINS * 12
    launches = [chunk_plan(device, logits, read, parts * 8 + bins * filtered, WIDE)]
    for number in range(PASSES * filtered):
        ub = BINS * 20 + WIDE + FOUND + min(vocab, chunk_of(vocab)) * BINNED[number]
        ub += SHARED + 4 * WIDE + FOUND if number else 0
        added = rows * min(vocab, BINS) * 20
        launches.append(chunk_plan(device, logits, read + (sums if number else added), bins + added, ub))
    ub = 4 * WIDE + WIDE * with_all + FOUND * filtered
    launches.append(chunk_plan(device, logits, read + sums * filtered, parts * 32, ub))
    launches.append(row_plan(device, logits, parts * 56, rows * 36 + parts * 8, 5 * WIDE))
    return launches
