"""The native CPU kernels against derivations in float64 written here from the format definitions.

Nothing below uses Tandem's own references: grids are built from the meaning of the bits, rounding is
a nearest-neighbour search on them, and scales come from exact comparisons.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conformance.native_cases import LIB, ROWS, MixArgs, mix_case, spread
from torch import Tensor

E4M3_GRID = np.array(
    [
        (c & 7) * 2.0**-9 if c >> 3 == 0 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7)
        for c in range(127)  # 127 is NaN
    ]
)
E2M1_GRID = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def nearest_code(magnitude: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Index of the nearest grid value; a tie goes to the even index, beyond the end saturates."""
    above = np.clip(np.searchsorted(grid, magnitude), 1, len(grid) - 1)
    low, high = magnitude - grid[above - 1], grid[above] - magnitude
    take_low = (low < high) | ((low == high) & (above % 2 == 1))
    return np.where(take_low, above - 1, above)


def least_power(amax: np.ndarray, full: float) -> np.ndarray:
    """Exponent of the least power of two s with amax <= full * s, by exact comparisons."""
    k = np.floor(np.log2(amax / full)).astype(int) - 1
    for _ in range(3):
        k = np.where(amax > full * 2.0**k, k + 1, k)
    return k


def groups(x: Tensor, size: int) -> np.ndarray:
    return x.to(torch.float64).numpy().reshape(-1, size)


