"""The matrix products of a device of compute capability 10.0, by the library's kernels."""

from __future__ import annotations

import torch

from tandem.backends.cuda import activations, native, weights
from tandem.backends.cuda.launch import device_of
from tandem.backends.cuda.native import CudaLibrary
from tandem.contract.types import PackedWeight, QFormat, QTensor

Tensor = torch.Tensor
ALIGNMENT = 16
_FORMATS = {
    QFormat.BF16: native.BF16,
    QFormat.F32: native.F32,
    QFormat.MXFP8: native.MXFP8,
    QFormat.FP8_BLOCK32: native.MXFP8,  # its scales are repeated for each row when it is packed
    QFormat.MXFP4: native.MXFP4,
}
_OUT = {torch.bfloat16: native.BF16, torch.float32: native.F32}


class DeviceProducts:
    """The three ops on one library."""

    def __init__(self, library: CudaLibrary) -> None:
        self._library = library

    def linear(self, x: Tensor | QTensor, weight: PackedWeight, out_dtype: torch.dtype) -> Tensor:
        """See core/ops/linear.py."""
        values, x_scale, x_format = _activation("linear", x, weight.shape[1])
        w, w_scale = _weight("linear", weight)
        (rows, depth), width = x.shape, weight.shape[0]
        formats = x_format, _FORMATS[weight.fmt], _OUT[out_dtype]
        y = torch.empty((rows, width), dtype=out_dtype, device=values.device)
        if rows:
            size = self._library.size("linear", *formats, rows, width, depth)
            workspace = torch.empty(size, dtype=torch.uint8, device=values.device)
            self._run(
                values, "linear", values.data_ptr(), x_scale, formats[0], w.data_ptr(), w_scale, formats[1],
                rows, width, depth, y.data_ptr(), formats[2], workspace.data_ptr(), size,
            )  # fmt: skip
        return y

    def group_linear(self, x: QTensor, weight: PackedWeight) -> Tensor:
        """See core/ops/group_linear.py."""
        values, x_scale, _ = _activation("group_linear", x, weight.shape[0] * weight.shape[2])
        w, w_scale = _weight("group_linear", weight)
        rows, (groups, width, depth) = x.shape[0], weight.shape
        y = torch.empty((rows, groups * width), dtype=torch.bfloat16, device=values.device)
        if rows:
            self._run(
                values, "group_linear", values.data_ptr(), x_scale, w.data_ptr(), w_scale,
                rows, groups, width, depth, y.data_ptr(),
            )  # fmt: skip
        return y

    def grouped_linear(self, x: QTensor, weight: PackedWeight, ends: Tensor) -> Tensor:
        """See core/ops/grouped_linear.py."""
        values, x_scale, _ = _activation("grouped_linear", x, weight.shape[2])
        w, w_scale = _weight("grouped_linear", weight)
        rows, (experts, width, depth), w_format = x.shape[0], weight.shape, _FORMATS[weight.fmt]
        y = torch.empty((rows, width), dtype=torch.bfloat16, device=values.device)
        if rows:
            size = self._library.size("grouped_linear", w_format, rows, experts, width, depth)
            workspace = torch.empty(size, dtype=torch.uint8, device=values.device)
            self._run(
                values, "grouped_linear", values.data_ptr(), x_scale, w.data_ptr(), w_scale, w_format,
                ends.data_ptr(), rows, experts, width, depth, y.data_ptr(), workspace.data_ptr(), size,
            )  # fmt: skip
        return y

    def _run(self, x: Tensor, entry: str, *arguments: int) -> None:
        """Queue an entry on the current stream of the device that x is on."""
        with device_of(x):
            self._library.run(entry, _stream(x), *arguments)


def _activation(op: str, x: Tensor | QTensor, depth: int) -> tuple[Tensor, int, int]:
    """Codes or values where a kernel can read them, the address of their scales, and their format."""
    activations.check_operand(op, x, depth)
    if isinstance(x, QTensor):
        return x.data, x.scale.data_ptr(), native.MXFP8
    if x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0:
        return x, 0, native.BF16
    return x.clone(memory_format=torch.contiguous_format), 0, native.BF16


def _weight(op: str, weight: PackedWeight) -> tuple[Tensor, int]:
    """Codes or values of a packed weight and the address of its scales."""
    if weight.layout == weights.PLAIN:
        return weight.token, 0
    if weight.layout == weights.SCALED:
        token: weights.Scaled = weight.token
        return token.codes, token.scale.data_ptr()
    raise weights.unreadable(op, weight)


def _stream(x: Tensor) -> int:
    return int(torch.cuda.current_stream(x.device).cuda_stream)
