"""What kernels do to tiles of rows, in registers: normalise, rotate, encode, decode.

A tile is f32 [R, C]: R rows of a matrix, and C of their columns.  Work is split by `tile`, which depends on the width
alone: a row's bits cannot depend on how many rows there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels._codec import (
    e2m1_decode,
    e4m3_decode,
    mxfp4_groups,
    mxfp8_groups,
    nvfp4_groups,
    ue8m0_value,
)
from tandem.contract.types import QFormat, QTensor

TILE = 2048  # elements of a program of four warps: sixteen a thread, two wide loads of bf16
LEAST, MOST = 128, 1024  # columns of a part of a row; the scales of the least are one word of the packed layout


def tile(width: int) -> tuple[int, int]:
    """Rows and columns of a tile for work that needs no whole rows: of the last tile of a row the least is unused."""
    sizes = [columns for columns in (MOST, MOST // 2, MOST // 4, LEAST) if columns < 2 * width] or [LEAST]
    columns = min(sizes, key=lambda size: -(-width // size) * size)
    return TILE // columns, columns


def narrow(width: int) -> tuple[int, int]:
    """Rows and columns of a tile of words, half as many as elements; rows may be a word or two long."""
    columns = min(TILE // 4, triton.next_power_of_2(width))
    return TILE // 2 // columns, columns


def whole(width: int) -> tuple[int, int]:
    """Rows and columns of a tile that holds whole rows."""
    columns = max(LEAST, triton.next_power_of_2(width))
    return max(1, TILE // columns), columns


def parts(width: int) -> tuple[int, int]:
    """Columns of a part of a row and how many make the row: at most eight, with little unused at the end."""
    least = max(LEAST, triton.next_power_of_2(-(-width // 8)))
    sizes = [columns for columns in (8 * least, 4 * least, 2 * least, least) if columns <= MOST] or [least]
    columns = min(sizes, key=lambda size: -(-width // size) * size)
    return columns, -(-width // columns)


def warps(rows: int, columns: int) -> int:
    """Warps of a program for a tile of whole rows: sixteen elements a thread, more in rows wider than 8192."""
    return min(16, max(4, rows * columns // 512))


def grid(tensor_rows: int, width: int, split: tuple[int, int]) -> tuple[int, int]:
    """Programs along rows and columns."""
    return -(-tensor_rows // split[0]), -(-width // split[1])


def targets(q: QTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of a tensor made by `quantised`, as `store_quantised` writes them."""
    return q.data, q.scale.view(torch.int32) if q.fmt is QFormat.MXFP8 else q.scale


def quantised_bytes(elements: int, fmt: QFormat) -> int:
    """Bytes of codes and scales, filler not counted."""
    return elements * fmt.bits // 8 + elements // fmt.group


