"""Derivations of the hyper-connection ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.conformance.compare import Array, Exact, Quantised, Ulps
from tandem.conformance.derive.base import Check, Dot, View, accumulated, derives, logistic, mean_square, normalise
from tandem.conformance.formats import encode, round_bf16
from tandem.contract.types import HcWeights


@derives("hc_expand")
def hc_expand(v: View, got: dict[str, Any]) -> dict[str, Check]:
    return {"trunk": Exact(np.stack([v["x"]] * v.raw["m"], axis=1))}


@derives("hc_collapse")
def hc_collapse(v: View, got: dict[str, Any]) -> dict[str, Check]:
    return {"x": Ulps(np.einsum("tm,tmh->th", v["pre"], v["trunk"]), 1)}


@derives("hc_mean")
def hc_mean(v: View, got: dict[str, Any]) -> dict[str, Check]:
    return {"x": Ulps(v["trunk"].mean(axis=1), 1)}


@derives("hc_post")
def hc_post(v: View, got: dict[str, Any]) -> dict[str, Check]:
    return {"trunk": Ulps(left(v["y"], v["trunk"], v["post"], v["comb"]), 1)}


def left(y: Array, trunk: Array, post: Array, comb: Array) -> Array:
    """The streams after a sub-layer: each takes its share of the output and of all old streams."""
    streams: Array = post[:, :, None] * y[:, None, :] + np.einsum("tij,tih->tjh", comb, trunk)
    return streams


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
    collapsed = round_bf16(np.einsum("tm,tmh->th", pre, trunk))
    mix = {f"mix.{name}": check for name, check in mixing(trunk, weights, v).items()}
    return {
        "x": Ulps(normalise(collapsed, v["norm_weight"], weights.norm_eps), 2),
        "xq": Quantised(*encode(v.of(got["x"]), "mxfp8"), "mxfp8"),
        **mix,
    }


@derives("hc_enter")
def hc_enter(v: View, got: dict[str, Any]) -> dict[str, Check]:
    return entered(v["trunk"], v["pre_prev"], v, got)


@derives("hc_step")
def hc_step(v: View, got: dict[str, Any]) -> dict[str, Check]:
    mix = v.raw["mix"]
    trunk = left(v["y"], v["trunk"], v.of(mix.post), v.of(mix.comb))
    return {"trunk": Ulps(trunk, 1)} | entered(v.of(got["trunk"]), v.of(mix.pre), v, got)
