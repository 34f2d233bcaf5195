"""How far an output is from what its tolerance class wants, element by element, in units of that class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.conformance.compare import Accumulated, AccumulatedCodes, Drawn, Entries, Exact, Quantised, Selected, host
from tandem.conformance.derive.base import Check
from tandem.conformance.formats import decode, round_bf16, ulp
from tandem.contract.types import QTensor

Array = npt.NDArray[Any]

# A gate of class A is 4 floors and n ulp; its unit is a quarter of that.
FLOORS = 4.0
# Scores this many floors apart may be ordered either way.
TIE = 2.0
# Class Q: shares of codes and of scales that may be a step off; of a small array, one.
CODE_SHARE, SCALE_SHARE = 1e-3, 1e-4


@dataclass(frozen=True)
class LeafError:
    """Error of one output of one call.

    Args:
        leaf: dotted name of the output.
        metric: what the numbers count: "floors" (noise floors of the row), "ulp", "steps" (of codes or scales) or
            "elements" (that differ).
        threshold: greatest value inside the class.
        rows: greatest value of each row.
        mean: mean over elements.
        floor: size of one unit where the error is greatest, in units of the output; None where it has no size.
        relative: greatest |error| of a row as a share of the greatest wanted value of that row; of integers, the share
            of elements that differ.
        first: index of the first element outside the class, else of the greatest error.
        outside: whether the class is broken.
        got, want: the values at `first`; codes and scales by the value they stand for.
        note: what a derivation said that has no number.
    """

    leaf: str
    metric: str
    threshold: float
    rows: Array
    mean: float
    floor: float | None
    relative: float
    first: tuple[int, ...]
    outside: bool
    note: str = field(default="")
    got: float | None = None
    want: float | None = None

    @property
    def value(self) -> float:
        """Greatest error over all rows."""
        return float(self.rows.max(initial=0.0))

    @property
    def share(self) -> float:
        """Greatest error as a share of the threshold; of class X, the number of differing elements."""
        return self.value / self.threshold if self.threshold else float(self.rows.sum())

    def to_json(self) -> dict[str, Any]:
        """JSON values; infinity as text."""
        return {
            "leaf": self.leaf,
            "metric": self.metric,
            "value": finite(self.value),
            "threshold": self.threshold,
            "mean": finite(self.mean),
            "floor": None if self.floor is None else finite(self.floor),
            "relative": finite(self.relative),
            "first": list(self.first),
            "outside": self.outside,
            "got": None if self.got is None else finite(self.got),
            "want": None if self.want is None else finite(self.want),
            "note": self.note,
        }


def finite(value: float) -> float | str:
    """A number JSON can hold: itself, or its name where it is not finite."""
    return float(value) if np.isfinite(value) else str(float(value))


def measure(check: Check, got: Any, leaf: str) -> LeafError:
    """Distance of an output from a check, within the gates of `tandem.conformance.compare`.

    Args:
        check: what the class wants.
        got: a host tensor, or for class Q a canonical quantised tensor.
        leaf: dotted name for the result.
    """
    if isinstance(check, Quantised):
        return _steps(check, got, leaf)
    if isinstance(check, AccumulatedCodes):
        return _coded(check, got, leaf)
    if isinstance(check, Entries):
        return _entries(check, got, leaf)
    if isinstance(check, Selected):
        return _chosen(check, host(got), leaf)
    have, want = host(got), np.asarray(check.value)
    if have.shape != want.shape:
        return broken(leaf, f"shape {have.shape}, want {want.shape}")
    dtype, apart = "bf16" if got.dtype is torch.bfloat16 else "f32", relative(have, want)
    if isinstance(check, Drawn):
        wrong = np.array([token not in legal for token, legal in zip(have.tolist(), check.legal, strict=True)])
        return _result(leaf, "elements", 0.0, wrong.astype(float), None, apart, (have, want))
    if isinstance(check, Exact):
        different = ~((have == want) | (np.not_equal(have, have) & np.not_equal(want, want)))
        if have.dtype.kind == "f":
            different |= (np.signbit(have) != np.signbit(want)) & (have == 0)
        return _result(leaf, "elements", 0.0, different.astype(float), None, apart, (have, want))
    if isinstance(check, Accumulated):
        peak = np.max(np.where(np.isfinite(want), np.abs(want), 0.0), axis=-1, keepdims=True, initial=0.0)
        unit = np.broadcast_to(check.floor + check.n * ulp(peak, dtype) / FLOORS, want.shape)
        return _result(leaf, "floors", FLOORS, _distance(have, want) / unit, unit, apart, (have, want))
    rounded = round_bf16(want) if dtype == "bf16" else want.astype(np.float32).astype(np.float64)
    unit = check.unit(rounded, dtype)
    error = _distance(have, rounded) / unit
    if check.rows is not None:
        error = np.where(check.rows.reshape(-1, *[1] * (error.ndim - 1)), error, 0.0)
        apart = relative(have[check.rows], rounded[check.rows])
    return _result(leaf, "ulp", float(check.n), error, unit, apart, (have, rounded))


def broken(leaf: str, note: str) -> LeafError:
    """An output whose form is wrong, so that no distance exists."""
    return LeafError(leaf, "form", 0.0, np.array([np.inf]), float("inf"), None, float("inf"), (), True, note)


def relative(have: Array, want: Array) -> float:
    """Greatest |have - want| of a row over the greatest finite |want| of that row; of integers, the share apart."""
    if not want.size:
        return 0.0
    if want.dtype.kind != "f" or have.dtype.kind != "f":
        return float((have != want).mean())
    have, want = (x.reshape(len(x), -1) if x.ndim else x.reshape(1, 1) for x in (have, want))
    peak = np.max(np.where(np.isfinite(want), np.abs(want), 0.0), axis=1)
    greatest = _distance(have, want).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(greatest == 0, 0.0, greatest / peak)
    return float(shares.max())


def _distance(have: Array, want: Array) -> Array:
    """Absolute difference; equal infinities and two NaN are 0 apart, one NaN is infinitely far."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(have - want)
    same = (have == want) | (np.isnan(have) & np.isnan(want))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _steps(check: Quantised, got: QTensor | tuple[Array, Array], leaf: str) -> LeafError:
    codes, scales = (got.data.numpy(), got.scale.numpy()) if isinstance(got, QTensor) else got
    if codes.shape != check.codes.shape or scales.shape != check.scales.shape:
        return broken(leaf, f"codes {codes.shape}, want {check.codes.shape}")
    off = np.abs(_ranks(codes, check.fmt) - _ranks(check.codes, check.fmt)).astype(float)
    group = off.shape[-1] // scales.shape[-1]
    step = np.repeat(np.abs(scales.astype(int) - check.scales), group, axis=-1).astype(float)
    lost, missing = (np.isnan(decode(c, s, check.fmt)) for c, s in ((codes, scales), (check.codes, check.scales)))
    error = np.where(lost != missing, np.inf, np.where(missing, 0.0, np.where(step > 0, step, off)))
    codes_off, scales_off = int(((off > 0) & (step == 0) & ~missing).sum()), int((step > 0).sum()) // group
    crowded = codes_off > max(1, int(CODE_SHARE * off.size)) or scales_off > max(1, int(SCALE_SHARE * scales.size))
    pair = decode(codes, scales, check.fmt), decode(check.codes, check.scales, check.fmt)
    return _result(leaf, "steps", 1.0, error, None, relative(*pair), pair, crowded)


