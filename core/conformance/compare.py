"""What the tolerance classes of docs/CONTRACT.md mean for arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.conformance.formats import GROUP, UE8M0, decode, encode, round_bf16, ulp
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
class Measured:
    """How far an output is from its derivation.

    Args:
        unit: ``ulp`` of the output dtype (class U), ``floor`` (class A: a quarter of what the class allows the row,
            which is its noise floor where that is larger than the last place), ``differ`` (X: elements, 0 allowed;
            Q: share of the codes; P: rows).
        worst: largest error of all rows.
        mean: mean over the rows of the row's largest error.
        row: the row of the worst error.
        limit: what the class allows, in the same unit.
    """

    unit: str
    worst: float
    mean: float
    row: int
    limit: float


NONE_DIFFER = Measured("differ", 0.0, 0.0, 0, 0.0)


@dataclass(frozen=True)
class Exact:
    """Class X: the same numbers, zeros of the same sign (and NaN where NaN is wanted)."""

    value: Array

    def check(self, got: torch.Tensor, label: str) -> Measured:
        """Measure; raises Mismatch outside the class."""
        have = host(got)
        same(have, self.value, label)
        if have.dtype.kind == "f":
            same(np.signbit(have) & (have == 0), np.signbit(self.value) & (have == 0), f"{label}: zeros below zero")
        return NONE_DIFFER


@dataclass(frozen=True)
class Selected:
    """Class S: these ids in this order, or others whose scores are within `slack` of theirs; none twice."""

    ids: Array  # [T, k]
    scores: Array  # [T, candidates], float64
    slack: Array  # [T]

    def check(self, got: torch.Tensor, label: str) -> Measured:
        """Measure; raises Mismatch outside the class."""
        same_shape(host(got), self.ids, label)
        for t, (mine, best) in enumerate(zip(host(got).tolist(), self.ids.tolist(), strict=True)):
            if len(set(mine)) != len(best) or not set(mine) <= set(range(self.scores.shape[1])):
                raise Mismatch(f"{label}: row {t} has an id twice or one that does not exist: {mine}")
            apart = np.abs(self.scores[t][mine] - self.scores[t][best])
            if (apart > self.slack[t]).any():
                raise Mismatch(f"{label}: row {t} got {mine}, want {best}; no tie within {self.slack[t]:.3g}")
        return NONE_DIFFER


@dataclass(frozen=True)
class Ulps:
    """Class U(n): within n ulp of the output dtype of the float64 value rounded once.

    Args:
        rows: those that count, bool; None for all.
        floor: what f32 may lose in the terms of a short sum, in units of the output; it is added to the n ulp, for
            where the terms cancel nothing is left of the value that an ulp could be measured by.
    """

    value: Array
    n: int
    rows: Array | None = None
    floor: Array | None = None

    def unit(self, rounded: Array, dtype: str) -> Array:
        """Size of one unit of the class, of which n are allowed, by element."""
        step = ulp(rounded, dtype)
        return step if self.floor is None else step + np.nan_to_num(self.floor, posinf=0.0) / self.n

    def check(self, got: torch.Tensor, label: str) -> Measured:
        """Measure; raises Mismatch outside the class."""
        dtype = "bf16" if got.dtype is torch.bfloat16 else "f32"
        have, want = host(got), np.asarray(self.value)
        rounded = round_bf16(want) if dtype == "bf16" else want.astype(np.float32).astype(np.float64)
        unit, counted = self.unit(rounded, dtype), None
        if self.rows is not None:
            have, rounded, unit = have[self.rows], rounded[self.rows], unit[self.rows]
            counted = np.flatnonzero(self.rows)
        return _within(have, rounded, unit, self.n, "ulp", label, counted)


@dataclass(frozen=True)
class Accumulated:
    """Class A: within 4 floors of the row and `n` ulp of the row maximum, here of the output's own dtype."""

    value: Array
    floor: Array  # per row: what legal orders of summation in f32 differ by
    n: int = 1

    def unit(self, dtype: str) -> Array:
        """By row, a quarter of what the class allows."""
        size = np.where(np.isfinite(self.value), np.abs(self.value), 0.0)
        unit: Array = self.floor + self.n * ulp(np.max(size, axis=-1, keepdims=True, initial=0.0), dtype) / 4
        return unit

    def check(self, got: torch.Tensor, label: str) -> Measured:
        """Measure; raises Mismatch outside the class."""
        unit = self.unit("bf16" if got.dtype is torch.bfloat16 else "f32")
        return _within(host(got), self.value, np.broadcast_to(unit, self.value.shape), 4, "floor", label)


