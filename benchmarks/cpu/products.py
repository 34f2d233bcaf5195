"""Products with weights far larger than the caches, by format and number of rows: the GEMV and GEMM ops alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cpu.floors import stored_bytes
from benchmarks.cpu.machine import summary
from benchmarks.cpu.peers.stream import Stream, beside
from benchmarks.cpu.settings import Settings
from tandem.contract.backend import Backend
from tandem.contract.plan import Plan, weight_attrs
from tandem.contract.registry import open_backend
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, WeightKind

ROWS = (1, 8, 64, 512)
TOTAL_BYTES = 384 << 20  # weights of one format that are read in turn
LEAST_S = 0.4  # of the rounds of a product
WIDTH, DEPTH = 4096, 5120  # of one matrix; the official hidden size deep
KINDS = (
    ("linear", QFormat.BF16),
    ("linear", QFormat.FP8_BLOCK32),
    ("grouped_linear", QFormat.MXFP4),
)


def products(settings: Settings) -> dict[str, Any]:
    """Seconds of one product by op, format and rows, with its bytes and FLOPs, and the bandwidth beside each round."""
    backend, stream = open_backend("cpu"), Stream(settings.threads)
    plan = Plan(backend)
    found = []
    try:
        for op, fmt in KINDS:
            per_matrix = stored_bytes(fmt, WIDTH, DEPTH)
            count = max(2, round(TOTAL_BYTES / per_matrix))
            weights = [_weight(backend, op, fmt, seed) for seed in range(count)]
            for rows in ROWS:
                _runner(plan, op, weights[:1], rows)()  # what kernels need only the first time
                run = _replayed(backend, _runner(plan, op, weights, rows))
                rounds = beside(stream, run, settings.rounds, LEAST_S)
                rounds["seconds"] = [t / count for t in rounds["seconds"]]
                found.append(
                    {"op": op, "format": fmt.value, "rows": rows, "nbytes": per_matrix, "rounds": rounds,
                     "flops": 2.0 * rows * WIDTH * DEPTH, "seconds": summary(rounds["seconds"])}
                )  # fmt: skip
            del weights, run
    finally:
        stream.close()
        backend.close()
    return {"products": found}


def _weight(backend: Backend, op: str, fmt: QFormat, seed: int) -> PackedWeight:
    """One packed matrix of random codes; of an expert op a stack of one."""
    generator = torch.Generator().manual_seed(seed)
    kind, lead = (WeightKind.LINEAR, ()) if op == "linear" else (WeightKind.EXPERTS, (1,))
    shape = (*lead, WIDTH, DEPTH)
    if fmt is QFormat.BF16:
        data = (torch.randn(shape, generator=generator) * DEPTH**-0.5).to(torch.bfloat16)
        return backend.pack_weight(kind, CanonicalWeight(data, None, fmt), shape)
    packed = fmt is QFormat.MXFP4
    stored = (*lead, WIDTH, DEPTH // 2) if packed else shape
    codes = torch.randint(0, 256 if packed else 0x70, stored, dtype=torch.uint8, generator=generator)
    grid = (*lead, WIDTH, DEPTH // 32) if packed else (*lead, WIDTH // 32, DEPTH // 32)
    scale = torch.full(grid, 118, dtype=torch.uint8)
    return backend.pack_weight(kind, CanonicalWeight(codes, scale, fmt), shape)


def _runner(plan: Plan, op: str, weights: list[PackedWeight], rows: int) -> Callable[[], object]:
    """Calls the op once with every weight."""
    values = torch.randn((rows, DEPTH), generator=torch.Generator().manual_seed(rows)).to(torch.bfloat16)
    quantised = plan.bind("quantize", "benchmark", fmt="mxfp8")(values, QFormat.MXFP8)
    if op == "linear":
        plain = weights[0].fmt is QFormat.BF16
        x, kind = (values, "bf16") if plain else (quantised, "mxfp8")
        linear = plan.bind("linear", "benchmark", x=kind, out="bf16", **weight_attrs(weights[0]))
        return lambda: _each(weights, lambda weight: linear(x, weight, torch.bfloat16))
    ends = torch.tensor([rows], dtype=torch.int32)
    grouped = plan.bind("grouped_linear", "benchmark", x="mxfp8", **weight_attrs(weights[0]))
    return lambda: _each(weights, lambda weight: grouped(quantised, weight, ends))


def _each(weights: list[PackedWeight], call: Callable[[PackedWeight], object]) -> None:
    """Results are dropped one by one, so that they share their memory as those of a step do."""
    for weight in weights:
        call(weight)


def _replayed(backend: Backend, run: Callable[[], object]) -> Callable[[], object]:
    """The calls as a decode step makes them: from a recording, if there are any.  Python takes 11 us for each else."""
    return backend.capture(run).replay if backend.caps.graphs else run
