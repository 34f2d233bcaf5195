"""Figures that follow from what was measured: floors, shares of them, ratios."""

from __future__ import annotations

from typing import Any

from benchmarks.cpu import floors
from benchmarks.cpu.peers.dims import MID
from tandem.model.config import ModelConfig

Result = dict[str, Any]


def experts_of(result: Result, size: str, batch: int) -> list[float]:
    """Distinct experts by layer that were seen at a batch; where none were, those of uniform routing."""
    for row in result["sizes"][size].get("ops", {}).get("decode", []):
        if row["batch"] == batch and row["experts"]:
            return [float(value) for value in row["experts"]]
    text = config_of(result, size).text
    one = floors.expected_experts(text.n_routed_experts, text.num_experts_per_tok, batch)
    return [one] * text.num_hidden_layers


def config_of(result: Result, size: str) -> ModelConfig:
    """The configuration of a measured size."""
    return ModelConfig.from_dict(result["sizes"][size]["config"])


def decode_rows(result: Result, size: str) -> list[dict[str, Any]]:
    """Each batch with its bytes, least seconds and share of that floor."""
    config, rows = config_of(result, size), []
    for row in result["sizes"][size].get("decode", []):
        batch, context = row["batch"], row["context"]
        parts = floors.decode_bytes(config, batch, context, experts_of(result, size, batch))
        least = floors.floor_seconds(
            parts.total, floors.decode_flops(config.text, batch, context), result["machine"]
        )
        rows.append(row | {"bytes": parts.to_dict(), "floor_s": least, "share": least / row["step_s"]["median"]})
    return rows


def prefill_rows(result: Result, size: str) -> list[dict[str, Any]]:
    """Each prompt length with its least seconds and share of the fp32 peak."""
    peak, rows = result["machine"]["gemm_f32"]["best"], []
    for row in result["sizes"][size].get("prefill", []):
        least = row["flops"] / peak
        rows.append(row | {"floor_s": least, "share": least / row["first_token_s"]["median"]})
    return rows


def product_rows(result: Result) -> list[dict[str, Any]]:
    """Each product op with its least seconds and share of them."""
    rows = []
    for row in result.get("products", []):
        least = floors.floor_seconds(row["nbytes"], row["flops"], result["machine"])
        rows.append(row | {"floor_s": least, "share": least / row["seconds"]["median"]})
    return rows


def outside_share(row: dict[str, Any], overhead_s: float) -> float:
    """Share of a metered step outside ops, what metering itself costs taken off."""
    metering = row["calls"] * overhead_s
    return float((row["step_s"] - row["in_ops_s"] - metering) / (row["step_s"] - metering))


def memory_ratio(row: dict[str, Any], name: str = "private_bytes") -> float:
    """A peak of growth over stored weights and caches."""
    return float(row[name] / (row["weight_bytes"] + row["cache_bytes"]))


def ceiling(row: dict[str, Any], batch: int, result: Result) -> float:
    """Tokens per second at which the weights of a peer's decode step are read at the stream bandwidth."""
    used = floors.expected_experts(MID.experts, MID.top_k, batch) / MID.experts
    return batch * floors.bandwidth(result["machine"]) / float(row["dense_bytes"] + row["expert_bytes"] * used)


def active(row: dict[str, Any], kind: str) -> float:
    """Parameters or bytes that one token uses."""
    return float(row[f"dense_{kind}"] + row[f"expert_{kind}"] * MID.top_k / MID.experts)


def peer_rows(result: Result) -> list[dict[str, Any]]:
    """Every variant that ran, with its peer's name."""
    return [
        {"peer": peer["peer"]} | row
        for peer in result.get("peers", [])
        for row in peer.get("rows", [])
        if "error" not in row
    ]


def context_rows(result: Result, size: str) -> list[dict[str, Any]]:
    """Each context with the least seconds of a step behind it."""
    config, rows = config_of(result, size), []
    for row in result.get("context", {}).get("rows", []):
        parts = floors.decode_bytes(config, 1, row["context"], experts_of(result, size, 1))
        rows.append(row | {"floor_s": parts.total / floors.bandwidth(result["machine"])})
    return rows