@dataclass(frozen=True)
class AccumulatedCodes:
    """Class A of mxfp8 codes: they round a value within the class, and scales are of groups within it.

    Args:
        value: before quantisation, f64 [T, N].
        unit: by element, a quarter of what the class allows before quantisation, f64 [T, N].
    """

    value: Array
    unit: Array
    n: int = 4

    def scales(self) -> tuple[Array, Array]:
        """Smallest and largest legal scale of each group, uint8 [T, N / 32]: no group is surer than its values."""
        size, room = np.abs(self.value), self.n * self.unit
        return encode(np.maximum(size - room, 0.0), "mxfp8")[1], encode(size + room, "mxfp8")[1]

    def wanted(self) -> Array:
        """The value, NaN in groups that hold one."""
        bad = np.isnan(self.value.reshape(*self.value.shape[:-1], -1, GROUP["mxfp8"])).any(axis=-1)
        return np.where(np.repeat(bad, GROUP["mxfp8"], axis=-1), np.nan, self.value)

    def nearest(self, codes: Array, scales: Array) -> Array:
        """What is nearest to the value of all that rounds to these codes; infinity where the scale is not legal."""
        low, high = self.scales()
        decoded, group = decode(codes, scales, "mxfp8"), codes.shape[-1] // scales.shape[-1]
        half = np.ldexp(np.repeat(UE8M0[scales], group, axis=-1), np.maximum(codes.astype(np.int64) >> 3 & 15, 1) - 11)
        with np.errstate(invalid="ignore"):
            near = np.clip(self.value, decoded - half, decoded + half)
        return np.where(np.repeat((scales < low) | (scales > high), group, axis=-1), np.inf, near)

    def check(self, got: QTensor, label: str) -> Measured:
        """Measure; raises Mismatch outside the class."""
        codes, scales = got.data.numpy(), got.scale.numpy()
        low, high = self.scales()
        same_shape(codes, self.value, f"{label}: codes")
        same_shape(scales, low, f"{label}: scales")
        wrong = np.argwhere((scales < low) | (scales > high))
        if len(wrong):
            place = tuple(int(i) for i in wrong[0])
            raise Mismatch(
                f"{label}: row {place[0]}, at {place}: scale {scales[place]}, want {low[place]} to {high[place]}; "
                f"{len(wrong)} of {scales.size} scales outside"
            )
        return _within(self.nearest(codes, scales), self.wanted(), self.unit, self.n, "floor", label)


@dataclass(frozen=True)
class Quantised:
    """Class Q: scales within a step on 1e-4 of the groups, codes within one on 1e-3 of the elements."""

    codes: Array
    scales: Array
    fmt: str

    def check(self, got: QTensor | tuple[Array, Array], label: str) -> Measured:
        """Measure; raises Mismatch outside the class."""
        codes, scales = (got.data.numpy(), got.scale.numpy()) if isinstance(got, QTensor) else got
        same_shape(codes, self.codes, f"{label}: codes")
        same_shape(scales, self.scales, f"{label}: scales")
        lost = np.isnan(decode(self.codes, self.scales, self.fmt))
        same(np.isnan(decode(codes, scales, self.fmt)), lost, f"{label}: NaN")
        step = np.abs(scales.astype(int) - self.scales)
        _no_more_than_one(step, f"{label}: a scale")
        few(step > 0, 1e-4, f"{label}: scales")
        off = np.abs(self._ranks(codes) - self._ranks(self.codes))
        off = np.where(np.repeat(step == 0, off.shape[-1] // step.shape[-1], axis=-1) & ~lost, off, 0)
        _no_more_than_one(off, f"{label}: a code")
        few(off > 0, 1e-3, f"{label}: codes")
        rows = (off > 0).reshape(len(off), -1).mean(axis=1) if off.size else np.zeros(1)
        limit = max(1e-3, 1 / max(off.size, 1))
        return Measured("differ", float((off > 0).mean()) if off.size else 0.0, float(rows.mean()), _first(rows), limit)

    def _ranks(self, codes: Array) -> Array:
        """Codes as integers in the order of their values."""
        if self.fmt == "mxfp8":
            size, negative = codes & 0x7F, codes >> 7
        else:
            wide = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], 2 * codes.shape[-1])
            size, negative = wide & 7, wide >> 3
        return np.where(negative == 1, -size.astype(int), size.astype(int))


