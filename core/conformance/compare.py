"""What the tolerance classes of docs/CONTRACT.md mean for arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.conformance.formats import decode, round_bf16, ulp
from tandem.contract.types import QTensor

Array = npt.NDArray[Any]


def host(tensor: torch.Tensor) -> Array:
    """A tensor in host memory as float64, or as int64 where it holds integers."""
    wide = torch.float64 if tensor.dtype.is_floating_point else torch.int64
    values: Array = tensor.to(wide).numpy()
    return values


class Mismatch(Exception):
    """An output is outside its class; the text says which, where and by how much."""


@dataclass(frozen=True)
class Exact:
    """Class X: the same numbers, zeros of the same sign (and NaN where NaN is wanted)."""

    value: Array

    def check(self, got: torch.Tensor, label: str) -> None:
        have = host(got)
        same(have, self.value, label)
        if have.dtype.kind == "f":
            same(np.signbit(have) & (have == 0), np.signbit(self.value) & (have == 0), f"{label}: zeros below zero")


@dataclass(frozen=True)
class Selected:
    """Class S: these ids in this order, or others whose scores are within `slack` of theirs; none twice."""

    ids: Array  # [T, k]
    scores: Array  # [T, candidates], float64
    slack: Array  # [T]

    def check(self, got: torch.Tensor, label: str) -> None:
        for t, (mine, best) in enumerate(zip(host(got).tolist(), self.ids.tolist(), strict=True)):
            if len(set(mine)) != len(best) or not set(mine) <= set(range(self.scores.shape[1])):
                raise Mismatch(f"{label}: row {t} has an id twice or one that does not exist: {mine}")
            apart = np.abs(self.scores[t][mine] - self.scores[t][best])
            if (apart > self.slack[t]).any():
                raise Mismatch(f"{label}: row {t} got {mine}, want {best}; no tie within {self.slack[t]:.3g}")


@dataclass(frozen=True)
class Ulps:
    """Class U(n): within n ulp of the output dtype of the float64 value rounded once; `rows` limits what counts."""

    value: Array
    n: int
    rows: Array | None = None

    def check(self, got: torch.Tensor, label: str) -> None:
        dtype = "bf16" if got.dtype is torch.bfloat16 else "f32"
        have, want = host(got), np.asarray(self.value)
        if self.rows is not None:
            have, want = have[self.rows], want[self.rows]
        rounded = round_bf16(want) if dtype == "bf16" else want.astype(np.float32).astype(np.float64)
        _within(have, rounded, self.n * ulp(rounded, dtype), label)


@dataclass(frozen=True)
class Accumulated:
    """Class A: within 4 floors of the row and `n` ulp of the row maximum, here of the output's own dtype."""

    value: Array
    floor: Array  # per row: what legal orders of summation in f32 differ by
    n: int = 1

    def check(self, got: torch.Tensor, label: str) -> None:
        dtype = "bf16" if got.dtype is torch.bfloat16 else "f32"
        have, want = host(got), self.value
        peak = np.max(np.where(np.isfinite(want), np.abs(want), 0.0), axis=-1, keepdims=True, initial=0.0)
        _within(have, want, 4 * self.floor + self.n * ulp(peak, dtype), label)


@dataclass(frozen=True)
class Quantised:
    """Class Q: scales within a step on 1e-4 of the groups, codes within one on 1e-3 of the elements."""

    codes: Array
    scales: Array
    fmt: str

    def check(self, got: QTensor | tuple[Array, Array], label: str) -> None:
        codes, scales = (got.data.numpy(), got.scale.numpy()) if isinstance(got, QTensor) else got
        lost = np.isnan(decode(self.codes, self.scales, self.fmt))
        same(np.isnan(decode(codes, scales, self.fmt)), lost, f"{label}: NaN")
        step = np.abs(scales.astype(int) - self.scales)
        if step.max(initial=0) > 1:
            raise Mismatch(f"{label}: a scale is {step.max()} steps off")
        few(step > 0, 1e-4, f"{label}: scales")
        off = np.abs(self._ranks(codes) - self._ranks(self.codes))
        same_scale = np.repeat(step == 0, off.shape[-1] // step.shape[-1], axis=-1) & ~lost
        if off[same_scale].max(initial=0) > 1:
            raise Mismatch(f"{label}: a code is {off[same_scale].max()} steps off")
        few(off[same_scale] > 0, 1e-3, f"{label}: codes")

    def _ranks(self, codes: Array) -> Array:
        """Codes as integers in the order of their values."""
        if self.fmt == "mxfp8":
            size, negative = codes & 0x7F, codes >> 7
        else:
            wide = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], -1)
            size, negative = wide & 7, wide >> 3
        return np.where(negative == 1, -size.astype(int), size.astype(int))


@dataclass(frozen=True)
class Entries:
    """Bytes of a cache: class Q in the entries that were written, the same bytes in all others."""

    image: Array  # uint8 [entries, bytes], codes then scales
    written: Array  # their indices
    split: int  # bytes of codes
    fmt: str

    def check(self, got: torch.Tensor, label: str) -> None:
        have = got.numpy()
        wanted = Quantised(self.image[self.written, : self.split], self.image[self.written, self.split :], self.fmt)
        wanted.check((have[self.written, : self.split], have[self.written, self.split :]), f"{label}, written entries")
        kept = np.delete(np.arange(len(self.image)), self.written)
        same(have[kept], self.image[kept], f"{label}, other entries")


def few(different: Array, share: float, label: str) -> None:
    """At most this share differs; of a small array, one element."""
    allowed = max(1, int(share * different.size))
    count = int(different.sum())
    if count > allowed:
        raise Mismatch(f"{label}: {count} of {different.size} differ, {allowed} allowed")


def same(have: Array, want: Array, label: str) -> None:
    """Equal shapes and numbers; NaN equals NaN."""
    if have.shape != want.shape:
        raise Mismatch(f"{label}: shape {have.shape}, want {want.shape}")
    different = ~((have == want) | (np.not_equal(have, have) & np.not_equal(want, want)))
    if different.any():
        place = tuple(int(i) for i in np.argwhere(different)[0])
        found = f"at {place} got {have[place]!r}, want {want[place]!r}"
        raise Mismatch(f"{label}: {int(different.sum())} of {different.size} differ; {found}")


def _within(have: Array, want: Array, limit: Array, label: str) -> None:
    same(np.isnan(have), np.isnan(want), f"{label}: NaN")
    with np.errstate(invalid="ignore"):
        close = (np.abs(have - want) <= limit) | (have == want) | np.isnan(want)
    if not close.all():
        place = tuple(int(i) for i in np.argwhere(~close)[0])
        raise Mismatch(
            f"{label}: {int((~close).sum())} of {close.size} elements outside the class; "
            f"at {place} got {have[place]!r}, want {want[place]!r}"
        )
