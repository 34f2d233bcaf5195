"""What drafts are worth: accepted drafts, verified drafts and tokens of a step, and tokens per second against none.

The engines take turns, round by round, and each round is compared with that of plain decoding beside it.  The loss of
coupled acceptance is the share of accepted drafts that it gives up against rejection sampling.  Prints medians with
the range over rounds; ``--json`` for machines, ``--plot FILE`` for a picture.

Usage: python benchmarks/speculation.py [--model DIR] [--drafts 1 2 3 4 5] [--temperatures 0 0.7 1] [--batches 1 8 32]
       [--tokens 64] [--rounds 3] [--json] [--plot FILE]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from rounds import Round, decode, machine, open_llm, spread
from tqdm import tqdm

from tandem import LLM

ACCEPT = ("rejection", "coupled")
COUNTS = ("steps", "tested", "accepted", "emitted")
Key = tuple[int, str]  # drafts, way of accepting


def run_round(llm: LLM, *arguments: Any) -> tuple[Round, dict[str, int]]:
    """A round, and what was counted of drafts in it."""
    before = llm.engine.metrics()["speculation"]
    result = decode(llm, *arguments)
    after = llm.engine.metrics()["speculation"]
    return result, {} if after is None else {name: after[name] - before[name] for name in COUNTS}


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each number of drafts, way of accepting, temperature and batch."""
    keys: list[Key] = [(0, "plain"), *((count, way) for count in arguments.drafts for way in ACCEPT)]
    engines = {}
    for count, way in keys:
        options = {"speculation.draft_tokens": count} | ({"speculation.accept": way} if count else {})
        engines[count, way] = open_llm(arguments.model, max(arguments.batches), arguments.tokens, options)
    rows = []
    cells = [(temperature, batch) for temperature in arguments.temperatures for batch in arguments.batches]
    for llm in engines.values():
        decode(llm, 1, 4, 0.0, 0)  # the first step of an engine is slower
    with tqdm(total=len(cells) * arguments.rounds * len(engines), unit=" rounds", disable=None) as bar:
        for temperature, batch in cells:
            found: dict[Key, list[tuple[Round, dict[str, int]]]] = {key: [] for key in keys}
            for number in range(arguments.rounds):
                for key, llm in engines.items():
                    found[key].append(run_round(llm, batch, arguments.tokens, temperature, 1000 * number))
                    bar.update()
            rows += [summary(key, temperature, batch, found[key], found[keys[0]]) for key in keys]
    for llm in engines.values():
        llm.close()
    return rows


def summary(
    key: Key,
    temperature: float,
    batch: int,
    found: list[tuple[Round, dict[str, int]]],
    plain: list[tuple[Round, dict[str, int]]],
) -> dict[str, Any]:
    """Figures of one cell."""
    count, way = key
    row: dict[str, Any] = {"drafts": count, "accept": way, "temperature": temperature, "batch": batch}
    row["tokens_per_s"] = spread([result.rate for result, _ in found])
    pairs = [(result, base) for (result, _), (base, _) in zip(found, plain, strict=True)]
    row["ratio"] = spread([result.rate / base.rate for result, base in pairs])
    row["cpu_ratio"] = spread(
        [result.tokens / result.cpu_seconds * base.cpu_seconds / base.tokens for result, base in pairs]
    )
    if count:
        row |= {name: sum(counts[name] for _, counts in found) for name in COUNTS}
    return row


