"""Measures the CPU backend: ``python -m benchmarks.cpu`` from the root of the repository.

Every part runs in a process of its own with the same number of threads.  Writes JSON with ``--json`` and the page with
``--write``; ``--page-from`` makes the page from an earlier JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.cpu import sizes, weights
from benchmarks.cpu.page import write_page
from benchmarks.cpu.peers.install import PEERS, run
from benchmarks.cpu.settings import Settings, quick
from benchmarks.cpu.startup import startup

STAGES = ("info", "memory", "ops", "decode", "prefill")
PEER_SIZE = "mid"  # also that of the long contexts
FORMAT = 2  # of the JSON: times and bandwidths of single rounds stand in it
PARTS = ("products", "sizes", "context", "startup")


def stage(name: str, size: str, settings: Settings) -> dict[str, Any]:
    """What a worker process found; an ``error`` with the last line it said if it failed."""
    environment = os.environ | {"OMP_NUM_THREADS": str(settings.threads)}
    words = [sys.executable, "-m", "benchmarks.cpu.worker", name, size, settings.to_json()]
    started = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=sizes.ROOT)
    print(f"{name} {size}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"status {done.returncode}"
        print(f"  failed: {reason}", file=sys.stderr)
        return {"errors": {name: reason}}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(settings: Settings, chosen: list[str], parts: list[str], peers: list[str]) -> dict[str, Any]:
    """Everything asked for, by part."""
    result: dict[str, Any] = {"format": FORMAT, "settings": dataclasses.asdict(settings)}
    result |= stage("machine", "-", settings)
    known = dataclasses.replace(settings, peak=float(result["machine"]["gemm_f32"]["best"]))
    if "products" in parts:
        result |= stage("products", "-", known)
    result["sizes"] = {}
    for size in chosen if "sizes" in parts else []:
        weights.ensure(size)
        row: dict[str, Any] = {"about": sizes.ABOUT[size], "config": _config(size), "errors": {}}
        for name in (*STAGES, "beside") if size == PEER_SIZE else STAGES:
            found = stage(name, size, known)
            row["errors"] |= found.pop("errors", {})
            row |= found
        result["sizes"][size] = row
    if "context" in parts:
        result |= stage("context", PEER_SIZE, known)
    if "startup" in parts:
        result |= startup(settings.rounds)
    result["peers"] = beside_peers(known, peers) if peers else []
    return result


def beside_peers(settings: Settings, peers: list[str]) -> list[dict[str, Any]]:
    """Each peer with what Tandem did just before and just after it: the machine is not the same all the time."""
    weights.ensure(PEER_SIZE)
    found, before = [], stage("beside", PEER_SIZE, settings)
    for name in peers:
        started = time.perf_counter()
        row = run(name, settings)
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        after = stage("beside", PEER_SIZE, settings)
        found.append(row | {"own": [own["beside"] for own in (before, after) if "beside" in own]})
        before = after
    return found


def _config(size: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((weights.ensure(size) / "config.json").read_text(encoding="utf-8"))
    return raw


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=sizes.NAMES,
        default=list(sizes.NAMES),
        help="default: all; wide takes 7 GB of disk and memory",
    )
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=[], help="installed where needed")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of every engine (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="few rounds, shorter prompts and contexts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("--page-from", type=Path, nargs="+", metavar="FILE", help="measure nothing; later files win")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the page, with plots in a folder beside it")
    parser.add_argument("--delete", action="store_true", help="remove the synthetic checkpoints at the end")
    return parser.parse_args()


def main() -> None:
    """Run the command."""
    arguments = _arguments()
    if arguments.page_from:
        result = _merged([json.loads(path.read_text(encoding="utf-8")) for path in arguments.page_from])
    else:
        settings = quick(arguments.threads) if arguments.quick else Settings(arguments.threads)
        result = measure(settings, arguments.sizes, arguments.parts, arguments.peers)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if arguments.write:
        write_page(result, arguments.write)
    if not (arguments.json or arguments.write):
        print(json.dumps(result))
    if arguments.delete:
        weights.delete()


def _merged(results: list[dict[str, Any]]) -> dict[str, Any]:
    """One result of runs that measured different parts; sizes and peers are joined by name."""
    merged: dict[str, Any] = {"sizes": {}, "peers": []}
    for result in results:
        if result.get("format") != FORMAT:
            raise SystemExit(f"a file is not of format {FORMAT}: it was written by another version; measure again")
        named = {row["peer"]: row for row in (*merged["peers"], *result.get("peers", []))}
        own = merged["sizes"] | result.get("sizes", {})
        merged = merged | result | {"sizes": own, "peers": list(named.values())}
    return merged


if __name__ == "__main__":
    main()
