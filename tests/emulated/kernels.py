"""Kernels that do one thing each, for tests of the interpreter."""

# ruff: noqa: F841
import triton
import triton.language as tl


@triton.jit
def convert(source, target, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + place, tl.load(source + place).to(target.dtype.element_ty))


@triton.jit
def binary(a, b, out, OP: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    x, y = tl.load(a + place), tl.load(b + place)
    if OP == "add":
        z = x + y
    elif OP == "sub":
        z = x - y
    elif OP == "mul":
        z = x * y
    elif OP == "div":
        z = x / y
    elif OP == "div_rn":
        z = tl.div_rn(x, y)
    elif OP == "max":
        z = tl.maximum(x, y)
    elif OP == "nanmax":
        z = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "min":
        z = tl.minimum(x, y)
    elif OP == "neg":
        z = -x
    elif OP == "abs":
        z = tl.abs(x)
    elif OP == "where":
        z = tl.where(x > y, x, y)
    elif OP == "clamp":
        z = tl.clamp(x, -1.0, 1.0)
    elif OP == "lt":
        z = x < y
    elif OP == "le":
        z = x <= y
    elif OP == "eq":
        z = x == y
    elif OP == "ne":
        z = x != y
    elif OP == "umulhi":
        z = tl.umulhi(x, y)
    elif OP == "rem":
        z = x % y
    elif OP == "idiv":
        z = x // y
    elif OP == "shr":
        z = x >> y
    elif OP == "shl":
        z = x << y
    tl.store(out + place, z.to(out.dtype.element_ty))


@triton.jit
def unary(a, out, OP: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    x = tl.load(a + place)
    if OP == "exp":
        z = tl.exp(x)
    elif OP == "exp2":
        z = tl.exp2(x)
    elif OP == "log2":
        z = tl.log2(x)
    elif OP == "sqrt_rn":
        z = tl.sqrt_rn(x)
    elif OP == "rsqrt":
        z = tl.rsqrt(x)
    elif OP == "erf":
        z = tl.erf(x)
    elif OP == "if":
        z = x
        if x > 0:
            z = x + 1
    elif OP == "asm":
        z = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out + place, z)


@triton.jit
def dot(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(x, y, input_precision=PRECISION))


@triton.jit
def dot_scaled(
    a, sa, b, sb, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, FA: tl.constexpr, FB: tl.constexpr
):
    pa: tl.constexpr = 2 if FA == "e2m1" else 1
    pb: tl.constexpr = 2 if FB == "e2m1" else 1
    m, n, g = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    ka, kb = tl.arange(0, K // pa), tl.arange(0, K // pb)
    x = tl.load(a + m[:, None] * (K // pa) + ka[None, :])
    y = tl.load(b + n[None, :] * (K // pb) + kb[:, None])
    xs = tl.load(sa + m[:, None] * (K // 32) + g[None, :])
    ys = tl.load(sb + n[:, None] * (K // 32) + g[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot_scaled(x, xs, FA, y, ys, FB))


@triton.jit
def _affine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def _smaller(a, b):
    return tl.where(a < b, a, b)


@triton.jit
def reduce(a, out, OP: tl.constexpr, AXIS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(a + m[:, None] * N + n[None, :])
    kept = n if AXIS == 0 else m
    if OP == "sum":
        tl.store(out + kept, tl.sum(x, axis=AXIS))
    elif OP == "max":
        tl.store(out + kept, tl.max(x, axis=AXIS))
    elif OP == "argmax":
        tl.store(out + kept, tl.argmax(x, axis=AXIS))
    elif OP == "argmin":
        tl.store(out + kept, tl.argmin(x, axis=AXIS))
    elif OP == "custom":
        tl.store(out + kept, tl.reduce(x, AXIS, _smaller))
    elif OP == "cumsum":
        tl.store(out + m[:, None] * N + n[None, :], tl.cumsum(x, axis=AXIS))
    elif OP == "reverse":
        tl.store(out + m[:, None] * N + n[None, :], tl.cumsum(x, axis=AXIS, reverse=True))
    elif OP == "affine":
        _, z = tl.associative_scan((x, x + 1), AXIS, _affine)
        tl.store(out + m[:, None] * N + n[None, :], z)


@triton.jit
def count(out, old, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(old + place, tl.atomic_add(out + place // 4, tl.full((BLOCK,), 1, tl.int32), mask=place % 2 == 0))


@triton.jit
def add_floats(out, BLOCK: tl.constexpr):
    tl.atomic_add(out + tl.arange(0, BLOCK), tl.full((BLOCK,), 1.0, tl.float32))


@triton.jit
def scalar(out, x, y):
    tl.store(out, x * y)