def expect_fp8(x: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scale bytes and represented values of x [T, N]."""
    g = groups(x, 32)
    k = least_power(np.maximum(np.abs(g).max(1), float(np.float32(1e-4))), 448.0)
    code = nearest_code(np.abs(g) / 2.0 ** k[:, None], E4M3_GRID)
    values = np.copysign(E4M3_GRID[code] * 2.0 ** k[:, None], g)
    code = code + np.where(np.signbit(g), 128, 0)
    rows = x.shape[0]
    return code.reshape(rows, -1), (k + 127).reshape(rows, -1), values.reshape(rows, -1)


def expect_fp4(x: Tensor, nvfp4: bool) -> tuple[np.ndarray, np.ndarray]:
    """Packed codes and scale bytes of x [T, N]."""
    g = groups(x, 16 if nvfp4 else 32)
    amax = np.abs(g).max(1)
    if nvfp4:
        scale = nearest_code(np.minimum(np.maximum(amax, 6 * 2.0**-9) / 6.0, 448.0), E4M3_GRID)
        divisor = E4M3_GRID[scale]
    else:
        k = least_power(np.maximum(amax, 6 * 2.0**-126), 6.0)
        scale, divisor = k + 127, 2.0**k
    code = nearest_code(np.abs(g) / divisor[:, None], E2M1_GRID)
    code = code + np.where((g < 0) & (code > 0), 8, 0)
    packed = code[:, 0::2] + 16 * code[:, 1::2]
    return packed.reshape(x.shape[0], -1), scale.reshape(x.shape[0], -1)


def every_magnitude(group: int) -> Tensor:
    """Each positive finite bf16 is the largest magnitude of one group; bf16 [32639, group]."""
    top = np.arange(1, 0x7F80, dtype=np.uint32)
    rng = np.random.default_rng(7)
    values = (top << 16).view(np.float32)[:, None] * rng.uniform(-1, 1, (len(top), group)).astype(np.float32)
    values[:, 3] = (top << 16).view(np.float32)
    return torch.from_numpy(values).to(torch.bfloat16)


def check_quantisers(x: Tensor) -> None:
    codes, scales = LIB.quantize_fp8_g32(x)
    values, value_scales = LIB.fake_quant_fp8_g32(x)
    want_codes, want_scales, want_values = expect_fp8(x)
    np.testing.assert_array_equal(codes.numpy(), want_codes)
    np.testing.assert_array_equal(scales.numpy(), want_scales)
    np.testing.assert_array_equal(value_scales.numpy(), want_scales)
    with np.errstate(over="ignore"):  # 256 * 2^120 is infinite in f32
        np.testing.assert_array_equal(values.numpy(), want_values.astype(np.float32))
    if x.dtype is not torch.bfloat16:
        return
    for kernel, nvfp4 in ((LIB.quantize_fp4_g32, False), (LIB.quantize_nvfp4_g16, True)):
        for got, want in zip(kernel(x), expect_fp4(x, nvfp4), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("n", (32, 96, 512))
def test_quantisers_match_the_definition(rows: int, n: int) -> None:
    check_quantisers(spread(rows, n, seed=rows * 1000 + n))


def test_every_bf16_as_group_maximum() -> None:
    check_quantisers(every_magnitude(32))


@pytest.mark.parametrize("exponent", (-20, 0, 9))
def test_f32_scale_steps_exactly_at_full(exponent: int) -> None:
    """448 * 2^k still gets the scale 2^k; the next f32 gets twice that."""
    full = np.float32(448 * 2.0**exponent)
    x = torch.zeros((2, 32))
    x[0, 5], x[1, 5] = float(full), float(np.nextafter(full, np.float32(np.inf)))
    check_quantisers(x)
    assert LIB.quantize_fp8_g32(x)[1].flatten().tolist() == [127 + exponent, 128 + exponent]


def test_all_e4m3_codes_are_reached_and_decoded() -> None:
    """Groups that hold 448 have scale 1, so every finite value must come back as its own code."""
    finite = [c for c in range(256) if c & 0x7F != 0x7F]
    value = np.where(np.array(finite) > 127, -1.0, 1.0) * E4M3_GRID[np.array(finite) & 0x7F]
    x = torch.full((len(finite), 32), 448.0, dtype=torch.bfloat16)
    x[:, 0] = torch.from_numpy(value).to(torch.bfloat16)
    assert LIB.quantize_fp8_g32(x)[0][:, 0].tolist() == finite
    decoded = LIB.fake_quant_fp8_g32(x)[0][:, 0].numpy()
    np.testing.assert_array_equal(decoded, value)
    assert np.signbit(decoded[finite.index(0x80)])
    nan = LIB.quantize_fp8_g32(torch.full((1, 32), float("nan"), dtype=torch.bfloat16))
    assert set(nan[0].flatten().tolist()) == {0x7F}


def test_e4m3_ties_go_to_the_even_code() -> None:
    middle = (E4M3_GRID[:-1] + E4M3_GRID[1:]) / 2
    x = torch.full((126, 32), 448.0)
    x[:, 0] = torch.from_numpy(middle)
    even = [c if c % 2 == 0 else c + 1 for c in range(126)]
    assert LIB.quantize_fp8_g32(x)[0][:, 0].tolist() == even
    assert LIB.quantize_fp8_g32(x.to(torch.bfloat16))[0][:, 0].tolist() == even


@pytest.mark.parametrize("kernel", ("quantize_fp4_g32", "quantize_nvfp4_g16"))
def test_e2m1_ties_and_negative_zero(kernel: str) -> None:
    """With a largest magnitude of 6 the scale is 1 in both formats."""
    by_hand = {0.25: 0, 0.75: 2, 1.25: 2, 1.75: 4, 2.5: 4, 3.5: 6, 5.0: 6, 6.0: 7, 0.5: 1, 1.5: 3, 3.0: 5}
    x = torch.zeros((1, 32), dtype=torch.bfloat16)
    values = [*by_hand, -0.0, -0.25, -0.75, 6.0, 6.0]
    wanted = [*by_hand.values(), 0, 0, 10, 7, 7]
    x[0, :16] = torch.tensor(values)
    x[0, 16:] = -x[0, :16]
    mirrored = [0 if w in (0, 8) else w ^ 8 for w in wanted]
    packed, scales = getattr(LIB, kernel)(x)
    nibbles = [n for byte in packed[0].tolist() for n in (byte & 15, byte >> 4)]
    assert nibbles == wanted + mirrored
    assert set(scales.flatten().tolist()) == {127 if kernel == "quantize_fp4_g32" else 0x38}


def test_every_nvfp4_scale_is_reached() -> None:
    x = torch.zeros((126, 16), dtype=torch.bfloat16)
    x[:, 9] = torch.from_numpy(6 * E4M3_GRID[1:127]).to(torch.bfloat16)
    packed, scales = LIB.quantize_nvfp4_g16(x)
    assert scales.flatten().tolist() == list(range(1, 127))
    assert set(packed[:, 4].tolist()) == {7 << 4}


def test_values_below_the_floors() -> None:
    """Zeros and the smallest numbers get the floor's scale; nothing divides by zero."""
    x = torch.tensor([[0.0] * 32, [-0.0] * 32, [2.0**-133] * 32], dtype=torch.bfloat16)
    check_quantisers(x)
    # 448 * 2^-22 >= 1e-4 > 448 * 2^-23
    assert set(LIB.quantize_fp8_g32(x)[1].flatten().tolist()) == {127 - 22}
    assert set(LIB.quantize_fp4_g32(x)[1].flatten().tolist()) == {1}
    assert set(LIB.quantize_nvfp4_g16(x)[1].flatten().tolist()) == {1}


def test_nan_and_infinity_stay_in_their_group() -> None:
    x = spread(3, 96, seed=5).clamp(-1e3, 1e3)
    clean = [*LIB.quantize_fp8_g32(x), *LIB.quantize_fp4_g32(x), *LIB.quantize_nvfp4_g16(x)]
    bad = x.clone()
    bad[1, 40] = float("nan")
    codes, scales, packed4, scales4, packed, nv_scales = (
        *LIB.quantize_fp8_g32(bad),
        *LIB.quantize_fp4_g32(bad),
        *LIB.quantize_nvfp4_g16(bad),
    )
    for got, want, size in zip(
        (codes, scales, packed4, scales4, packed, nv_scales), clean, (32, 1, 16, 1, 8, 1), strict=True
    ):
        group = 2 if want is clean[4] or want is clean[5] else 1
        got, want = got.clone().unflatten(1, (-1, size)), want.clone().unflatten(1, (-1, size))
        got[1, group] = want[1, group] = 0
        assert torch.equal(got, want)
    assert codes[1, 32:64].unique().tolist() == [0x7F] and scales[1, 1] == 255
    assert packed4[1, 16:32].unique().tolist() == [0] and scales4[1, 1] == 255
    assert packed[1, 16:24].unique().tolist() == [0] and nv_scales[1, 2] == 0x7F
    values, value_scales = LIB.fake_quant_fp8_g32(bad)
    assert values[1, 32:64].isnan().all() and values.isnan().sum() == 32 and value_scales[1, 1] == 255
    bad[1, 40] = -float("inf")
    codes, scales = LIB.quantize_fp8_g32(bad)
    assert codes[1, 40] == 0xFE and scales[1, 1] == 254
    assert LIB.quantize_fp4_g32(bad)[0][1, 20] & 15 == 15 and LIB.quantize_fp4_g32(bad)[1][1, 1] == 254
    assert LIB.quantize_nvfp4_g16(bad)[0][1, 20] & 15 == 15 and LIB.quantize_nvfp4_g16(bad)[1][1, 2] == 0x7E


def expect_mix(args: MixArgs) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """pre, post, comb in float64, and a bound on the absolute f32 error of each mix [T, mixes]."""
    trunk, fn, base, scale, norm_eps, hc_eps, iters = args
    rows, m, width = trunk.shape
    x, w = trunk.to(torch.float64).numpy().reshape(rows, -1), fn.to(torch.float64).numpy()
    b, s = base.to(torch.float64).numpy(), scale.to(torch.float64).numpy()
    inverse = 1.0 / np.sqrt((x * x).mean(1, keepdims=True) + norm_eps)
    mix = x @ w.T * inverse
    # A lane adds width*m/16 products and the tree four times; the norm adds as many squares.
    bound = (m * width / 16 + 8) * 2.0**-24 * (np.abs(x) @ np.abs(w).T * inverse + np.abs(mix))
    factor = np.repeat(s, (m, m, m * m))
    logits = mix * factor + b
    bound = bound * factor + np.abs(logits) * 2.0**-23
    pre = 1 / (1 + np.exp(-logits[:, :m])) + hc_eps
    post = 2 / (1 + np.exp(-logits[:, m : 2 * m]))
    comb = np.exp(logits[:, 2 * m :]).reshape(rows, m, m)
    comb = comb / comb.sum(2, keepdims=True) + hc_eps
    comb = comb / (comb.sum(1, keepdims=True) + hc_eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(2, keepdims=True) + hc_eps)
        comb = comb / (comb.sum(1, keepdims=True) + hc_eps)
    return pre, post, comb, bound


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("m", "width"), ((4, 128), (4, 37), (2, 64), (1, 16), (8, 48)))
@pytest.mark.parametrize(("norm_eps", "hc_eps"), ((1e-20, 1e-6), (0.5, 0.05)))
def test_hc_mix_matches_the_definition(
    rows: int, m: int, width: int, norm_eps: float, hc_eps: float
) -> None:
    """The second pair of eps is large, so that each place where one is added shows."""
    args = (*mix_case(rows, m, width, seed=rows + 100 * m)[:4], norm_eps, hc_eps, 20)
    pre, post, comb = (t.numpy() for t in LIB.hc_mix(*args))
    want_pre, want_post, want_comb, bound = expect_mix(args)
    # The sigmoid has slope 1/4 at most. Normalisations never enlarge a relative error more than
    # twice on either side, and each of the 2 * iters adds about m + 2 roundings of its own.
    assert (np.abs(pre - want_pre) <= bound[:, :m] / 4 + 2.0**-22).all()
    assert (np.abs(post - want_post) <= bound[:, m : 2 * m] / 2 + 2.0**-21).all()
    relative = 4 * bound[:, 2 * m :].max(1) + 2 * args[-1] * (m + 2) * 2.0**-24
    assert (np.abs(comb - want_comb) <= relative[:, None, None] * want_comb).all()


