"""Figures that follow from what was measured: floors, shares of them, ratios."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.cpu import floors
from benchmarks.cpu.machine import summary
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


def against_floor(rounds: dict[str, list[float]], nbytes: float, flops: float, result: Result) -> dict[str, Any]:
    """The floor of each round by the bandwidth beside it, and the shares of the floors that the rounds reached.

    Returns:
        floor_s: median of the floors.  share: median and range of floor over time.  bandwidth: of the rounds.
    """
    peak = float(result["machine"]["gemm_f32"]["best"])
    least = [floors.floor_seconds(nbytes, flops, bandwidth, peak) for bandwidth in rounds["bandwidth"]]
    shares = [floor / seconds for floor, seconds in zip(least, rounds["seconds"], strict=True)]
    return {
        "floor_s": statistics.median(least),
        "share": summary(shares),
        "bandwidth": summary(rounds["bandwidth"]),
    }


def decode_rows(result: Result, size: str) -> list[dict[str, Any]]:
    """Each batch with its bytes, least seconds and share of them."""
    config, rows = config_of(result, size), []
    for row in result["sizes"][size].get("decode", []):
        batch, context = row["batch"], row["context"]
        parts = floors.decode_bytes(config, batch, context, experts_of(result, size, batch))
        flops = floors.decode_flops(config.text, batch, context)
        rows.append(row | {"bytes": parts.to_dict()} | against_floor(row["rounds"], parts.total, flops, result))
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
    return [
        row | against_floor(row["rounds"], row["nbytes"], row["flops"], result) for row in result.get("products", [])
    ]


def outside_share(row: dict[str, Any], overhead_s: float) -> float:
    """Share of a metered, eager step outside ops, what metering itself costs taken off."""
    metering = row["calls"] * overhead_s
    return float((row["step_s"] - row["in_ops_s"] - metering) / (row["step_s"] - metering))


def memory_ratio(row: dict[str, Any], name: str = "private_bytes") -> float:
    """A peak of growth over stored weights and caches."""
    return float(row[name] / (row["weight_bytes"] + row["cache_bytes"]))


def ceiling(row: dict[str, Any], batch: int) -> float:
    """Tokens per second at which the weights of an engine's decode step are read at the bandwidth beside its rounds."""
    used = floors.expected_experts(MID.experts, MID.top_k, batch) / MID.experts
    return batch * float(row[f"bandwidth_{batch}"]["median"]) / float(row["dense_bytes"] + row["expert_bytes"] * used)


def active(row: dict[str, Any], kind: str) -> float:
    """Parameters or bytes that one token uses."""
    return float(row[f"dense_{kind}"] + row[f"expert_{kind}"] * MID.top_k / MID.experts)


def peer_rows(result: Result) -> list[dict[str, Any]]:
    """Every variant that ran, with its peer's name and Tandem's own figures before and after it."""
    return [
        {"peer": peer["peer"], "own": peer["own"]} | row
        for peer in result.get("peers", [])
        for row in peer.get("rows", [])
        if "error" not in row
    ]


def ratio(row: dict[str, Any], figure: str) -> float | None:
    """Tandem's figure, the mean of those before and after a peer ran, over the peer's."""
    if figure not in row or not row["own"]:
        return None
    return statistics.mean(float(own[figure]["median"]) for own in row["own"]) / float(row[figure]["median"])


def context_rows(result: Result, size: str) -> list[dict[str, Any]]:
    """Each context with the least seconds of a step behind it."""
    config, rows = config_of(result, size), []
    for row in result.get("context", {}).get("rows", []):
        parts = floors.decode_bytes(config, 1, row["context"], experts_of(result, size, 1))
        flops = floors.decode_flops(config.text, 1, row["context"])
        rows.append(row | against_floor(row["rounds"], parts.total, flops, result))
    return rows
