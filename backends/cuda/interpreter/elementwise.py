"""Casts, arithmetic and comparisons of Triton's interpreter as the device computes them.

What the device computes approximately has no value that a host could copy.  The model of each, against which kernels
are tested:

* ``/`` and ``fdiv`` of float32 (``div.full.f32``, 2 ulp; by a constant: times the rounded reciprocal) are the dividend
  times the rounded reciprocal, so that a kernel that needs the exact quotient and does not write ``div_rn`` shows it.
* ``exp`` is ``exp2`` of the rounded product with log2(e), as the device does it: its relative error grows with |x|.
* ``exp2``, ``sqrt`` and ``rsqrt`` (``approx.ftz``, 1 to 2 ulp on the device) are rounded correctly here, with numbers
  below 2^-126 taken as zero; so are ``log``, ``log2``, ``sin``, ``cos`` (library code on the device, 1 to 2 ulp), but
  for those small numbers.  ``sqrt_rn``, ``div_rn`` and ``fma`` are exact on both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter as stock

from tandem.backends.cuda.interpreter import floats

Array = npt.NDArray[Any]
Handle = Any
Method = Callable[..., Handle]
_NATIVE = (tl.float16, tl.float32, tl.float64)
_SMALL = {tl.float8e4nv: floats.E4M3, tl.float8e5: floats.E5M2}
_LOG2_E = np.float32(1.4426950408889634)
_SMALLEST_NORMAL = np.float32(2.0**-126)


class NotModelled(NotImplementedError):
    """A kernel uses what the emulation has no model of."""


def decode(data: Array, dtype: Any) -> Array:
    """Values of a floating-point type as float32 (float64: as they are)."""
    if dtype == tl.bfloat16:
        return floats.bf16_decode(data)
    if dtype in _SMALL:
        return floats.small_decode(data, _SMALL[dtype])
    if dtype == tl.float16:
        return data.astype(np.float32)
    if dtype in (tl.float32, tl.float64):
        return data
    raise NotModelled(f"the emulator has no floating-point type {dtype}")


def encode(value: Array, dtype: Any) -> Array:
    """float32 (or float64, to float32 and float64 only) as data of a floating-point type."""
    if dtype == tl.float64:
        return value.astype(np.float64)
    if dtype == tl.float32:
        return value.astype(np.float32)
    if value.dtype != np.float32:
        raise NotModelled(f"the emulator converts float64 to float32 alone, not to {dtype}")
    if dtype == tl.float16:
        return value.astype(np.float16)
    if dtype == tl.bfloat16:
        return floats.bf16_encode(value)
    if dtype in _SMALL:
        return floats.small_encode(value, _SMALL[dtype])
    raise NotModelled(f"the emulator has no floating-point type {dtype}")


def _to_integer(value: Array, target: np.dtype[Any]) -> Array:
    """Towards zero, clamped, NaN as 0; 8-bit results go through 16 bits, as the compiler does it."""
    if target.itemsize == 1:
        return _to_integer(value, np.dtype(f"{target.kind}2")).astype(target)
    limits = np.iinfo(target)
    whole = np.trunc(np.where(np.isnan(value), 0, value).astype(np.float64))
    low, high = whole < limits.min, whole >= 2.0 ** (limits.bits - (target.kind == "i"))
    found = np.where(low | high, 0, whole).astype(target)
    return np.where(high, limits.max, np.where(low, limits.min, found)).astype(target)


def cast(self: Any, src: Handle, dst_type: Any, *_: Any) -> Handle:
    """Any conversion between numbers; of fp8 to and from floating-point types alone."""
    source, target = src.dtype.scalar, dst_type.scalar
    if source.is_floating() and target.is_floating():
        data = src.data if source == target else encode(decode(src.data, source), target)
    elif source in _SMALL or target in _SMALL:
        raise NotModelled(f"the emulator has no conversion of {source} to {target}")
    elif source.is_floating():
        data = _to_integer(decode(src.data, source), stock._get_np_dtype(target))
    elif target == tl.bfloat16:
        data = floats.bf16_encode(_integer_for_bf16(src.data))
    else:
        data = src.data.astype(stock._get_np_dtype(target))
    return stock.TensorHandle(data, target)


def _integer_for_bf16(data: Array) -> Array:
    """Integers as float32 that round to bf16 as the integers do: bits that float32 cannot hold are kept as one."""
    if data.dtype.itemsize == 8:
        raise NotModelled("the emulator has no conversion of 64-bit integers to bf16")
    wide = data.astype(np.float64)
    near = wide.astype(np.float32)
    bits = near.view(np.uint32)
    inexact = near.astype(np.float64) != wide
    towards_zero = np.where(np.abs(near.astype(np.float64)) > np.abs(wide), bits - 1, bits)
    return np.where(inexact, towards_zero | 1, bits).astype(np.uint32).view(np.float32)


def fp_to_fp(self: Any, src: Handle, dst_type: Any, rounding_mode: Any) -> Handle:
    """A conversion that may name its rounding; only the nearest is modelled."""
    if rounding_mode not in (None, stock._ir.ROUNDING_MODE.RTNE):
        raise NotModelled(f"the emulator rounds to nearest, not by {rounding_mode}")
    return cast(self, src, dst_type)


def arithmetic(function: Callable[..., Array]) -> Method:
    """An operation on floats of one type, bf16 rounded once from the float32 result."""

    def method(self: Any, *arguments: Handle) -> Handle:
        kind = arguments[-1].dtype.scalar
        if kind in _NATIVE:
            return stock.TensorHandle(function(*(a.data for a in arguments)), kind)
        if kind != tl.bfloat16:
            raise NotModelled(f"the emulator has no arithmetic on {kind}")
        found = function(*(floats.bf16_decode(a.data) for a in arguments))
        return stock.TensorHandle(floats.bf16_encode(found), kind)

    return method


def comparison(function: Callable[..., Array], unordered: bool | None) -> Method:
    """A comparison; with a NaN it yields ``unordered``, and what the function yields where that is None."""

    def method(self: Any, lhs: Handle, rhs: Handle) -> Handle:
        a, b = lhs.data, rhs.data
        if lhs.dtype.scalar.is_floating():
            if lhs.dtype.scalar in _SMALL:
                raise NotModelled(f"the emulator has no comparison of {lhs.dtype.scalar}")
            a, b = decode(a, lhs.dtype.scalar), decode(b, rhs.dtype.scalar)
        found = function(a, b)
        if unordered is not None:
            spoilt = np.isnan(a) | np.isnan(b)
            found = found | spoilt if unordered else found & ~spoilt
        return stock.TensorHandle(found, tl.int1)

    return method


def _divide(a: Array, b: Array) -> Array:
    if a.dtype != np.float32:
        return np.divide(a, b)
    significand, exponent = np.frexp(b.astype(np.float64))
    reciprocal = np.divide(1.0, significand).astype(np.float32).astype(np.float64)
    near = np.ldexp(a * reciprocal, -exponent).astype(np.float32)
    regular = np.isfinite(a) & np.isfinite(b) & (b != 0)
    return np.where(regular, near, np.divide(a, b))


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < _SMALLEST_NORMAL, np.float32(0), x)


def _function(function: Callable[[Array], Array], flush: bool = False) -> Callable[[Array], Array]:
    """Rounded once from float64."""

    def rounded(x: Array) -> Array:
        if x.dtype != np.float32:
            return function(x)
        found = function((_flushed(x) if flush else x).astype(np.float64)).astype(np.float32)
        return _flushed(found) if flush else found

    return rounded


def _exp(x: Array) -> Array:
    if x.dtype != np.float32:
        return np.exp(x)
    return np.exp2((x * _LOG2_E).astype(np.float64)).astype(np.float32)


def unary(function: Callable[[Array], Array]) -> Method:
    """A function of float32 or float64."""

    def method(self: Any, arg: Handle) -> Handle:
        if arg.dtype.scalar not in (tl.float32, tl.float64):
            raise NotModelled(f"the emulator has no {function.__name__} of {arg.dtype.scalar}")
        return stock.TensorHandle(function(arg.data), arg.dtype.scalar)

    return method


def negate(self: Any, arg: Handle) -> Handle:
    """The sign bit changed."""
    return arithmetic(np.negative)(self, arg)


def fma(self: Any, x: Handle, y: Handle, z: Handle) -> Handle:
    """One rounding, of float32 and float64."""
    if z.dtype.scalar not in (tl.float32, tl.float64):
        raise NotModelled(f"the emulator has no fma of {z.dtype.scalar}")
    function = stock._interpreter.fma_fp32 if z.dtype.scalar == tl.float32 else stock._interpreter.fma_fp64
    return stock.TensorHandle(function(*np.broadcast_arrays(x.data, y.data, z.data)), z.dtype.scalar)


def clamp(self: Any, arg: Handle, low: Handle, high: Handle, propagate_nans: Any) -> Handle:
    """Between two bounds; a NaN is kept only where the kernel says so."""
    drop = propagate_nans == stock._ir.PROPAGATE_NAN.NONE
    between: Callable[..., Array] = (lambda x, a, b: np.fmin(np.fmax(x, a), b)) if drop else np.clip
    return arithmetic(between)(self, arg, low, high)


def umulhi(self: Any, lhs: Handle, rhs: Handle) -> Handle:
    """High half of the product of the operands as unsigned numbers."""
    kind = lhs.data.dtype
    half = np.uint64(kind.itemsize * 4)
    low = np.uint64((1 << int(half)) - 1)
    a, b = (x.data.view(f"u{kind.itemsize}").astype(np.uint64) for x in (lhs, rhs))
    (a1, a0), (b1, b0) = (a >> half, a & low), (b >> half, b & low)
    middle = a1 * b0 + (a0 * b0 >> half)
    carry = (middle & low) + a0 * b1
    high = a1 * b1 + (middle >> half) + (carry >> half)
    return stock.TensorHandle(high.astype(f"u{kind.itemsize}").view(kind), lhs.dtype.scalar)


def _refuse(name: str) -> Method:
    def method(self: Any, *arguments: Any) -> Handle:
        raise NotModelled(f"the emulator has no {name}")

    return method


def corrections() -> dict[str, Method]:
    """Methods of the interpreter's builder by name."""
    casts = ("create_si_to_fp", "create_ui_to_fp", "create_fp_to_si", "create_fp_to_ui", "create_fp_ext")
    found: dict[str, Method] = dict.fromkeys((*casts, "create_fp_trunc", "create_int_cast", "cast_impl"), cast)
    found |= {"create_fp_to_fp": fp_to_fp, "create_clampf": clamp, "create_fma": fma, "create_umulhi": umulhi}
    pairs: dict[str, Callable[..., Array]] = {"minimumf": np.minimum, "maximumf": np.maximum}
    pairs |= {"minnumf": np.fmin, "maxnumf": np.fmax}
    pairs |= {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": _divide, "precise_divf": np.divide}
    found |= {f"create_{name}": arithmetic(function) for name, function in pairs.items()}
    found |= {"create_fneg": negate, "create_frem": _refuse("remainder of floats")}
    found["create_approx_divf"] = found["create_fdiv"]
    orders = {"LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal}
    for name, function in orders.items():
        found[f"create_fcmpO{name}"] = comparison(function, None)
        found[f"create_fcmpU{name}"] = comparison(function, True)
        found |= {f"create_icmp{sign}{name}": comparison(function, None) for sign in "SU"}
    found |= {"create_fcmpOEQ": comparison(np.equal, None), "create_fcmpUEQ": comparison(np.equal, True)}
    found |= {"create_fcmpUNE": comparison(np.not_equal, None), "create_fcmpONE": comparison(np.not_equal, False)}
    found |= {"create_icmpEQ": comparison(np.equal, None), "create_icmpNE": comparison(np.not_equal, None)}
    names = {"exp2": np.exp2, "log": np.log, "log2": np.log2, "sin": np.sin, "cos": np.cos}
    found |= {f"create_{name}": unary(_function(function, name == "exp2")) for name, function in names.items()}
    found |= {f"create_{name}": unary(function) for name, function in (("floor", np.floor), ("ceil", np.ceil))}
    found |= {"create_exp": unary(_exp), "create_precise_sqrt": unary(np.sqrt)}
    found["create_sqrt"] = unary(_function(np.sqrt, flush=True))
    found["create_rsqrt"] = unary(_function(lambda x: 1.0 / np.sqrt(x), flush=True))
    found["create_erf"] = _refuse("erf")
    return found
