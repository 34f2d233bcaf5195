"""The pass over the residual streams that the hyper-connection ops share.

A program of `trunk_pass` takes TILE_ROWS rows and CHUNK columns of all streams, COLUMNS at a time, and does what its op
asks for: mix in a sub-layer's output, collapse, project.  A projection needs all columns of a row, so each program
leaves partial sums, and `_mixing.py` adds those of a row in one fixed shape.  Neither split depends on the number of
rows, and so no bit does.

Memory bounds the projection, 24 dot products against 40 KB of a row.  It runs on the matrix units in bf16: the trunk
is bf16, and a weight is cut into three bf16 terms, which together hold its 24 bits.  64 rows, the least that SM100's
matrix units take, share one read of the 2 MB of weights from the cache; few rows still spread over all chunks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch
from tandem.backends.cuda.weights import PLAIN
from tandem.contract.types import HcWeights
from tandem.errors import LayoutError

Tensor = torch.Tensor
TILE_ROWS, CHUNK, COLUMNS, WARPS, STAGES = 64, 128, 64, 8, 2


@triton.jit
def trunk_pass(
    trunk,
    y,
    post,
    comb,
    mixed,
    pre,
    x,
    fn,
    partial,
    rows,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """One tile of the trunk: mixed = post (y, trunk); x = collapse (pre); partial = project (fn); each where given.

    Streams are taken one after another, so that a program holds one of them and two programs fit a processor; where all
    are mixed, it reads the tile of each M times, from the cache after the first.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    dots = tl.zeros((ROWS, OUTPUTS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for part in range(PARTS):
        column = (tl.program_id(1) * PARTS + part) * COLUMNS + tl.arange(0, COLUMNS)
        used = column < WIDTH
        inside = live[:, None] & used[None, :]
        first = row[:, None] * (M * WIDTH) + column[None, :]
        narrow = row[:, None] * WIDTH + column[None, :]
        collapsed = tl.zeros((ROWS, COLUMNS), tl.float32)
        for j in range(M):
            if y is not None:
                weights = post + row * M + j, comb + row * (M * M) + j
                stream = mix_in(y + narrow, trunk + first, *weights, inside, live, WIDTH, M)
                tl.store(mixed + first + j * WIDTH, stream, mask=inside)
            else:
                stream = tl.load(trunk + first + j * WIDTH, mask=inside, other=0.0)
            value = stream.to(tl.float32)
            if x is not None:
                collapsed += tl.load(pre + row * M + j, mask=live, other=0.0)[:, None] * value
            if fn is not None:
                squares += tl.sum(value * value, axis=1)
                dots = project(stream, fn + j * WIDTH + column, used, dots, M * WIDTH, M * M + 2 * M)
        if x is not None:
            tl.store(x + narrow, collapsed.to(tl.bfloat16), mask=inside)
    if fn is not None:
        output = tl.arange(0, OUTPUTS)[None, :]
        place = (row * tl.num_programs(1) + tl.program_id(1)) * OUTPUTS
        sums = tl.where(output == M * M + 2 * M, squares[:, None], dots)
        tl.store(partial + place[:, None] + output, sums, mask=live[:, None])


@triton.jit
def mix_in(y, trunk, post, comb, inside, live, WIDTH: tl.constexpr, M: tl.constexpr):
    """A stream after a sub-layer, bf16 [R, C]: post y + sum_i comb[i] h[i], i ascending.

    y, trunk: pointers of a tile, the first stream's; post, comb: pointers [R] at this stream's column.
    """
    total = tl.load(post, mask=live, other=0.0)[:, None] * tl.load(y, mask=inside, other=0.0).to(tl.float32)
    for i in tl.static_range(M):
        weight = tl.load(comb + i * M, mask=live, other=0.0)
        total += weight[:, None] * tl.load(trunk + i * WIDTH, mask=inside, other=0.0).to(tl.float32)
    return total.to(tl.bfloat16)


@triton.jit
def project(stream, fn, used, dots, DEPTH: tl.constexpr, COUNT: tl.constexpr):
    """Add the dot products of a tile bf16 [R, C] and the first COUNT rows of fn, pointers [C], to dots [R, outputs]."""
    output = tl.arange(0, dots.shape[1])[:, None]
    rest = tl.load(fn[None, :] + output * DEPTH, mask=(output < COUNT) & used[None, :], other=0.0)
    for _ in tl.static_range(3):
        term = rest.to(tl.bfloat16)
        dots = tl.dot(stream, tl.trans(term), dots)
        rest -= term.to(tl.float32)
    return dots


def chunks(width: int) -> int:
    """Programs of `trunk_pass` along the columns."""
    return -(-width // CHUNK)


def outputs(m: int) -> int:
    """Columns of the partial sums: dot products, sum of squares, and what fills them up for the matrix units."""
    count: int = triton.next_power_of_2(m * m + 2 * m + 1)
    return max(16, count)


def run_pass(
    trunk: Tensor,
    *,
    left: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    collapsed: tuple[Tensor, Tensor] | None = None,
    projected: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Launch `trunk_pass`.

    Args:
        trunk: bf16 [T, m, H].
        left: y, post and comb of a sub-layer, and the trunk to write.
        collapsed: pre, and x to write.
        projected: fn, and the partial sums to write.
    """
    rows, m, width = trunk.shape
    y, post, comb, mixed = left or (None, None, None, None)
    pre, x = collapsed or (None, None)
    fn, partial = projected or (None, None)
    grid = (-(-rows // TILE_ROWS), chunks(width))
    arrays = (trunk, y, post, comb, mixed, pre, x, fn, partial)
    shape = {"WIDTH": width, "M": m, "OUTPUTS": outputs(m)}
    split = {"ROWS": TILE_ROWS, "COLUMNS": COLUMNS, "PARTS": CHUNK // COLUMNS}
    launch(trunk_pass, grid, *arrays, rows, **shape, **split, num_warps=WARPS, num_stages=STAGES)


def projection(op: str, weights: HcWeights) -> Tensor:
    """The projection f32 [m*m + 2m, m*H] of a sub-layer.

    Raises:
        LayoutError: it was packed by another backend.
    """
    if weights.fn.layout != PLAIN:
        raise LayoutError(
            f"'{op}' got a packed weight it does not read",
            where=repr(weights.fn),
            why=f"the op reads layout '{PLAIN}'",
            fix="pack the canonical weight with this backend",
        )
    fn: Tensor = weights.fn.token
    return fn


def empty_partial(trunk: Tensor) -> Tensor:
    """Memory for the partial sums of a trunk."""
    rows, m, width = trunk.shape
    return torch.empty((rows, chunks(width), outputs(m)), dtype=torch.float32, device=trunk.device)
