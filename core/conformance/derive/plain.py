"""Derivations of embedding, norms, rotation, formats and products."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.conformance.compare import Array, Exact, Mismatch, Quantised, Ulps
from tandem.conformance.derive.base import Check, Dot, View, accumulated, derives, normalise, rotate, rotation_loss
from tandem.conformance.formats import E2M1, E4M3, UE8M0, encode, round_bf16


@derives("embed")
def embed(v: View, got: dict[str, Any]) -> dict[str, Check]:
    table = v["table"]
    rows = [table[i] for i in v["ids"]]
    if v.raw.get("override") is not None:
        replacement = round_bf16(v["override"])
        rows = [replacement[j] if j >= 0 else row for row, j in zip(rows, v["override_index"], strict=True)]
    return {"x": Exact(np.stack(rows))}


@derives("gather_rows")
def gather_rows(v: View, got: dict[str, Any]) -> dict[str, Check]:
    x = v["x"]
    return {"rows": Exact(np.stack([x[i] if i >= 0 else np.zeros_like(x[0]) for i in v["index"]]))}


@derives("scatter_rows")
def scatter_rows(v: View, got: dict[str, Any]) -> dict[str, Check]:
    x = v["x"].copy()
    for i, row in zip(v["index"], v["values"], strict=True):
        if i >= 0:
            x[i] = row
    return {"x": Exact(x[:-1])}


@derives("rms_norm")
def rms_norm(v: View, got: dict[str, Any]) -> dict[str, Check]:
    weight = None if v.raw["weight"] is None else v["weight"]
    checks: dict[str, Check] = {"y": Ulps(normalise(v["x"], weight, v.raw["eps"]), 1)}
    if v.raw["quant"]:
        checks["yq"] = Quantised(*encode(v.of(got["y"]), "mxfp8"), "mxfp8")
    return checks


@derives("rope")
def rope(v: View, got: dict[str, Any]) -> dict[str, Check]:
    x, cos_sin = v["x"], v["cos_sin"]
    return {"y": Ulps(rotate(x, cos_sin, v.raw.get("inverse", False)), 1, floor=rotation_loss(x, cos_sin))}


@derives("quantize")
def quantize(v: View, got: dict[str, Any]) -> dict[str, Check]:
    fmt = v.raw["fmt"].value
    codes, scales = encode(v["x"], fmt)
    found = got["q"]
    if not ((found.data.numpy() == codes).all() and (found.scale.numpy() == scales).all()):
        raise Mismatch("quantize q: bits of the codes or scales differ")
    return {"q": Quantised(codes, scales, fmt)}


@derives("dequantize")
def dequantize(v: View, got: dict[str, Any]) -> dict[str, Check]:
    plain = v.raw["q"]
    data, scale, fmt = plain.data.tolist(), plain.scale.tolist(), plain.fmt.value
    rows = []
    for codes, scales in zip(data, scale, strict=True):
        if fmt == "mxfp8":
            rows.append([E4M3[c] * UE8M0[scales[i // 32]] for i, c in enumerate(codes)])
            continue
        nibbles = [n for byte in codes for n in (byte % 16, byte // 16)]
        table, group = (E4M3, 16) if fmt == "nvfp4" else (UE8M0, 32)
        rows.append([E2M1[n] * table[scales[i // group]] for i, n in enumerate(nibbles)])
    return {"x": Exact(np.array(rows))}


@derives("linear")
def linear(v: View, got: dict[str, Any]) -> dict[str, Check]:
    x, w = v["x"], v["weight"]
    return {"y": accumulated(lambda dot: dot(x, w))}


@derives("group_linear")
def group_linear(v: View, got: dict[str, Any]) -> dict[str, Check]:
    x, w = v["x"], v["weight"]
    depth = w.shape[2]

    def compute(dot: Dot) -> Array:
        return np.concatenate([dot(x[:, g * depth : (g + 1) * depth], w[g]) for g in range(w.shape[0])], axis=1)

    return {"y": accumulated(compute)}
