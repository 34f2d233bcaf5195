"""What follows a pass over the trunk: coefficients from its partial sums, and the norm of the collapsed rows.

Both are one launch.  The first programs take MIX_ROWS rows each and compute coefficients, a chain of forty short
reductions, while the others normalise a row each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._elementary import exp_negative
from tandem.backends.cuda.kernels._hyper import chunks, outputs
from tandem.backends.cuda.kernels._rows import normalise, store_quantised
from tandem.backends.cuda.launch import launch
from tandem.contract.types import HcMix, HcWeights, QTensor

Tensor = torch.Tensor
MIX_ROWS = 16


@triton.jit
def finish(
    partial,
    base,
    scale,
    pre,
    post,
    comb,
    x,
    norm_weight,
    codes,
    scales,
    rows,
    norm_eps,
    hc_eps,
    iters,
    CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Coefficients of ROWS rows, or, where x is given, the norm of one of its rows in place and its mxfp8 copy."""
    mixers = tl.cdiv(rows, ROWS)
    program = tl.program_id(0)
    if program < mixers:
        row = program.to(tl.int64) * ROWS + tl.arange(0, ROWS)
        mix_rows(
            *(partial, base, scale, pre, post, comb, row, rows, norm_eps, hc_eps, iters),
            *(CHUNKS, WIDTH, M, OUTPUTS),
        )
    elif x is not None:
        norm_row(x, norm_weight, codes, scales, program - mixers, norm_eps, WIDTH, COLUMNS)


@triton.jit
def norm_row(x, weight, codes, scales, row, eps, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Normalise a row in place, and write its mxfp8 copy."""
    row = row.to(tl.int64) + tl.zeros((1, 1), tl.int64)
    column = tl.arange(0, COLUMNS)[None, :]
    inside = column < WIDTH
    offset = row * WIDTH + column
    value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    rounded = normalise(value, weight, eps, column, WIDTH).to(tl.bfloat16)
    tl.store(x + offset, rounded, mask=inside)
    store_quantised(codes, scales, rounded.to(tl.float32), row, row >= 0, "mxfp8", WIDTH)


@triton.jit
def mix_rows(
    partial,
    base,
    scale,
    pre,
    post,
    comb,
    row,
    rows,
    norm_eps,
    hc_eps,
    iters,
    CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Coefficients of rows int64 [R] from the partial sums of all their chunks."""
    MP: tl.constexpr = triton.next_power_of_2(M)
    live = row < rows
    lane = tl.arange(0, MP)[None, :]
    stored = live[:, None] & (lane < M)
    squares = add_chunks(partial, row, M * M + 2 * M + tl.arange(0, 1)[None, :], live[:, None], CHUNKS, OUTPUTS)
    inverse = 1.0 / tl.sqrt_rn(squares / (M * WIDTH) + norm_eps)

    dots = add_chunks(partial, row, lane, stored, CHUNKS, OUTPUTS) * inverse
    value = sigmoid(dots * tl.load(scale) + tl.load(base + lane, mask=lane < M, other=0.0)) + hc_eps
    tl.store(pre + row[:, None] * M + lane, value, mask=stored)

    dots = add_chunks(partial, row, M + lane, stored, CHUNKS, OUTPUTS) * inverse
    value = 2.0 * sigmoid(dots * tl.load(scale + 1) + tl.load(base + M + lane, mask=lane < M, other=0.0))
    tl.store(post + row[:, None] * M + lane, value, mask=stored)

    pair = tl.arange(0, MP * MP)[None, :]
    used = (pair // MP < M) & (pair % MP < M)
    entry = pair // MP * M + pair % MP
    dots = add_chunks(partial, row, 2 * M + entry, live[:, None] & used, CHUNKS, OUTPUTS) * inverse
    value = dots * tl.load(scale + 2) + tl.load(base + 2 * M + entry, mask=used, other=0.0)
    value = sinkhorn(tl.reshape(value, (row.shape[0], MP, MP)), hc_eps, iters, M)
    flat = tl.reshape(value, (row.shape[0], MP * MP))
    tl.store(comb + row[:, None] * M * M + entry, flat, mask=live[:, None] & used)


@triton.jit
def add_chunks(partial, row, column, used, CHUNKS: tl.constexpr, OUTPUTS: tl.constexpr):
    """Columns [1, N] of the partial sums of rows [R], chunks added: f32 [R, N], zeros where not used."""
    PADDED: tl.constexpr = triton.next_power_of_2(CHUNKS)
    chunk = tl.arange(0, PADDED)[None, :, None]
    offset = (row[:, None, None] * CHUNKS + chunk) * OUTPUTS + column[:, None, :]
    return tl.sum(tl.load(partial + offset, mask=used[:, None, :] & (chunk < CHUNKS), other=0.0), axis=1)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), by the exponential that does not overflow."""
    e = exp_negative(-tl.abs(x))
    return tl.div_rn(tl.where(x < 0, e, 1.0), 1.0 + e)


@triton.jit
def sinkhorn(value, eps, iters, M: tl.constexpr):
    """Softmax over rows plus eps, then columns and rows in turns, of f32 [R, MP, MP]; M of MP rows and columns count.

    The rest begins as the unit matrix: its sums are never zero, and no row or column that counts sees it.
    Sums divide by a reciprocal: its error is one factor of a whole row or column, which the next normalisation undoes.
    """
    MP: tl.constexpr = value.shape[1]
    i = tl.arange(0, MP)[None, :, None]
    j = tl.arange(0, MP)[None, None, :]
    used = (i < M) & (j < M)
    peak = tl.max(tl.where(used, value, float("-inf")), axis=2)
    value = tl.where(used, exp_negative(value - peak[:, :, None]), (i == j).to(tl.float32))
    value = value * (1.0 / tl.sum(value, axis=2))[:, :, None] + tl.where(used, eps, 0.0)
    value = value * (1.0 / (tl.sum(value, axis=1) + eps))[:, None, :]
    for _ in range(iters - 1):
        value = value * (1.0 / (tl.sum(value, axis=2) + eps))[:, :, None]
        value = value * (1.0 / (tl.sum(value, axis=1) + eps))[:, None, :]
    return value


def run_finish(
    trunk: Tensor, partial: Tensor, weights: HcWeights, normed: tuple[Tensor, Tensor, QTensor] | None = None
) -> HcMix:
    """Launch `finish`.

    Args:
        trunk: bf16 [T, m, H], whose shape counts.
        partial: what the pass over it left.
        weights: of the sub-layer that is entered.
        normed: collapsed rows to normalise in place, the weight of the norm, and the quantised copy to write.
    """
    rows, m, width = trunk.shape
    made = [torch.empty((rows, *n), dtype=torch.float32, device=trunk.device) for n in ((m,), (m,), (m, m))]
    x, norm_weight, xq = normed or (None, None, None)
    codes, scales = (None, None) if xq is None else _rows.targets(xq)
    columns = _rows.whole(width)[1]
    shape = {"CHUNKS": chunks(width), "WIDTH": width, "M": m, "OUTPUTS": outputs(m), "ROWS": MIX_ROWS}
    launch(
        finish,
        (-(-rows // MIX_ROWS) + (0 if x is None else rows),),
        *(partial, weights.base, weights.scale, *made, x, norm_weight, codes, scales),
        *(rows, weights.norm_eps, weights.hc_eps, weights.iters),
        **shape,
        COLUMNS=columns,
        num_warps=_rows.warps(1, columns),
    )
    return HcMix(*made)