def _coded(check: AccumulatedCodes, got: QTensor, leaf: str) -> LeafError:
    codes, scales = got.data.numpy(), got.scale.numpy()
    if codes.shape != check.value.shape or scales.shape != check.scales()[0].shape:
        return broken(leaf, f"codes {codes.shape}, want {check.value.shape}")
    pair = (decode(codes, scales, "mxfp8"), check.wanted())
    error = _distance(check.nearest(codes, scales), pair[1]) / check.unit
    return _result(leaf, "floors", float(check.n), error, check.unit, relative(*pair), pair)


def _entries(check: Entries, got: torch.Tensor, leaf: str) -> LeafError:
    """Written entries by class Q; an entry that changed and was not written is infinitely far."""
    have = got.numpy()
    parts = [(x[check.written, : check.split], x[check.written, check.split :]) for x in (check.image, have)]
    error = _steps(Quantised(*parts[0], check.fmt), parts[1], leaf)
    kept = np.delete(np.arange(len(check.image)), check.written)
    touched = kept[(have[kept] != check.image[kept]).any(axis=1)]
    if len(touched):
        return broken(leaf, f"entry {touched[0]} changed and was not to be written")
    return error


def _chosen(check: Selected, got: Array, leaf: str) -> LeafError:
    """How far the scores of other ids are from those of the best, in floors, of which 2 are allowed."""
    if got.shape != check.ids.shape:
        return broken(leaf, f"shape {got.shape}, want {check.ids.shape}")
    for t, mine in enumerate(got.tolist()):
        if len(set(mine)) != len(mine) or not set(mine) <= set(range(check.scores.shape[1])):
            return broken(leaf, f"row {t} has an id twice or one that does not exist: {mine}")
    scores = np.take_along_axis(check.scores, got, axis=1), np.take_along_axis(check.scores, check.ids, axis=1)
    unit = np.broadcast_to(check.slack[:, None] / TIE, got.shape)
    gap = np.abs(scores[0] - scores[1])
    error = np.where(gap == 0, 0.0, gap / unit)
    return _result(leaf, "floors", TIE, error, unit, relative(got, check.ids), (got, check.ids))


def _ranks(codes: Array, fmt: str) -> Array:
    """Codes as integers in the order of their values, one for each element."""
    if fmt == "mxfp8":
        size, negative = codes & 0x7F, codes >> 7
    else:
        wide = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], 2 * codes.shape[-1])
        size, negative = wide & 7, wide >> 3
    return np.where(negative == 1, -size.astype(int), size.astype(int))


def _result(
    leaf: str,
    metric: str,
    threshold: float,
    error: Array,
    unit: Array | None,
    apart: float,
    pair: tuple[Array, Array],
    crowded: bool = False,
) -> LeafError:
    """Reduce element errors [rows, ...].

    Args:
        pair: the values found and wanted.
        crowded: too many elements differ, whatever their size.
    """
    if not error.size:
        return LeafError(leaf, metric, threshold, np.zeros(0), 0.0, None, 0.0, (), False)
    flat = error.reshape(len(error), -1) if error.ndim else error.reshape(1, 1)
    rows = flat.max(axis=1)
    beyond = error > threshold if not crowded or (error > threshold).any() else error > 0
    outside = bool(beyond.any())
    flat_place = int(np.argmax(beyond)) if outside else int(np.argmax(error))
    place = tuple(int(i) for i in np.unravel_index(flat_place, error.shape))
    floor = None if unit is None else float(unit[place])
    got, want = (float(values[place]) for values in pair)
    mean = float(error.mean())
    return LeafError(leaf, metric, threshold, rows, mean, floor, apart, place, outside, got=got, want=want)
