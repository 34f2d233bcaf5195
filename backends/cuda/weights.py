"""How weights are laid out for SM100's matrix products.

Codes stay as the checkpoint stores them, row-major.  Scales go into the layout of `tandem.backends.cuda.scales`, which
has one byte per row and 32 elements of K: of ``fp8_block32`` each block's byte is repeated for its 32 rows, which makes
it an mxfp8 operand (3% more bytes).  The bits of the checkpoint can be given back exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.backends.cuda import scales
from tandem.backends.cuda.runtime import Runtime
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, WeightKind
from tandem.errors import LayoutError

Tensor = torch.Tensor
PLAIN, SCALED, HOST = "cuda.plain", "cuda.sf128x4", "cuda.host"
BLOCK_ROWS = 32


@dataclass(frozen=True, slots=True)
class Scaled:
    """Codes uint8 [..., N, K] (fp4: [..., N, K/2]) and packed scales uint8 [..., bytes] of each matrix."""

    codes: Tensor
    scale: Tensor


def pack(kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...], runtime: Runtime) -> PackedWeight:
    """Canonical weight -> PackedWeight of this backend.  The Engram table stays on the host, pinned for the device."""
    if kind is WeightKind.ENGRAM:
        scale = None if weight.scale is None else runtime.resident(weight.scale)
        held = CanonicalWeight(runtime.resident(weight.data), scale, weight.fmt)
        nbytes = sum(part.numel() * part.element_size() for part in (held.data, scale) if part is not None)
        return PackedWeight(kind, weight.fmt, shape, HOST, held, nbytes)
    device = runtime.device
    data = weight.data.to(device, copy=True).contiguous()
    if weight.scale is None:
        return PackedWeight(kind, weight.fmt, shape, PLAIN, data, data.numel() * data.element_size())
    scale = weight.scale.view(torch.uint8)
    if weight.fmt is QFormat.FP8_BLOCK32:
        scale = scale.repeat_interleave(BLOCK_ROWS, -2)[..., : shape[-2], :]
    packed = scales.pack(scale).to(device)
    codes = data.view(torch.uint8)
    return PackedWeight(kind, weight.fmt, shape, SCALED, Scaled(codes, packed), codes.numel() + packed.numel())


def unreadable(op: str, weight: PackedWeight) -> LayoutError:
    """The error of a product that got a weight in no layout of its own."""
    return LayoutError(
        f"'{op}' got a packed weight it does not read",
        where=repr(weight),
        why=f"its layout is '{weight.layout}', the op reads '{PLAIN}' and '{SCALED}'",
        fix="pack the canonical bits with pack_weight() of this backend",
    )


def unpack(weight: PackedWeight) -> CanonicalWeight:
    """The exact bits that were packed."""
    if weight.layout == HOST:
        return CanonicalWeight(*weight.token)
    if weight.layout == PLAIN:
        return CanonicalWeight(weight.token, None, weight.fmt)
    if weight.layout != SCALED:
        raise LayoutError(
            "a packed weight belongs to another backend",
            where=repr(weight),
            why=f"layout '{weight.layout}' is not one of backend 'cuda'",
            fix="unpack it with its own backend and pack the canonical bits",
        )
    token: Scaled = weight.token
    scale = scales.unpack(token.scale, weight.shape[-2], -(-weight.shape[-1] // weight.fmt.group))
    if weight.fmt is QFormat.FP8_BLOCK32:
        scale = scale[..., ::BLOCK_ROWS, :].contiguous()
    return CanonicalWeight(token.codes, scale, weight.fmt)
