"""`draft_heads` as two kernels: the Markov head's product on tensor cores, and one dot product a row for confidence.

The product is turned round: rows of the head stand where a matrix unit has 128 rows, tokens where it has few columns,
so that few tokens waste little.  Its tile is the same for any number of tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.strided import with_stride
from tandem.backends.cuda.kernels._elementary import exp_negative
from tandem.backends.cuda.launch import launch
from tandem.backends.cuda.weights import PLAIN
from tandem.contract.types import PackedWeight, QFormat
from tandem.errors import LayoutError

Tensor = torch.Tensor
TILE_V, TILE_N, TILE_K = 128, 32, 64
BLOCK = 1024
CLIP = tl.constexpr(60.0)


@triton.jit
def _markov(
    base, stride, previous, embedding, head, out, rows, vocab, rank, tiles,
    TILE_V: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """Logits of TILE_V ids for TILE_N rows; programs of the same ids follow one another, for their weights."""
    token = (tl.program_id(0) // tiles) * TILE_V + tl.arange(0, TILE_V)
    row = (tl.program_id(0) % tiles) * TILE_N + tl.arange(0, TILE_N)
    before = tl.load(previous + row, mask=row < rows, other=-1).to(tl.int64)
    known = before >= 0
    depth = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_V, TILE_N), tl.float32)
    for start in range(0, rank, TILE_K):
        k = start + depth
        inside = (token < vocab)[:, None] & (k < rank)[None, :]
        w = tl.load(head + token.to(tl.int64)[:, None] * rank + k[None, :], mask=inside, other=0.0)
        inside = (k < rank)[:, None] & known[None, :]
        e = tl.load(embedding + before[None, :] * rank + k[:, None], mask=inside, other=0.0)
        total = tl.dot(w, e, total)
    place, inside = row.to(tl.int64)[None, :], (row < rows)[None, :] & (token < vocab)[:, None]
    old = tl.load(base + place * stride + token[:, None], mask=inside & known[None, :], other=0.0)
    tl.store(out + place * vocab + token[:, None], tl.where(known[None, :], old + total, float("-inf")), mask=inside)


@triton.jit
def _confidence(
    hidden, stride, previous, embedding, proj, out, width, rank, temperature, BLOCK: tl.constexpr, RANK: tl.constexpr
):  # fmt: skip
    """One row: terms are added lane by lane, then lanes, then those of the embedding."""
    row = tl.program_id(0).to(tl.int64)
    before = tl.load(previous + row).to(tl.int64)
    rate = 0.0
    if before >= 0:
        lanes = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, width, BLOCK):
            k = start + tl.arange(0, BLOCK)
            x = tl.load(hidden + row * stride + k, mask=k < width, other=0.0).to(tl.float32)
            lanes += x * tl.load(proj + k, mask=k < width, other=0.0)
        k = tl.arange(0, RANK)
        e = tl.load(embedding + before * rank + k, mask=k < rank, other=0.0).to(tl.float32)
        score = tl.sum(lanes) + tl.sum(e * tl.load(proj + width + k, mask=k < rank, other=0.0))
        score = tl.div_rn(score, temperature)
        score = tl.where(score > CLIP, CLIP, tl.where(score < -CLIP, -CLIP, score))  # keeps NaN
        small = exp_negative(tl.where(score > 0.0, -score, score))
        rate = tl.div_rn(tl.where(score > 0.0, 1.0, small), 1.0 + small)
    tl.store(out + row, rate)


def draft_heads(
    base: Tensor,
    hidden: Tensor,
    previous: Tensor,
    embedding: PackedWeight,
    head: PackedWeight,
    proj: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """See core/ops/draft_heads.py."""
    for weight in (embedding, head):
        _require_plain(weight)
    (rows, vocab), rank = base.shape, head.shape[1]
    logits = torch.empty((rows, vocab), dtype=torch.float32, device=base.device)
    confidence = torch.empty(rows, dtype=torch.float32, device=base.device)
    tiles = triton.cdiv(rows, TILE_N)
    launch(
        _markov, (triton.cdiv(vocab, TILE_V) * tiles,), *with_stride(base), previous, embedding.token, head.token,
        logits, rows, vocab, rank, tiles, TILE_V=TILE_V, TILE_N=TILE_N, TILE_K=TILE_K, num_warps=4, num_stages=3,
    )  # fmt: skip
    launch(
        _confidence, (rows,), *with_stride(hidden), previous, embedding.token, proj, confidence, hidden.shape[1],
        rank, float(temperature), BLOCK=BLOCK, RANK=triton.next_power_of_2(rank), num_warps=4,
    )  # fmt: skip
    return logits, confidence


def _require_plain(weight: PackedWeight) -> None:
    if weight.layout != PLAIN or weight.fmt is not QFormat.BF16:
        raise LayoutError(
            "'draft_heads' got a weight that it does not read",
            where=f"op 'draft_heads', {weight!r}",
            why=f"its layout is '{weight.layout}' of {weight.fmt.value}, the kernel reads '{PLAIN}' of bf16",
            fix="pack a bf16 weight with pack_weight() of this backend",
        )


def _traffic(base: Tensor, hidden: Tensor, head: PackedWeight, proj: Tensor, **others: Any) -> tuple[int, int]:
    """The head's tile is read once, for the programs that share it run together; embeddings stay in the cache."""
    rows, vocab = base.shape
    small = hidden.numel() * 2 + rows * head.shape[1] * 2 + proj.numel() * 4 + rows * 4
    return rows * vocab * 4 + head.nbytes + small, rows * vocab * 4 + rows * 4


OPS: dict[str, Any] = {"draft_heads": draft_heads}
TRAFFIC: dict[str, Any] = {"draft_heads": _traffic}