def test_hc_mix_by_hand() -> None:
    """A zero row has no mixes: only base counts, and the norm's eps keeps 0 / 0 away."""
    trunk, fn, base, scale, norm_eps, _, _ = mix_case(1, 2, 32, seed=1)
    base[:] = torch.tensor([0.0, np.log(3.0), 0.0, -np.log(3.0), 0.0, 0.0, 0.0, np.log(3.0)])
    pre, post, comb = LIB.hc_mix(torch.zeros_like(trunk), fn, base, scale, norm_eps, 0.0, 1)
    torch.testing.assert_close(pre, torch.tensor([[0.5, 0.75]]))
    torch.testing.assert_close(post, torch.tensor([[1.0, 0.5]]))
    # Softmax rows (1/2, 1/2), (1/4, 3/4); then columns sum to 3/4 and 5/4.
    torch.testing.assert_close(comb, torch.tensor([[[2 / 3, 2 / 5], [1 / 3, 3 / 5]]]))


def test_hc_mix_sigmoid_is_accurate_over_its_range() -> None:
    """Without mixes the logits are exactly base; exp, sum and quotient round once each."""
    trunk, fn, base, scale, *_ = mix_case(1, 8, 16, seed=6)
    for logits in torch.linspace(-80, 40, 1600).reshape(-1, 16):
        base[:16] = logits
        pre, post, _ = LIB.hc_mix(torch.zeros_like(trunk), fn, base, scale, 1e-20, 0.0, 1)
        exact = 1 / (1 + np.exp(-logits.to(torch.float64).numpy()))
        got = np.concatenate([pre.numpy()[0], post.numpy()[0] / 2])
        assert (np.abs(got / exact - 1) <= 3.01 * 2.0**-24).all()


def test_hc_mix_extreme_logits_saturate_without_nan() -> None:
    trunk, fn, base, scale, norm_eps, hc_eps, iters = mix_case(1, 4, 32, seed=2)
    base[:8] = torch.tensor([300.0, -300.0, 90.0, -90.0, 300.0, -300.0, 90.0, -90.0])
    base[8:] = torch.linspace(-300, 300, 16)
    pre, post, comb = LIB.hc_mix(trunk, fn, base, scale, norm_eps, 0.0, iters)
    assert pre[0, :2].tolist() == [1.0, 0.0] and post[0, :2].tolist() == [2.0, 0.0]
    pre, post, comb = LIB.hc_mix(trunk, fn, base, scale, norm_eps, hc_eps, iters)
    assert all(t.isfinite().all() for t in (pre, post, comb))


def test_hc_mix_nan_stays_in_its_row() -> None:
    args = mix_case(17, 4, 128, seed=3)
    clean = LIB.hc_mix(*args)
    args[0][5, 2, 77] = float("nan")
    for got, want in zip(LIB.hc_mix(*args), clean, strict=True):
        assert got[5].isnan().all()
        keep = torch.arange(17) != 5
        assert torch.equal(got[keep], want[keep])