def by_law(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drafts of all batches together, for their number decides nothing about them."""
    found = []
    for key in dict.fromkeys((row["temperature"], row["drafts"], row["accept"]) for row in rows if row["drafts"]):
        own = [row for row in rows if (row["temperature"], row["drafts"], row["accept"]) == key]
        steps, tested, accepted, emitted = (sum(row[name] for row in own) for name in COUNTS)
        found.append(
            {
                "temperature": key[0],
                "drafts": key[1],
                "accept": key[2],
                "request_steps": steps,
                "accepted": accepted / steps,
                "verified": tested / steps,
                "tokens_per_step": emitted / steps,
            }
        )
    other = {(row["temperature"], row["drafts"]): row["accepted"] for row in found if row["accept"] == "rejection"}
    for row in found:
        if row["accept"] == "coupled":
            row["loss"] = 1 - row["accepted"] / other[row["temperature"], row["drafts"]]
    return found


def table(result: dict[str, Any]) -> str:
    """Two tables: drafts, and speed."""
    lines = [result["machine"], "", "per request and step, all batches:"]
    lines.append("temperature  drafts  accept     accepted  verified  tokens  loss of coupled  request steps")
    for row in result["drafts"]:
        loss = f"{row['loss']:15.1%}" if "loss" in row else " " * 15
        lines.append(
            f"{row['temperature']:11g}  {row['drafts']:6d}  {row['accept']:9}  {row['accepted']:8.3f}  "
            f"{row['verified']:8.3f}  {row['tokens_per_step']:6.3f}  {loss}  {row['request_steps']:13d}"
        )
    lines += ["", "tokens per second by the clock on the wall, ratio to plain decoding in the same round; and ratio of"]
    lines += ["tokens per second of processor time, which is the same on a machine that does nothing else:"]
    lines.append("temperature  batch  drafts  accept     tokens/s   ratio        range  by CPU        range")
    for row in result["rows"]:
        ratio, cpu = row["ratio"], row["cpu_ratio"]
        lines.append(
            f"{row['temperature']:11g}  {row['batch']:5d}  {row['drafts']:6d}  {row['accept']:9}  "
            f"{row['tokens_per_s']['median']:8.1f}  {ratio['median']:6.2f}  {ratio['min']:5.2f}-{ratio['max']:5.2f}  "
            f"{cpu['median']:6.2f}  {cpu['min']:5.2f}-{cpu['max']:5.2f}"
        )
    return "\n".join(lines)


def plot(result: dict[str, Any], file: str) -> None:
    """Accepted drafts and speed against the number of drafts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4))
    left, right = figure.subplots(1, 2)
    for temperature, accept in dict.fromkeys((row["temperature"], row["accept"]) for row in result["drafts"]):
        own = [r for r in result["drafts"] if (r["temperature"], r["accept"]) == (temperature, accept)]
        style = "-" if accept == "rejection" else "--"
        label = f"{accept}, temperature {temperature:g}"
        left.plot([r["drafts"] for r in own], [r["accepted"] for r in own], style, marker="o", label=label)
    left.set(xlabel="drafts", ylabel="accepted drafts of a request in a step")
    for temperature, batch in dict.fromkeys((row["temperature"], row["batch"]) for row in result["rows"]):
        own = [
            r
            for r in result["rows"]
            if (r["temperature"], r["batch"]) == (temperature, batch) and r["accept"] in ("plain", "rejection")
        ]
        label = f"batch {batch}, temperature {temperature:g}"
        right.plot([r["drafts"] for r in own], [r["cpu_ratio"]["median"] for r in own], marker="o", label=label)
    right.axhline(1.0, linestyle=":", color="grey")
    right.set(xlabel="drafts", ylabel="tokens per CPU second against none (rejection)")
    for axes in (left, right):
        axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", metavar="DIR", help="default: the small model that comes with Tandem")
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="beside none (%(default)s)")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64, help="longest output of a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", metavar="FILE", help="needs matplotlib")
    arguments = parser.parse_args()
    rows = measure(arguments)
    result = {"machine": machine(), "tokens": arguments.tokens, "rounds": arguments.rounds, "rows": rows}
    result["drafts"] = by_law(rows)
    print(json.dumps(result) if arguments.json else table(result))
    if arguments.plot:
        plot(result, arguments.plot)


if __name__ == "__main__":
    main()
