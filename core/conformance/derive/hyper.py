"""Derivations of the hyper-connection ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.conformance.compare import Array, Exact, Quantised, Ulps
from tandem.conformance.derive.base import (
    Check,
    Dot,
    View,
    accumulated,
    derives,
    logistic,
    mean_square,
    normalise,
    short_sum,
)
from tandem.conformance.formats import encode, round_bf16
from tandem.contract.types import HcWeights


@derives("hc_expand")
def hc_expand(v: View, got: dict[str, Any]) -> dict[str, Check]:
    return {"trunk": Exact(np.stack([v["x"]] * v.raw["m"], axis=1))}


@derives("hc_collapse")
def hc_collapse(v: View, got: dict[str, Any]) -> dict[str, Check]:
    value, lost = collapsed(v["trunk"], v["pre"])
    return {"x": Ulps(value, 1, floor=lost)}


def collapsed(trunk: Array, pre: Array) -> tuple[Array, Array]:
    """The weighted sum of the streams, and what f32 may lose in it."""
    return short_sum(pre[:, :, None] * trunk, axis=1)


@derives("hc_mean")
def hc_mean(v: View, got: dict[str, Any]) -> dict[str, Check]:
    trunk = v["trunk"]
    value, lost = short_sum(trunk / trunk.shape[1], axis=1)
    return {"x": Ulps(value, 1, floor=lost)}


@derives("hc_post")
def hc_post(v: View, got: dict[str, Any]) -> dict[str, Check]:
    value, lost = left(v["y"], v["trunk"], v["post"], v["comb"])
    return {"trunk": Ulps(value, 1, floor=lost)}


def left(y: Array, trunk: Array, post: Array, comb: Array) -> tuple[Array, Array]:
    """The streams after a sub-layer, each its share of the output and of all old streams, and what f32 may lose."""
    shares = comb[..., None] * trunk[:, :, None, :]  # [T, m old, m new, H]
    return short_sum(np.concatenate(((post[:, :, None] * y[:, None, :])[:, None], shares), axis=1), axis=1)


def mixing(trunk: Array, weights: HcWeights, v: View) -> dict[str, Check]:
    """pre, post and comb from the definition: an affine map of the normalised streams, then Sinkhorn."""
    rows, m, width = trunk.shape
    flat = trunk.reshape(rows, m * width)
    fn, base, scale = v.of(weights.fn), v.of(weights.base), v.of(weights.scale)

    def mixes(dot: Dot) -> Array:
        gain = np.repeat(scale, (m, m, m * m))
        mixed: Array = dot(flat, fn) / np.sqrt(mean_square(flat) + weights.norm_eps) * gain + base
        return mixed

    def pre(dot: Dot) -> Array:
        return logistic(mixes(dot)[:, :m]) + weights.hc_eps

    def post(dot: Dot) -> Array:
        return 2.0 * logistic(mixes(dot)[:, m : 2 * m])

    def comb(dot: Dot) -> Array:
        raw = mixes(dot)[:, 2 * m :].reshape(rows, m, m)
        share = np.exp(raw) / np.exp(raw).sum(axis=2, keepdims=True) + weights.hc_eps
        for i in range(2 * weights.iters - 1):  # columns and rows in turn, columns first and last
            share = share / (share.sum(axis=1 + i % 2, keepdims=True) + weights.hc_eps)
        flat_share: Array = share.reshape(rows, m * m)
        return flat_share

    combined = accumulated(comb, 4)
    shape = (rows, m, m)
    checks: dict[str, Check] = {"pre": accumulated(pre, 4), "post": accumulated(post, 4)}
    return checks | {"comb": type(combined)(combined.value.reshape(shape), combined.floor[:, :, None], 4)}


@derives("hc_mix")
def hc_mix(v: View, got: dict[str, Any]) -> dict[str, Check]:
    return mixing(v["trunk"], v.raw["weights"], v)


def entered(trunk: Array, pre: Array, v: View, got: dict[str, Any]) -> dict[str, Check]:
    """Collapse with the previous coefficients, round, normalise; new coefficients from the streams."""
    weights = v.raw["weights"]
    value, lost = collapsed(trunk, pre)
    x, gain = round_bf16(value), v["norm_weight"]
    scale = np.abs(gain) / np.sqrt(mean_square(x) + weights.norm_eps)  # what the norm makes of a loss before it
    mix = {f"mix.{name}": check for name, check in mixing(trunk, weights, v).items()}
    return {
        "x": Ulps(normalise(x, gain, weights.norm_eps), 2, floor=lost * scale),
        "xq": Quantised(*encode(v.of(got["x"]), "mxfp8"), "mxfp8"),
        **mix,
    }


@derives("hc_enter")
def hc_enter(v: View, got: dict[str, Any]) -> dict[str, Check]:
    return entered(v["trunk"], v["pre_prev"], v, got)


@derives("hc_step")
def hc_step(v: View, got: dict[str, Any]) -> dict[str, Check]:
    mix = v.raw["mix"]
    trunk, lost = left(v["y"], v["trunk"], v.of(mix.post), v.of(mix.comb))
    return {"trunk": Ulps(trunk, 1, floor=lost)} | entered(v.of(got["trunk"]), v.of(mix.pre), v, got)
