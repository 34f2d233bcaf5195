"""Private layouts in which codes lie as the checkpoint stores them, and scale bytes as matrix products read them.

One scale byte stands for one row and one group of 32 elements, in an order that is the backend's own.  Both directions
keep every bit, so that canonical form can be given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from tandem.accelerator.runtime import Runtime
from tandem.contract.types import CANONICAL, CanonicalWeight, PackedWeight, QFormat, QTensor, WeightKind
from tandem.errors import LayoutError

Tensor = torch.Tensor
GROUP, BLOCK_ROWS = 32, 32


class ScaleOrder(Protocol):
    """Where scale bytes lie; a module with these functions is one."""

    def packed_shape(self, rows: int, groups: int) -> tuple[int, ...]:
        """Shape of the packed scales of [rows, groups]."""

    def pack(self, scale: Tensor) -> Tensor:
        """uint8 [..., rows, groups] -> uint8 [..., *packed_shape]."""

    def unpack(self, packed: Tensor, rows: int, groups: int) -> Tensor:
        """The way back."""


@dataclass(frozen=True)
class Activations:
    """mxfp8 activations: codes uint8 [T, N] row-major, scales in the backend's order; fp4 formats stay canonical.

    Args:
        backend: name, for errors.
        layout: name of the layout.
        scales: order of the scales.
    """

    backend: str
    layout: str
    scales: ScaleOrder

    def empty(self, rows: int, width: int, device: torch.device) -> QTensor:
        """An mxfp8 activation [rows, width] whose bytes hold anything.

        Raises:
            LayoutError: the width is no whole number of groups.
        """
        self._check_groups(width, QFormat.MXFP8)
        data = torch.empty((rows, width), dtype=torch.uint8, device=device)
        scale = torch.empty(self.scales.packed_shape(rows, width // GROUP), dtype=torch.uint8, device=device)
        return QTensor(data, scale, QFormat.MXFP8, (rows, width), self.layout)

    def quantised(self, rows: int, width: int, fmt: QFormat, device: torch.device) -> QTensor:
        """A quantised tensor as the backend's ops exchange it, its bytes anything.

        Raises:
            LayoutError: the width is no whole number of groups.
        """
        if fmt is QFormat.MXFP8:
            return self.empty(rows, width, device)
        self._check_groups(width, fmt)
        data = torch.empty((rows, width // 2), dtype=torch.uint8, device=device)
        scale = torch.empty((rows, width // fmt.group), dtype=torch.uint8, device=device)
        return QTensor(data, scale, fmt, (rows, width))

    def _check_groups(self, width: int, fmt: QFormat) -> None:
        """Refuse rows whose last group would have no scale.

        Raises:
            LayoutError: the width is no whole number of groups.
        """
        if width % fmt.group:
            raise LayoutError(
                "rows cannot be quantised",
                where=f"width {width}, format {fmt.value}, backend '{self.backend}'",
                why=f"a scale belongs to {fmt.group} elements, and the last {width % fmt.group} would have none",
                fix=f"use rows whose width is a multiple of {fmt.group}",
            )

    def check_operand(self, op: str, x: Tensor | QTensor, depth: int) -> None:
        """Refuse rows that a matrix product would read past their end, or as numbers of another type.

        Raises:
            LayoutError: another format, layout, type or width.
        """
        if isinstance(x, QTensor):
            x.require(op, QFormat.MXFP8, self.layout)
        elif x.dtype is not torch.bfloat16:
            raise LayoutError(
                f"'{op}' got rows of a type that it does not read",
                where=f"op '{op}', shape {tuple(x.shape)}",
                why=f"they are {x.dtype}, the op reads bf16 or {QFormat.MXFP8.value}",
                fix="convert the rows to bf16",
            )
        if x.shape[1] != depth:
            raise LayoutError(
                f"'{op}' got rows that do not go with its weight",
                where=f"op '{op}', shape {tuple(x.shape)}",
                why=f"they have {x.shape[1]} elements, the weight sums over {depth}",
                fix="pass rows as wide as the weight's last axis, times its groups where it has groups",
            )

    def to_canonical(self, q: QTensor) -> QTensor:
        """The same values with row-major scales."""
        if q.layout == CANONICAL:
            return q
        if q.layout != self.layout:
            raise self._foreign("a quantised tensor belongs to another backend", q)
        return QTensor(q.data, self.scales.unpack(q.scale, q.shape[0], q.shape[1] // GROUP), q.fmt, q.shape)

    def from_canonical(self, q: QTensor) -> QTensor:
        """mxfp8 gets scales in the backend's order."""
        if q.layout not in (CANONICAL, self.layout):
            raise self._foreign("a quantised tensor is not canonical", q)
        if q.layout != CANONICAL or q.fmt is not QFormat.MXFP8:
            return q
        return QTensor(q.data, self.scales.pack(q.scale), q.fmt, q.shape, self.layout)

    def _foreign(self, what: str, q: QTensor) -> LayoutError:
        return LayoutError(
            what,
            where=f"shape {q.shape}, backend '{self.backend}'",
            why=f"its layout is '{q.layout}'",
            fix="convert with to_canonical() of the backend that made it",
        )


