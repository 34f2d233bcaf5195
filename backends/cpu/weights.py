"""How the CPU backend holds weights: the stored codes and scales, which the kernels read as they are.

Matrices are copied into memory of their own, the output head with a screen beside it (`screens.py`).  Tables of which a
step gathers single rows, Engram's and the embedding, stay mapped from the file: the system keeps what is read of them.
"""

from __future__ import annotations

import dataclasses

import torch

from tandem.backends.cpu import screens
from tandem.backends.cpu.memory import Arena
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, WeightKind
from tandem.errors import CheckpointError, LayoutError

Tensor = torch.Tensor
LAYOUT, MAPPED = "cpu.stored", "cpu.mapped"
GATHERED = (WeightKind.ENGRAM, WeightKind.EMBED)
MOST_SCALE = 227  # 2^100


def pack(arena: Arena, kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...]) -> PackedWeight:
    """Canonical weight -> PackedWeight of this backend, copied into the arena unless its rows are gathered.

    Raises:
        CheckpointError: a scale is NaN or above 2^100.
    """
    data, scale = weight.data, weight.scale
    if scale is not None:
        scale = scale.view(torch.uint8)
    if kind in GATHERED:
        data = data.contiguous()
    else:
        data = arena.copy(data)
        scale = None if scale is None else arena.copy(scale)
    if kind is not WeightKind.ENGRAM:
        _check_scales(scale, weight.fmt, shape)
    if weight.fmt not in (QFormat.BF16, QFormat.F32):
        data = data.view(torch.uint8)
    nbytes = data.numel() * data.element_size() + (0 if scale is None else scale.numel())
    layout = MAPPED if kind in GATHERED else LAYOUT
    return PackedWeight(kind, weight.fmt, shape, layout, CanonicalWeight(data, scale, weight.fmt), nbytes)


def stored(op: str, weight: PackedWeight, layout: str = LAYOUT) -> CanonicalWeight:
    """The codes and scales that an op reads, contiguous.

    Raises:
        LayoutError: another backend packed the weight, or it is held in another way.
    """
    if weight.layout != layout:
        raise LayoutError(
            f"'{op}' got a packed weight it does not read",
            where=repr(weight),
            why=f"its layout is '{weight.layout}', the op reads '{layout}'",
            fix="pack the canonical bits with pack_weight() of this backend",
        )
    held: CanonicalWeight | screens.Head = weight.token
    return held.stored if isinstance(held, screens.Head) else held


def screened(arena: Arena, head: PackedWeight) -> PackedWeight:
    """A bf16 output head with its screen; any other weight as it is."""
    fits = head.kind is WeightKind.HEAD and head.fmt is QFormat.BF16 and 0 < head.shape[1] <= screens.MOST_DEPTH
    if not fits or not head.shape[0]:
        return head
    made = screens.make(arena, head.token.data)
    return dataclasses.replace(head, token=screens.Head(head.token, made), nbytes=head.nbytes + made.nbytes)


def screen(head: PackedWeight) -> screens.Screen | None:
    """The screen of an output head that has one."""
    held: CanonicalWeight | screens.Head = head.token
    return held.screen if isinstance(held, screens.Head) else None


def unpack(weight: PackedWeight) -> CanonicalWeight:
    """The stored bits."""
    return stored("unpack_weight", weight, MAPPED if weight.layout == MAPPED else LAYOUT)


def _check_scales(scale: Tensor | None, fmt: QFormat, shape: tuple[int, ...]) -> None:
    """Products are exact for scales up to 2^100; those below 2^-100 count as zero, see csrc/cpu/operands.h."""
    if scale is None or fmt is QFormat.NVFP4 or not scale.numel() or int(scale.max()) <= MOST_SCALE:
        return
    place = int((scale.flatten() > MOST_SCALE).nonzero()[0])
    raise CheckpointError(
        "a weight has a scale that is too large",
        where=f"weight of shape {shape}, scale {place}",
        why=f"its byte is {int(scale.flatten()[place])}: above 2^100, or NaN",
        fix="check the checkpoint's scales",
    )
