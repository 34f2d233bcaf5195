"""From checkpoint tensors to a backend's weights.

The only place between the files and the modules: reads what the shard owns, names the canonical format, and
gives the file pages back when a tensor has been packed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from tandem.contract.backend import Backend
from tandem.contract.types import CanonicalWeight, HcWeights, PackedWeight, QFormat, ShardSpec, WeightKind
from tandem.errors import CheckpointError
from tandem.model.config import TextConfig

Tensor = torch.Tensor
HEAD_SINCE = (1, 2)  # contract version


class TensorSource(Protocol):
    """What the loader needs of a checkpoint."""

    def names(self) -> Iterable[str]:
        """Tensor names without the optional ``model.`` prefix."""

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """A tensor in storage dtype, or a range of its rows."""

    def release(self, name: str) -> None:
        """The tensor has been packed; its file pages may go."""


class WeightLoader:
    """Packs tensors for one backend and shard, counting what it holds.

    Args:
        source: an open checkpoint.
        backend: an open backend.
        shard: the part of the model to load.
    """

    def __init__(self, source: TensorSource, backend: Backend, shard: ShardSpec) -> None:
        self._source, self._backend, self.shard = source, backend, shard
        self._names = frozenset(source.names())
        self.packed_bytes = 0

    def host(self, name: str) -> npt.NDArray[np.float32]:
        """A small tensor as f32 on the host."""
        array: npt.NDArray[np.float32] = self._numbers(name).to(torch.float32).numpy()
        self._source.release(name)
        return array

    def vector(self, name: str) -> Tensor:
        """A small tensor as f32 on the device (norm weights, biases, sinks)."""
        array = self.host(name)
        self.packed_bytes += array.nbytes
        return self._backend.from_host(array)

    def linear(self, name: str) -> PackedWeight:
        """``name.weight`` as [N, K]: fp8 with ``name.scale`` where that exists, else bf16."""
        return self._matrix(WeightKind.LINEAR, name)

    def head(self, name: str) -> PackedWeight:
        """As `linear`, of the kind that output heads have; a backend for an older contract knows none."""
        return self._matrix(WeightKind.HEAD if self._backend.contract >= HEAD_SINCE else WeightKind.LINEAR, name)

    def grouped(self, name: str, groups: int) -> PackedWeight:
        """``name.weight`` [G*N, K] fp8 as [G, N, K], each group starting on a scale block."""
        flat = self._canonical(f"{name}.weight", f"{name}.scale", QFormat.FP8_BLOCK32)
        rows, depth = flat.data.shape
        if flat.scale is None or (rows // groups) % 32 or rows % groups:
            raise CheckpointError(
                f"{name}.weight cannot be split into groups",
                where=f"{name}.weight, shape {tuple(flat.data.shape)}",
                why=f"it has no scale, or its rows do not split into {groups} groups of whole 32-row blocks",
                fix="check o_groups and o_lora_rank in config.json",
            )
        data, scale = flat.data.unflatten(0, (groups, -1)), flat.scale.unflatten(0, (groups, -1))
        shape = (groups, rows // groups, depth)
        weight = CanonicalWeight(data, scale, flat.fmt)
        return self._pack(WeightKind.GROUP, weight, shape, f"{name}.weight", f"{name}.scale")

    def experts(self, prefix: str, matrix: str, count: int) -> PackedWeight:
        """``prefix.{e}.matrix`` packed fp4 of the owned experts as [El, N, K]."""
        first, last = self.shard.expert_range(count)
        parts = []
        for e in range(first, last):
            name = f"{prefix}.{e}.{matrix}"
            parts.append(self._canonical(f"{name}.weight", f"{name}.scale", QFormat.MXFP4))
        scales = [p.scale.view(torch.uint8) for p in parts if p.scale is not None]
        weight = CanonicalWeight(
            torch.stack([p.data.view(torch.uint8) for p in parts]), torch.stack(scales), QFormat.MXFP4
        )
        # The copy is packed from here on: with the file's pages and what is packed there would be three of them.
        self._release(f"{prefix}.{e}.{matrix}.{part}" for e in range(first, last) for part in ("weight", "scale"))
        shape = (*weight.data.shape[:2], 2 * weight.data.shape[2])
        return self._pack(WeightKind.EXPERTS, weight, shape)

    def embedding(self, name: str) -> PackedWeight:
        """A bf16 table whose rows are gathered."""
        data = self._numbers(name)
        return self._pack(WeightKind.EMBED, CanonicalWeight(data, None, QFormat.BF16), tuple(data.shape), name)

    def bf16(self, kind: WeightKind, name: str, shape: tuple[int, ...]) -> PackedWeight:
        """A weight that the file must hold as bf16, of this shape.

        Raises:
            CheckpointError: its dtype or shape is another.
        """
        data = self._bf16(name, shape)
        return self._pack(kind, CanonicalWeight(data, None, QFormat.BF16), shape, name)

    def bf16_row(self, name: str, width: int) -> Tensor:
        """The one row of a weight [1, width] that the file must hold as bf16, as f32 [width] on the device.

        Raises:
            CheckpointError: its dtype or shape is another.
        """
        array: npt.NDArray[np.float32] = self._bf16(name, (1, width))[0].to(torch.float32).numpy()
        self._source.release(name)
        self.packed_bytes += array.nbytes
        return self._backend.from_host(array)

    def engram(self, name: str, layer: int, rows: int) -> tuple[PackedWeight, int]:
        """The owned rows of an Engram table, and the first of them."""
        first, last = self.shard.engram_range(layer, rows)
        part = slice(first, last)
        weight = CanonicalWeight(
            self._source.read(f"{name}.weight", part), self._source.read(f"{name}.scale", part), QFormat.MXFP8
        )
        return self._pack(WeightKind.ENGRAM, weight, tuple(weight.data.shape)), first

    def hyper(self, prefix: str, text: TextConfig) -> HcWeights:
        """Hyper-connection parameters ``{prefix}_fn``, ``_base`` and ``_scale``."""
        data = self._numbers(f"{prefix}_fn")
        fn = self._pack(
            WeightKind.HC, CanonicalWeight(data, None, QFormat.F32), tuple(data.shape), f"{prefix}_fn"
        )
        base, scale = self.vector(f"{prefix}_base"), self.vector(f"{prefix}_scale")
        return HcWeights(fn, base, scale, text.rms_norm_eps, text.hc_eps, text.hc_sinkhorn_iters)

    def _matrix(self, kind: WeightKind, name: str) -> PackedWeight:
        weight = self._canonical(f"{name}.weight", f"{name}.scale", QFormat.FP8_BLOCK32)
        return self._pack(kind, weight, tuple(weight.data.shape), f"{name}.weight", f"{name}.scale")

    def _canonical(self, name: str, scale_name: str, fmt: QFormat) -> CanonicalWeight:
        data = self._source.read(name)
        if scale_name in self._names:
            return CanonicalWeight(data.view(torch.uint8), self._source.read(scale_name).view(torch.uint8), fmt)
        if data.dtype is not torch.bfloat16:
            raise CheckpointError(
                f"{name} is quantised but has no scale",
                where=name,
                why=f"its dtype is {data.dtype} and there is no tensor {scale_name}",
                fix="convert the checkpoint again; quantised weights need their scales",
            )
        return CanonicalWeight(self._numbers(name), None, QFormat.BF16)

    def _bf16(self, name: str, shape: tuple[int, ...]) -> Tensor:
        data = self._numbers(name)
        if data.dtype is not torch.bfloat16 or tuple(data.shape) != shape:
            raise CheckpointError(
                "a weight has another dtype or shape than it is read with",
                where=f"tensor '{name}'",
                why=f"it is {data.dtype} {list(data.shape)}; expected torch.bfloat16 {list(shape)}",
                fix="use a checkpoint that matches its config.json",
            )
        return data

    def _numbers(self, name: str) -> Tensor:
        """A tensor that is not quantised.  Top-k and routing drop NaN, so one would never reach the logits."""
        data = self._source.read(name)
        low, high = torch.aminmax(data)
        if not (bool(torch.isfinite(low)) and bool(torch.isfinite(high))):
            raise CheckpointError(
                "a weight is damaged",
                where=f"tensor '{name}'",
                why="it holds NaN or infinity",
                fix="download or copy the checkpoint again",
            )
        return data

    def _pack(
        self, kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...], *names: str
    ) -> PackedWeight:
        packed = self._backend.pack_weight(kind, weight, shape)
        self.packed_bytes += packed.nbytes
        self._release(names)
        return packed

    def _release(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._names:
                self._source.release(name)
