"""What the launchers of hc_mix, hc_enter and hc_step share: see csrc/cpu/hyper.h and mixing.h."""

from __future__ import annotations

import torch

from tandem.backends.cpu import temporary
from tandem.backends.cpu import weights as held
from tandem.backends.cpu.kernels._shapes import require
from tandem.contract.types import HcMix, HcWeights, QFormat
from tandem.errors import LayoutError

Tensor = torch.Tensor
MOST_STREAMS = 8  # kMaxStreams of csrc/cpu/hyper.h
BLOCK, GROUP_ROWS, LANES = 384, 64, 16  # columns and rows that sums are kept of, and lanes of a sum


def projection(op: str, trunk: Tensor, weights: HcWeights) -> tuple[Tensor, Tensor, Tensor]:
    """fn, base and scale.

    Raises:
        LayoutError: they are not those of such a trunk.
    """
    if weights.fn.fmt is not QFormat.F32:
        raise LayoutError(
            f"'{op}' got a projection it does not read",
            where=repr(weights.fn),
            why=f"it is {weights.fn.fmt.value}, the op reads f32",
            fix="pack the matrix as f32",
        )
    _, m, width = trunk.shape
    mixes, fn = m * m + 2 * m, held.stored(op, weights.fn).data
    require(op, fn=(fn, (mixes, m * width)), base=(weights.base, (mixes,)), scale=(weights.scale, (3,)))
    return fn, weights.base, weights.scale


def empty_partial(trunk: Tensor) -> Tensor:
    """Scratch for sums of blocks: of the dot products and of the squares."""
    rows, m, width = trunk.shape
    return temporary.empty((min(rows, GROUP_ROWS), -(-width // BLOCK), m * m + 2 * m + 1, LANES), dtype=torch.float32)


def empty_mix(trunk: Tensor) -> HcMix:
    """Coefficients to be written."""
    rows, m, _ = trunk.shape
    pre, post = (temporary.empty((rows, m), dtype=torch.float32) for _ in range(2))
    return HcMix(pre, post, temporary.empty((rows, m, m), dtype=torch.float32))


def numbers(trunk: Tensor, partial: Tensor, weights: HcWeights) -> tuple[int | float, ...]:
    """What the entries take last."""
    return (*trunk.shape, partial.numel(), weights.norm_eps, weights.hc_eps, weights.iters)
