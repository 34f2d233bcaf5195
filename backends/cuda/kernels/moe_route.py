"""`moe_route` in two launches: scores of all experts, a matrix product in fixed parts of K, then each row's choice.

A product is summed in parts of `DEPTH` terms, and the parts are added in their order.  Few rows leave too few tiles to
keep a device busy, so there each part is a program's and the second launch adds them up; of many rows one program takes
all parts of a tile and adds them up itself.  The sums are the same, so a row's bits do not depend on the other rows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tandem.backends.cuda import weights
from tandem.backends.cuda.kernels._elementary import exp_negative, log1p_unit
from tandem.backends.cuda.launch import launch, require_dense
from tandem.contract.types import PackedWeight, QFormat
from tandem.errors import LayoutError

Tensor = torch.Tensor
TOKENS, EXPERTS = 128, 128  # of a tile of scores
DEPTH = 256  # terms of a part
STEP = 64  # terms of one load: 128 bytes, what a swizzled line of shared memory holds
FEW = 256  # rows up to which every part has its own program
ROWS = 4  # that one program chooses for, each in a warp


@triton.jit
def _scores(
    x,
    gate,
    sums,
    rows,
    experts,
    PARTS: tl.constexpr,
    TOKENS: tl.constexpr,
    EXPERTS: tl.constexpr,
    DEPTH: tl.constexpr,
    STEP: tl.constexpr,
):
    """A program sums PARTS parts of one tile [TOKENS, EXPERTS]; x and gate are descriptors, zero outside.

    ``sums`` is f32 [parts / PARTS, rows, experts].  Tiles of the same rows run side by side and share them in L2.
    """
    expert = tl.program_id(0) * EXPERTS
    row = tl.program_id(1) * TOKENS
    group = tl.program_id(2)
    total = tl.zeros((TOKENS, EXPERTS), tl.float32)
    for part in range(PARTS):
        start = (group * PARTS + part) * DEPTH
        # The loop keeps the sum of a part apart from the total: one dot would be folded into it.
        found = tl.zeros((TOKENS, EXPERTS), tl.float32)
        for at in range(start, start + DEPTH, STEP):
            found = tl.dot(x.load([row, at]), gate.load([expert, at]).T, found)
        total += found
    token = row + tl.arange(0, TOKENS)
    column = expert + tl.arange(0, EXPERTS)
    place = (group * rows + token)[:, None].to(tl.int64) * experts + column[None, :]
    tl.store(sums + place, total, mask=(token < rows)[:, None] & (column < experts)[None, :])


@triton.jit
def _ordered(value):
    """int32 in the order of f32 values; both zeros are equal."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _choose(
    sums,
    bias,
    bias_vl,
    roles,
    chosen,
    weights,
    rows,
    experts,
    scaling,
    PARTS: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """A program takes ROWS rows whole; EXPERTS and WIDTH are the experts and K rounded up to powers of two.

    Score and index make one key, the lower index the greater, so that each choice is a maximum.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, EXPERTS)
    held = (row < rows)[:, None] & (expert < experts)[None, :]
    logit = tl.zeros((ROWS, EXPERTS), tl.float32)
    for part in range(PARTS):
        place = (part * rows + row)[:, None].to(tl.int64) * experts + expert[None, :]
        logit += tl.load(sums + place, mask=held, other=0.0)
    score = tl.sqrt_rn(tl.where(logit > 0.0, logit, 0.0) + log1p_unit(exp_negative(-tl.abs(logit))))
    text = tl.load(bias + expert, mask=expert < experts, other=0.0)
    image = tl.load(bias_vl + expert, mask=expert < experts, other=0.0)
    role = tl.load(roles + row, mask=row < rows, other=0)
    wanted = score + tl.where((role != 0)[:, None], image[None, :], text[None, :])
    wanted = tl.where(wanted != wanted, float("-inf"), wanted)
    key = (_ordered(wanted).to(tl.int64) << 32) | (0x7FFFFFFF - expert)[None, :]
    lowest = -0x8000000000000000
    key = tl.where((expert < experts)[None, :], key, lowest)

    column = tl.arange(0, WIDTH)
    share = tl.zeros((ROWS, WIDTH), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for i in range(K):
        best = tl.max(key, axis=1)
        index = 0x7FFFFFFF - (best & 0x7FFFFFFF).to(tl.int32)
        tl.store(chosen + row * K + i, index, mask=row < rows)
        taken = expert[None, :] == index[:, None]
        own = tl.sum(tl.where(taken, score, 0.0), axis=1)
        total += own
        share = tl.where((column == i)[None, :], own[:, None], share)
        key = tl.where(taken, lowest, key)
    weight = tl.div_rn(share, (total + 1e-20)[:, None]) * scaling
    tl.store(weights + (row * K)[:, None] + column[None, :], weight, mask=(row < rows)[:, None] & (column < K)[None, :])


def _plain(gate: PackedWeight) -> Tensor:
    if gate.layout != weights.PLAIN or gate.fmt is not QFormat.BF16:
        raise LayoutError(
            "'moe_route' got a gate it does not read",
            where=f"op 'moe_route', {gate!r}",
            why=f"it is {gate.fmt.value} in layout '{gate.layout}', the op reads bf16 in '{weights.PLAIN}'",
            fix="store the gate as bf16, or set TANDEM_COMPOSITE=moe_route",
        )
    stored: Tensor = gate.token
    return stored


def _parts(rows: int, depth: int) -> tuple[int, int]:
    """Parts that the sum of a product has, and how many of them one program takes."""
    parts = triton.cdiv(depth, DEPTH)
    return parts, 1 if rows <= FEW else parts


def moe_route(
    x: Tensor, gate: PackedWeight, bias: Tensor, bias_vl: Tensor, roles: Tensor, k: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """See core/ops/moe_route.py."""
    matrix, (rows, depth), experts = _plain(gate), x.shape, gate.shape[0]
    chosen = torch.empty((rows, k), dtype=torch.int32, device=x.device)
    weight = torch.empty((rows, k), dtype=torch.float32, device=x.device)
    if rows == 0:
        return chosen, weight
    require_dense("moe_route", x)
    parts, taken = _parts(rows, depth)
    sums = torch.empty((parts // taken, rows, experts), dtype=torch.float32, device=x.device)
    tiles = [TensorDescriptor.from_tensor(t, [n, STEP]) for t, n in ((x, TOKENS), (matrix, EXPERTS))]
    launch(
        _scores,
        (triton.cdiv(experts, EXPERTS), triton.cdiv(rows, TOKENS), parts // taken),
        *tiles,
        sums,
        rows,
        experts,
        PARTS=taken,
        TOKENS=TOKENS,
        EXPERTS=EXPERTS,
        DEPTH=DEPTH,
        STEP=STEP,
        num_warps=8,
        num_stages=4,
    )
    launch(
        _choose,
        (triton.cdiv(rows, ROWS),),
        sums,
        bias,
        bias_vl,
        roles,
        chosen,
        weight,
        rows,
        experts,
        scaling,
        PARTS=parts // taken,
        K=k,
        ROWS=ROWS,
        EXPERTS=triton.next_power_of_2(experts),
        WIDTH=triton.next_power_of_2(k),
    )
    return chosen, weight


def _traffic(x: Tensor, gate: PackedWeight, k: int, **others: Any) -> tuple[int, int]:
    """Rows and gate once: tiles of one row share it in L2.  Sums of parts are written and read again."""
    (rows, depth), experts = x.shape, gate.shape[0]
    parts, taken = _parts(rows, depth)
    sums = parts // taken * rows * experts * 4
    read = rows * depth * 2 + experts * depth * 2 + experts * 8 + rows * 4 + sums
    return read, sums + rows * k * 8


OPS: dict[str, Any] = {"moe_route": moe_route}
TRAFFIC: dict[str, Any] = {"moe_route": _traffic}
WHY: dict[str, str] = {
    "moe_route": "f32 sums of parts of K lie in memory between the two launches; of up to 256 rows they stay in L2"
}