@triton.jit
def place(R: tl.constexpr, C: tl.constexpr):
    """Rows int64 [R, 1] and columns int32 [1, C] of this program."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    column = tl.program_id(1) * C + tl.arange(0, C)
    return row[:, None], column[None, :]


@triton.jit
def inverse_size(squares, eps, WIDTH: tl.constexpr):
    """1 / sqrt(mean + eps), f32 [R, 1], of squares [R, C] that add up to those of rows of WIDTH elements."""
    return (1.0 / tl.sqrt_rn(tl.sum(squares, axis=1) / WIDTH + eps))[:, None]


@triton.jit
def normalise(value, weight, eps, column, WIDTH: tl.constexpr):
    """value * rsqrt(mean(value^2) + eps) [* weight] of whole rows whose columns past WIDTH are zero."""
    value = value * inverse_size(value * value, eps, WIDTH)
    if weight is not None:
        value = value * tl.load(weight + column, mask=column < WIDTH, other=0.0)
    return value


@triton.jit
def rotate(value, cos_sin, row, used, start, DIM: tl.constexpr, ROPE: tl.constexpr, INVERSE: tl.constexpr):
    """Rotate the pairs among the last ROPE of each DIM columns by the angles of their row; others stay as they are.

    row, used: [R, 1], or scalars of the one row that all of the tile belongs to; start: the tile's first column, even.
    """
    R: tl.constexpr = value.shape[0]
    C: tl.constexpr = value.shape[1]
    even, odd = tl.split(tl.reshape(value, (R, C // 2, 2)))
    first = start + 2 * tl.arange(0, C // 2)[None, :]
    angle = (first % DIM - (DIM - ROPE)) // 2
    turned = used & (angle >= 0)
    source = cos_sin + row * ROPE + angle
    cos = tl.load(source, mask=turned, other=1.0)
    sin = tl.load(source + ROPE // 2, mask=turned, other=0.0)
    if INVERSE:
        sin = -sin
    turned_even = tl.where(turned, even * cos - odd * sin, even)
    turned_odd = tl.where(turned, even * sin + odd * cos, odd)
    return tl.reshape(tl.join(turned_even, turned_odd), (R, C))


@triton.jit
def encode(value, FMT: tl.constexpr):
    """f32 [R, C] -> code bytes uint8 [R, C] or, of fp4, [R, C/2], and scale bytes int32 [R, C/group]."""
    R: tl.constexpr = value.shape[0]
    C: tl.constexpr = value.shape[1]
    if FMT == "mxfp8":
        code, scale = mxfp8_groups(tl.reshape(value, (R * C // 32, 32)))
        return tl.reshape(code, (R, C)), tl.reshape(scale, (R, C // 32))
    elif FMT == "mxfp4":
        code, scale = mxfp4_groups(tl.reshape(value, (R * C // 32, 32)))
        return pack(code, R, C), tl.reshape(scale, (R, C // 32))
    else:
        code, scale = nvfp4_groups(tl.reshape(value, (R * C // 16, 16)))
        return pack(code, R, C), tl.reshape(scale, (R, C // 16))


@triton.jit
def pack(code, R: tl.constexpr, C: tl.constexpr):
    """e2m1 codes int32 of R * C elements -> bytes uint8 [R, C/2], the even element in the low nibble."""
    low, high = tl.split(tl.reshape(code, (R, C // 2, 2)))
    return (low | (high << 4)).to(tl.uint8)


@triton.jit
def decode(code, scale, FMT: tl.constexpr):
    """Inverse of `encode` of bytes uint8: f32 [R, C], each exactly code times scale."""
    R: tl.constexpr = scale.shape[0]
    G: tl.constexpr = scale.shape[1]
    if FMT == "mxfp8":
        value = e4m3_decode(code)
    else:
        byte = code.to(tl.int32)
        value = tl.join(e2m1_decode(byte & 15), e2m1_decode(byte >> 4))
    if FMT == "nvfp4":
        size: tl.constexpr = 16
        factor = e4m3_decode(scale)
    else:
        size: tl.constexpr = 32
        factor = ue8m0_value(scale.to(tl.int32))
    return tl.reshape(tl.reshape(value, (R, G, size)) * factor[:, :, None], (R, G * size))


@triton.jit
def store_quantised(codes, scales, value, row, used, FMT: tl.constexpr, WIDTH: tl.constexpr, part=None):
    """Encode a tile f32 [R, C] and write codes and scales; row, used: [R, 1].

    part: which tile of the rows it is; None: the one that the program's place in the grid says.
    """
    if part is None:
        part = tl.program_id(1)
    code, scale = encode(value, FMT)
    C: tl.constexpr = code.shape[1]
    row_codes: tl.constexpr = WIDTH * C // value.shape[1]
    byte = part * C + tl.arange(0, C)[None, :]
    tl.store(codes + row * row_codes + byte, code, mask=used & (byte < row_codes))
    G: tl.constexpr = scale.shape[1]
    row_scales: tl.constexpr = WIDTH * G // value.shape[1]
    if FMT == "mxfp8":
        _store_packed(scales, scale, row, used, part, row_scales)
    else:
        group = part * G + tl.arange(0, G)[None, :]
        tl.store(scales + row * row_scales + group, scale.to(tl.uint8), mask=used & (group < row_scales))


@triton.jit
def _store_packed(words, scale, row, used, part, GROUPS: tl.constexpr):
    """Write scale bytes int32 [R, G] in the packed layout (scales.py), four groups to a word; filler groups are 127."""
    R: tl.constexpr = scale.shape[0]
    G: tl.constexpr = scale.shape[1]
    quads: tl.constexpr = (GROUPS + 3) // 4
    group = part * G + tl.arange(0, G)[None, :]
    filled = tl.reshape(tl.where(group < GROUPS, scale, 127), (R, G // 4, 4))
    word = tl.sum(filled << (8 * tl.arange(0, 4))[None, None, :], axis=2)
    quad = part * (G // 4) + tl.arange(0, G // 4)[None, :]
    offset = ((row // 128) * quads + quad) * 128 + (row % 32) * 4 + row % 128 // 32
    tl.store(words + offset, word, mask=used & (quad < quads))
