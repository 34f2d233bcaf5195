"""The goals of issue 8, judged by what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.cpu import derive
from benchmarks.cpu.derive import Result

LAYOUT_TOLERANCE = 1e-6
PEER_SIZE = "mid"


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal.

    Args:
        text: what is asked.
        wanted: the bound, in the unit of ``found``.
        found: the figure; None where it was not measured.
        unit: ``%``, ``x``, ``s`` or ``bytes``.
        at_least: whether more is better.
    """

    text: str
    wanted: float
    found: float | None
    unit: str
    at_least: bool

    @property
    def verdict(self) -> str:
        """``met``, ``not met`` or ``not measured``."""
        if self.found is None:
            return "not measured"
        good = self.found >= self.wanted if self.at_least else self.found <= self.wanted
        return "met" if good else "not met"


def goals(result: Result) -> list[Goal]:
    """All of them, in the order of the issue."""
    found = [*_products(result), *_decode(result), *_prefill(result), *_outside(result), *_memory(result)]
    return [*found, *_peers(result), *_cache(result), *_startup(result)]


def _products(result: Result) -> Iterator[Goal]:
    shares = {row["format"]: row["share"]["median"] for row in derive.product_rows(result) if row["rows"] == 1}
    for fmt, wanted in (("mxfp4", 0.8), ("bf16", 0.8), ("fp8_block32", 0.7)):
        yield Goal(f"{fmt} GEMV op, share of the stream floor", wanted, shares.get(fmt), "%", True)


def _decode(result: Result) -> Iterator[Goal]:
    for size in result["sizes"]:
        shares = {row["batch"]: row["share"]["median"] for row in derive.decode_rows(result, size)}
        yield Goal(f"whole decode step, {size}, batch 1, share of its floor", 0.6, shares.get(1), "%", True)


def _prefill(result: Result) -> Iterator[Goal]:
    for size in result["sizes"]:
        for row in derive.prefill_rows(result, size):
            if row["tokens"] >= 512:
                text = f"prefill, {size}, {row['tokens']} tokens, share of the fp32 GEMM peak"
                yield Goal(text, 0.6, row["share"], "%", True)


def _outside(result: Result) -> Iterator[Goal]:
    """Of steps as they run, replayed, and not of the eager ones that the tables of ops come from."""
    rows = result["sizes"].get(PEER_SIZE, {}).get("decode", [])
    shares = {row["batch"]: row["outside"]["median"] for row in rows if "outside" in row}
    for batch, wanted in ((1, 0.1), (8, 0.05)):
        text = f"work outside ops, {PEER_SIZE}, batch {batch}, share of a replayed step"
        yield Goal(text, wanted, shares.get(batch), "%", False)


def _memory(result: Result) -> Iterator[Goal]:
    for size, row in result["sizes"].items():
        found = derive.memory_ratio(row["memory"]) if "memory" in row else None
        yield Goal(f"peak private memory, {size}, over stored weights and caches", 1.15, found, "x", False)
        found = derive.memory_ratio(row["memory"], "peak_bytes") if "memory" in row else None
        yield Goal(f"peak memory with pages of files, {size}, over the same", 1.15, found, "x", False)


def _peers(result: Result) -> Iterator[Goal]:
    rows = derive.peer_rows(result)

    def against(figure: str, peer: str | None = None, variant: str | None = None) -> float | None:
        """Tandem over the best of the rows named."""
        named = [row for row in rows if peer in (None, row["peer"]) and variant in (None, row["variant"])]
        ratios = [ratio for row in named if (ratio := derive.ratio(row, figure)) is not None]
        return min(ratios, default=None)

    for variant, wanted in (("q4_0", 1.5), ("q8_0", 1.7), ("bf16", 2.5)):
        found = against("decode_1", "llama-cpp", variant)
        yield Goal(f"decode, batch 1, against llama.cpp {variant}", wanted, found, "x", True)
    yield Goal("decode, batch 8, against the best peer", 2.0, against("decode_8"), "x", True)
    yield Goal("prefill, 512 tokens, against the best peer", 2.0, against("prefill_1"), "x", True)
    yield Goal("prefill, 8 x 128 tokens, against the best peer", 2.0, against("prefill_8"), "x", True)
    for batch in (1, 8):
        found = against(f"decode_{batch}", "transformers")
        yield Goal(f"decode, batch {batch}, against transformers", 10.0, found, "x", True)


def _cache(result: Result) -> Iterator[Goal]:
    cache = result.get("context", {}).get("cache")
    found = abs(cache["bytes_per_token"] / cache["layout"] - 1) if cache else None
    text = "cache bytes per token, distance from the layout's figure (rounding aside)"
    yield Goal(text, LAYOUT_TOLERANCE, found, "%", False)


def _startup(result: Result) -> Iterator[Goal]:
    times = result.get("startup", {})
    for name, wanted in (("tandem doctor", 1.0), ("first token", 3.0), ("import tandem", 0.3)):
        found = times[name]["median"] if name in times else None
        yield Goal(f"{name}, a fresh process", wanted, found, "s", False)
