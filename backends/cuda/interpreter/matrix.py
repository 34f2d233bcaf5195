"""``tl.dot`` and ``tl.dot_scaled`` of Triton's interpreter; see `tandem.backends.cuda.interpreter.products`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter as stock

from tandem.backends.cuda.interpreter import products
from tandem.backends.cuda.interpreter.elementwise import Handle, Method, NotModelled, decode

Array = npt.NDArray[Any]


def dot(self: Any, a: Handle, b: Handle, d: Handle, input_precision: Any, max_num_imprecise_acc: Any) -> Handle:
    """The sum and the accumulator rounded once to float32; products of float32 only where all of their bits count."""
    if tl.float32 in (a.dtype.scalar, b.dtype.scalar) and input_precision != stock._ir.INPUT_PRECISION.IEEE:
        raise NotModelled("the emulator multiplies float32 matrices only with input_precision='ieee'")
    if d.dtype.scalar == tl.int32:
        found = np.matmul(a.data.astype(np.int32), b.data.astype(np.int32)) + d.data
    elif d.dtype.scalar == tl.float32:
        left, right = (decode(x.data, x.dtype.scalar).astype(np.float64) for x in (a, b))
        found = (products.matmul(left, right) + d.data).astype(np.float32)
    else:
        raise NotModelled(f"the emulator accumulates in float32 and int32, not in {d.dtype.scalar}")
    return stock.TensorHandle(found, d.dtype.scalar)


def _operand(value: Handle, scale: Handle | None, form: Any, axis: int, packed_axis: int) -> Array:
    """Decoded values times their scales, float64; ``axis`` is the one that is summed."""
    if form == stock._ir.ScaleDotElemTypeTY.E2M1:
        decoded = products.unpack_e2m1(value.data, packed_axis)
    else:
        decoded = decode(value.data, value.dtype.scalar).astype(np.float64)
    if scale is None:
        return decoded
    if scale.dtype.scalar.is_int():
        factors = products.ue8m0(scale.data.view(np.uint8))
    else:
        factors = decode(scale.data, scale.dtype.scalar).astype(np.float64)
    factors = np.repeat(factors, decoded.shape[axis] // factors.shape[-1], axis=-1)
    return decoded * (factors if axis == -1 else np.swapaxes(factors, -1, -2))


def dot_scaled(
    self: Any,
    lhs: Handle,
    lhs_scale: Handle | None,
    lhs_format: Any,
    rhs: Handle,
    rhs_scale: Handle | None,
    rhs_format: Any,
    fast_math: bool,
    lhs_k_pack: bool,
    rhs_k_pack: bool,
    acc: Handle,
) -> Handle:
    """As `dot`, of codes with one scale a group; the right scale is [N, groups]."""
    left = _operand(lhs, lhs_scale, lhs_format, -1, -1 if lhs_k_pack else -2)
    right = _operand(rhs, rhs_scale, rhs_format, -2, -2 if rhs_k_pack else -1)
    return stock.TensorHandle((products.matmul(left, right) + acc.data).astype(np.float32), tl.float32)


def atomic_rmw(self: Any, operation: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
    """As Triton's, but for sums of floats: a device adds them in any order."""
    if operation == stock._ir.ATOMIC_OP.FADD:
        raise NotModelled("an atomic sum of floats has no fixed order; no kernel of this backend may use one")
    known = self.ir_rmw_op_to_interpreter_rmw_op[operation]
    order = self.ir_sem_to_interpreter_sem[sem]
    found = stock._interpreter.atomic_rmw(known, ptr.data, val.data, mask.data, order)
    return stock.TensorHandle(found, val.dtype.scalar)


def corrections() -> dict[str, Method]:
    """Methods of the interpreter's builder by name."""
    return {"create_dot": dot, "create_dot_scaled": dot_scaled, "create_atomic_rmw": atomic_rmw}
