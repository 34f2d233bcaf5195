"""How the CUDA backend lays out weights and activations, by shape alone."""

from __future__ import annotations

import torch

from tandem.backends.cuda import activations, scales, weights
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, QTensor, WeightKind


def _bytes(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.uint8, device="meta")


class CudaLayouts:
    """See `tools.kernels.workloads.Layouts`."""

    def weight(self, kind: WeightKind, fmt: QFormat, shape: tuple[int, ...]) -> PackedWeight:
        if fmt.group == 0:
            dtype = torch.bfloat16 if fmt is QFormat.BF16 else torch.float32
            data = torch.empty(shape, dtype=dtype, device="meta")
            return PackedWeight(kind, fmt, shape, weights.PLAIN, data, data.numel() * data.element_size())
        *lead, rows, depth = shape
        codes = _bytes(*lead, rows, depth * fmt.bits // 8)
        if kind is WeightKind.ENGRAM:
            stored = CanonicalWeight(codes, _bytes(rows, depth // fmt.group), fmt)
            return PackedWeight(kind, fmt, shape, weights.HOST, stored, codes.numel())
        scale = _bytes(*lead, scales.packed_size(rows, depth // fmt.group))
        return PackedWeight(kind, fmt, shape, weights.SCALED, weights.Scaled(codes, scale), codes.numel())

    def quantised(self, fmt: QFormat, rows: int, width: int) -> QTensor:
        if fmt is QFormat.MXFP8:
            return activations.empty(rows, width, torch.device("meta"))
        return QTensor(_bytes(rows, width // 2), _bytes(rows, width // fmt.group), fmt, (rows, width))