@dataclass(frozen=True)
class Entries:
    """Bytes of a cache: class Q in the entries that were written, the same bytes in all others."""

    image: Array  # uint8 [entries, bytes], codes then scales
    written: Array  # their indices
    split: int  # bytes of codes
    fmt: str

    def check(self, got: torch.Tensor, label: str) -> Measured:
        """Measure; raises Mismatch outside the class."""
        have = got.numpy()
        same_shape(have, self.image, label)
        wanted = Quantised(self.image[self.written, : self.split], self.image[self.written, self.split :], self.fmt)
        codes, scales = have[self.written, : self.split], have[self.written, self.split :]
        measured = wanted.check((codes, scales), f"{label}, written entries")
        kept = np.delete(np.arange(len(self.image)), self.written)
        same(have[kept], self.image[kept], f"{label}, other entries")
        return measured


@dataclass(frozen=True)
class Drawn:
    """Class P: per row the token that is drawn, and those that may be: others only next to an edge of the sums."""

    value: Array  # [T]
    legal: tuple[frozenset[int], ...]

    def check(self, got: torch.Tensor, label: str) -> Measured:
        """Measure; raises Mismatch outside the class."""
        tokens = host(got)
        if tokens.shape != (len(self.legal),):
            raise Mismatch(f"{label}: shape {tokens.shape}, want {(len(self.legal),)}")
        for row, (token, legal) in enumerate(zip(tokens.tolist(), self.legal, strict=True)):
            if token not in legal:
                raise Mismatch(f"{label}: row {row}: got token {token}, want {' or '.join(map(str, sorted(legal)))}")
        return NONE_DIFFER


def few(different: Array, share: float, label: str) -> None:
    """At most this share differs; of a small array, one element."""
    allowed = max(1, int(share * different.size))
    count = int(different.sum())
    if count > allowed:
        row = int(np.argwhere(different)[0][0])
        raise Mismatch(f"{label}: {count} of {different.size} differ, {allowed} allowed; first in row {row}")


def same_shape(have: Array, want: Array, label: str) -> None:
    """Equal shapes."""
    if have.shape != want.shape:
        raise Mismatch(f"{label}: shape {have.shape}, want {want.shape}")


def same(have: Array, want: Array, label: str) -> None:
    """Equal shapes and numbers; NaN equals NaN."""
    same_shape(have, want, label)
    different = ~((have == want) | (np.not_equal(have, have) & np.not_equal(want, want)))
    if different.any():
        place = tuple(int(i) for i in np.argwhere(different)[0])
        where = f"row {place[0]}, at {place}" if place else "the one element"
        found = f"got {have[place]!r}, want {want[place]!r}"
        raise Mismatch(f"{label}: {where}: {found}; {int(different.sum())} of {different.size} differ, none may")


def _no_more_than_one(steps: Array, label: str) -> None:
    if steps.max(initial=0) > 1:
        place = tuple(int(i) for i in np.unravel_index(int(np.argmax(steps)), steps.shape))
        raise Mismatch(f"{label} is {steps.max()} steps off, 1 allowed; row {place[0]}, at {place}")


def _within(
    have: Array, want: Array, unit: Array, n: int, kind: str, label: str, rows: Array | None = None
) -> Measured:
    """|have - want| <= n units; errors in units, by row (of `rows`, where only some count)."""
    same(np.isnan(have), np.isnan(want), f"{label}: NaN")
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(have - want)
        units = np.where((have == want) | np.isnan(want), 0.0, np.where(unit > 0, error / unit, np.inf))
        units = np.where(np.isnan(units), np.inf, units)  # an infinity where none is wanted
        over = units > n
    if not units.size:
        return Measured(kind, 0.0, 0.0, 0, float(n))
    by_row = units.reshape(len(units), -1).max(axis=1)
    worst = _first(by_row)
    named = worst if rows is None else int(rows[worst])
    if over.any():
        place = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(over, units, -1.0))), units.shape))
        row = place[0] if rows is None else int(rows[place[0]])
        raise Mismatch(
            f"{label}: row {row}, at {place}: off by {units[place]:.3g} {kind}, {n} allowed "
            f"(got {have[place]!r}, want {want[place]!r}); {int(over.sum())} of {over.size} elements outside"
        )
    return Measured(kind, float(by_row[worst]), float(by_row.mean()), named, float(n))


def _first(by_row: Array) -> int:
    return int(np.argmax(by_row))
