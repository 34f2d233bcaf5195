"""`tandem bench prefix-trace`: hit rates of prefix caches of several sizes over a request trace."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from typing import Any

from tqdm import tqdm

from tandem.cache.trace import TRACE_BLOCK, TraceResult, read_trace, replay
from tandem.cli.options import positive
from tandem.errors import ConfigError

BLOCKS = (1000, 3000, 10_000, 30_000, 100_000)


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "prefix-trace", help="hit rates of the prefix cache over a request trace; needs no model"
    )
    parser.add_argument("file", help="JSON lines with input_length and hash_ids, one for each 512 tokens")
    parser.add_argument(
        "--blocks",
        type=positive,
        nargs="+",
        default=list(BLOCKS),
        help=f"sizes of the cache in blocks of {TRACE_BLOCK} tokens (%(default)s)",
    )
    parser.add_argument(
        "--ends", type=positive, nargs="+", help="most prompts' ends whose window pages are kept; default: all"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay the trace at each size and print what was hit.

    Raises:
        ConfigError: the trace cannot be used.
    """
    trace = read_trace(arguments.file)
    if not trace:
        raise ConfigError(
            "a request trace is empty", where=arguments.file, why="it has no line", fix="give one with requests"
        )
    rows = []
    for ends in arguments.ends or [None]:
        for blocks in arguments.blocks:
            started = time.perf_counter()
            for result in tqdm(replay(trace, blocks, ends), total=len(trace), unit=" requests", disable=None):
                last = result
            rows.append((last, time.perf_counter() - started))
    if arguments.json:
        print(json.dumps([dataclasses.asdict(r) | {"hit_rate": r.hit_rate, "seconds": s} for r, s in rows]))
    else:
        print(_table(arguments.file, rows))
    return 0


def _table(name: str, rows: list[tuple[TraceResult, float]]) -> str:
    head = ("blocks", "ends", "requests", "too long", "hits", "tokens", "hit tokens", "hit rate", "evicted", "seconds")
    lines = [f"{name}, blocks of {TRACE_BLOCK} tokens", "  ".join(f"{name:>10}" for name in head)]
    for result, seconds in rows:
        cells = (
            result.blocks,
            "all" if result.ends is None else result.ends,
            result.requests,
            result.too_long,
            result.hits,
            result.tokens,
            result.hit_tokens,
            f"{result.hit_rate:.2%}",
            result.evicted_blocks,
            f"{seconds:.1f}",
        )
        lines.append("  ".join(f"{cell!s:>10}" for cell in cells))
    return "\n".join(lines)
