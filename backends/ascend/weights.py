"""How weights are laid out for the cube's matrix products.

``ascend.plain`` (bf16, f32): row-major.  ``ascend.pairs`` (fp8_block32): codes row-major, scales as `scales.py` says,
one byte a row and 32 elements, those of a 32 x 32 block repeated for its rows.  ND2NZ copies bring codes to L1 in
fractals of 16 rows x 32 bytes; DN2NZ copies over pairs of scale bytes, as 16-bit elements, bring scales in fractals of
16 rows x 2, which is why their number is even.  ``ascend.groups`` (mxfp4): see `layouts.py`.

The Engram table stays on the host, mapped for the device.
"""

from __future__ import annotations

import torch

from tandem.accelerator.layouts import Matrices, Scaled
from tandem.accelerator.runtime import Runtime
from tandem.backends.ascend import layouts, scales
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, WeightKind
from tandem.errors import LayoutError

_OWN = Matrices("ascend", "ascend.pairs", scales)
PLAIN, SCALED, HOST, GROUPS = _OWN.plain, _OWN.scaled, _OWN.host, "ascend.groups"
_PRODUCTS = (WeightKind.LINEAR, WeightKind.HEAD, WeightKind.GROUP, WeightKind.EXPERTS)

__all__ = ["GROUPS", "HOST", "PLAIN", "SCALED", "Scaled", "pack", "unpack", "unreadable"]


def pack(kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...], runtime: Runtime) -> PackedWeight:
    """Canonical weight -> PackedWeight of this backend."""
    if weight.fmt is not QFormat.MXFP4 or weight.scale is None or kind not in _PRODUCTS:
        return _OWN.pack(kind, weight, shape, runtime)
    packed = layouts.pack(weight.data.view(torch.uint8), weight.scale.view(torch.uint8))
    codes, scale = (part.to(runtime.device) for part in packed)
    return PackedWeight(kind, weight.fmt, shape, GROUPS, Scaled(codes, scale), codes.numel() + scale.numel())


def unpack(weight: PackedWeight) -> CanonicalWeight:
    """The exact bits that were packed."""
    if weight.layout != GROUPS:
        return _OWN.unpack(weight)
    token: Scaled = weight.token
    return CanonicalWeight(*layouts.unpack(token.codes, token.scale, weight.shape[-1]), weight.fmt)


def unreadable(op: str, weight: PackedWeight) -> LayoutError:
    """The error of a product that got a weight in no layout of its own."""
    return _OWN.unreadable(op, weight)
