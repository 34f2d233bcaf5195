"""What running steps behind each other hides on the CPU backend: scheduler.overlap on and off, side by side.

The two take turns, round by round, in one process for each number of threads.  Where a step is computed by the same
processors that schedule it, there is little to hide; on a device of its own a step hides all that the host does.
Prints medians with the range over rounds; ``--json`` for machines.

Usage: python benchmarks/overlap.py [--model DIR] [--batches 1 8 32] [--drafts 0 5] [--threads 1 2] [--rounds 7]
       [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from rounds import decode, machine, open_llm, spread
from tqdm import tqdm

TOKENS = 64


def measure(model: str | None, batches: list[int], drafts: list[int], rounds: int) -> list[dict[str, Any]]:
    """One row for each batch and number of drafts."""
    rows = []
    bar = tqdm(total=len(batches) * len(drafts) * (rounds + 1), unit=" rounds", disable=None)
    for count in drafts:
        own = {"speculation.draft_tokens": count}
        engines = {
            mode: open_llm(model, max(batches), TOKENS, own | {"scheduler.overlap": mode}) for mode in ("off", "on")
        }
        for batch in batches:
            found: dict[str, list[dict[str, float]]] = {mode: [] for mode in engines}
            for number in range(rounds + 1):
                results = {mode: decode(llm, batch, TOKENS, 0.0, number) for mode, llm in engines.items()}
                if len({str(result.first_tokens[0][:16]) for result in results.values()}) > 1:
                    raise SystemExit("the two ways of running give different tokens")
                for mode, result in results.items() if number else ():
                    parts = {name: 1e3 * seconds / result.steps for name, seconds in result.parts.items()}
                    step = 1e3 * result.seconds / result.steps
                    cpu = 1e3 * result.cpu_seconds / result.steps
                    found[mode].append(parts | {"step": step, "cpu": cpu, "rate": result.rate})
                bar.update()
            ratios = [on["rate"] / off["rate"] for on, off in zip(found["on"], found["off"], strict=True)]
            modes = {mode: {name: spread([r[name] for r in got]) for name in got[0]} for mode, got in found.items()}
            rows.append({"batch": batch, "drafts": count, "ratio": spread(ratios), **modes})
        for llm in engines.values():
            llm.close()
    bar.close()
    return rows


def run_with(threads: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure in a process of its own, for OpenMP reads its number of threads once."""
    command = [sys.executable, __file__, "--inside", "--json", "--rounds", str(arguments.rounds)]
    command += ["--batches", *map(str, arguments.batches), "--drafts", *map(str, arguments.drafts)]
    command += ["--model", arguments.model] if arguments.model else []
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    found = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(found)
    return result


def table(results: list[dict[str, Any]]) -> str:
    """A line for each row and mode."""
    lines = []
    for result in results:
        lines.append(result["machine"])
        lines.append(
            "batch drafts overlap  tokens/s              range  on/off            range  step ms  CPU ms"
            "  schedule  forward  sample  deliver"
        )
        for row in result["rows"]:
            for mode in ("off", "on"):
                part, ratio = row[mode], row["ratio"]
                rate = part["rate"]
                gain = f"{ratio['median']:6.3f} {ratio['min']:7.3f}-{ratio['max']:7.3f}" if mode == "on" else " " * 22
                lines.append(
                    f"{row['batch']:5d} {row['drafts']:6d} {mode:>7} {rate['median']:9.1f} "
                    f"{rate['min']:8.1f}-{rate['max']:8.1f}  {gain} "
                    f"{part['step']['median']:8.2f}{part['cpu']['median']:8.2f}"
                    + "".join(
                        f"{part[name]['median']:{width}.3f}"
                        for name, width in (("schedule", 10), ("forward", 9), ("sample", 8), ("deliver", 9))
                    )
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", metavar="DIR", help="default: the small model that comes with Tandem")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 5])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of OpenMP (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        rows = measure(arguments.model, arguments.batches, arguments.drafts, arguments.rounds)
        print(json.dumps({"machine": machine(), "rows": rows}))
        return
    results = [run_with(threads, arguments) for threads in arguments.threads]
    print(json.dumps(results) if arguments.json else table(results))


if __name__ == "__main__":
    main()