@dataclass(frozen=True, slots=True)
class Scaled:
    """Codes uint8 [..., N, K] (fp4: [..., N, K/2]) and packed scales of each matrix, uint8."""

    codes: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Matrices:
    """Weights: codes as the checkpoint stores them, row-major, and scales in the backend's order.

    Of ``fp8_block32`` each block's scale is repeated for its 32 rows, which makes it an mxfp8 operand (3% more bytes).

    Args:
        backend: name, for errors; layouts are named after it.
        scaled: name of the layout with scales.
        scales: order of the scales.
    """

    backend: str
    scaled: str
    scales: ScaleOrder

    @property
    def plain(self) -> str:
        """Name of the layout without scales."""
        return f"{self.backend}.plain"

    @property
    def host(self) -> str:
        """Name of the layout of what the device reads in place, row by row."""
        return f"{self.backend}.host"

    def pack(self, kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...], runtime: Runtime) -> PackedWeight:
        """Canonical weight -> PackedWeight of this backend; the Engram table goes where `Runtime.resident` puts it."""
        if kind is WeightKind.ENGRAM:
            scale = None if weight.scale is None else runtime.resident(weight.scale)
            held = CanonicalWeight(runtime.resident(weight.data), scale, weight.fmt)
            nbytes = sum(part.numel() * part.element_size() for part in (held.data, scale) if part is not None)
            return PackedWeight(kind, weight.fmt, shape, self.host, held, nbytes)
        device = runtime.device
        data = weight.data.to(device, copy=True).contiguous()
        if weight.scale is None:
            return PackedWeight(kind, weight.fmt, shape, self.plain, data, data.numel() * data.element_size())
        scale = weight.scale.view(torch.uint8)
        if weight.fmt is QFormat.FP8_BLOCK32:
            scale = scale.repeat_interleave(BLOCK_ROWS, -2)[..., : shape[-2], :]
        packed = self.scales.pack(scale).to(device)
        codes = data.view(torch.uint8)
        token = Scaled(codes, packed)
        return PackedWeight(kind, weight.fmt, shape, self.scaled, token, codes.numel() + packed.numel())

    def unpack(self, weight: PackedWeight) -> CanonicalWeight:
        """The exact bits that were packed."""
        if weight.layout == self.host:
            return CanonicalWeight(*weight.token)
        if weight.layout == self.plain:
            return CanonicalWeight(weight.token, None, weight.fmt)
        if weight.layout != self.scaled:
            raise LayoutError(
                "a packed weight belongs to another backend",
                where=repr(weight),
                why=f"layout '{weight.layout}' is not one of backend '{self.backend}'",
                fix="unpack it with its own backend and pack the canonical bits",
            )
        token: Scaled = weight.token
        scale = self.scales.unpack(token.scale, weight.shape[-2], -(-weight.shape[-1] // weight.fmt.group))
        if weight.fmt is QFormat.FP8_BLOCK32:
            scale = scale[..., ::BLOCK_ROWS, :].contiguous()
        return CanonicalWeight(token.codes, scale, weight.fmt)

    def unreadable(self, op: str, weight: PackedWeight) -> LayoutError:
        """The error of a product that got a weight in no layout of its own."""
        return LayoutError(
            f"'{op}' got a packed weight it does not read",
            where=repr(weight),
            why=f"its layout is '{weight.layout}', the op reads '{self.plain}' and '{self.scaled}'",
            fix="pack the canonical bits with pack_weight() of this backend",
        )
