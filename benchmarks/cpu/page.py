"""The page docs/PERFORMANCE.md, from what was measured and a history kept by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu import derive, plots
from benchmarks.cpu.derive import Result
from benchmarks.cpu.goals import Goal, goals
from benchmarks.cpu.peers.install import PEERS

FOLDER = "performance"  # of plots and history, beside the page
OPS_SHOWN = 16
MEMORY = {
    "weight_bytes": "stored weights",
    "held_bytes": "held",
    "cache_bytes": "caches",
    "table_bytes": "resident tables",
    "baseline_bytes": "imports alone",
    "loading_bytes": "peak, loading",
    "loaded_bytes": "loaded, private",
    "peak_bytes": "peak",
    "private_bytes": "peak, private",
    "burst_bytes": "private, 8 prompts at once",
}
HEAD = """# Performance of the CPU backend

Written by `python -m benchmarks.cpu`; only `{folder}/history.md` is kept by hand.  Figures are medians, the range over
rounds in brackets.  A *floor* is the least time that the machine allows: bytes that must be read at the stream
bandwidth, or products at the measured fp32 GEMM peak, whichever is more.  Weights count as stored bytes (fp4 17/32,
fp8 1 + 1/1024, bf16 2 bytes), of experts only those that the step routes to, of the bf16 head its screen up to 16
greedy rows (`head_sample`, half of the bytes).  What fits into the caches, as `nano` does, can be faster than its
floor; and so can products, by twice, where the processor multiplies bf16: the goals are in fp32 peaks, and the kernels
use bf16 products, which are exact for these formats.

The bandwidth of a shared machine changes within minutes.  So a buffer in huge pages is read directly before and after
each round (256 MiB, the best of three passes), and the mean of the two is the bandwidth of that round: the column
*stream*.  A share *of floor* is taken round by round, with the bandwidth of the round itself; shown are median and
range of these shares.  The GEMM peak is measured once, at the start.
"""


def write_page(result: Result, page: Path) -> None:
    """Write the page and its plots."""
    folder = page.parent / FOLDER
    names = plots.draw(result, folder)
    history = folder / "history.md"
    tried = history.read_text(encoding="utf-8") if history.is_file() else "Nothing is recorded.\n"
    page.write_text(render(result, names, tried), encoding="utf-8")


def render(result: Result, names: Sequence[str], history: str) -> str:
    """The text of the page.

    Args:
        result: what was measured.
        names: plots beside the page.
        history: what was tried, as Markdown.
    """
    parts = [HEAD.format(folder=FOLDER), _machine(result), _goals(goals(result)), _products(result)]
    parts += [_size(result, size, names) for size in result["sizes"]]
    parts += [_peers(result, names), _context(result, names), _startup(result)]
    return "\n".join(part for part in parts if part) + f"\n## What was tried\n\n{history}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def spread(value: dict[str, float], scale: float = 1.0, digits: int = 1) -> str:
    """Median and range."""
    low, middle, high = (f"{value[name] * scale:,.{digits}f}" for name in ("min", "median", "max"))
    return f"{middle} ({low} to {high})"


def percent(value: dict[str, float], digits: int = 0) -> str:
    """Median and range of a share."""
    low, middle, high = (f"{value[name]:.{digits}%}" for name in ("min", "median", "max"))
    return f"{middle} ({low} to {high})"


def amount(goal: Goal, value: float | None) -> str:
    """A figure in the unit of its goal."""
    if value is None:
        return ""
    return {"%": f"{value:.1%}", "x": f"{value:.2f}x", "s": f"{value:.2f} s"}[goal.unit]


def _machine(result: Result) -> str:
    machine = result["machine"]
    facts, stream = machine["facts"], machine["stream"]
    caches = ", ".join(f"{name} {size}" for name, size in facts["caches"].items())
    rows = [
        ("processor", f"{facts['processor']} ({facts['family']}), {facts['processors']} processors"),
        ("features", ", ".join(facts["features"])),
        ("caches", caches),
        ("memory", f"{facts['memory_bytes'] / 2**30:.1f} GiB"),
        ("system", f"{facts['system']}, Python {facts['python']}, torch {facts['torch']}"),
        ("threads", f"{facts['threads']}, of every engine here"),
        ("measured", f"{facts['date']}, load average {facts['load']:.1f} before"),
        ("stream read, pages of 4 KiB", _stream(stream["small"], facts["threads"])),
        ("stream read, huge pages", _stream(stream["huge"], facts["threads"]) + _refused(stream)),
        ("stream, how", f"{stream['kernel']}; {stream['buffer_bytes'] >> 20} MiB"),
        ("fp32 GEMM peak", f"{machine['gemm_f32']['best'] / 1e9:.0f} GFLOP/s (torch.mm, best size and round)"),
        ("bf16 GEMM peak", f"{machine['gemm_bf16']['best'] / 1e9:.0f} GFLOP/s"),
    ]  # fmt: skip
    return "## Machine\n\n" + table(("what", "value"), rows)


def _stream(row: dict[str, Any], threads: int) -> str:
    speeds = [f"{spread(row[key], 1e-9)} GB/s" for key in ("one", "all")]
    return f"{speeds[0]} with 1 thread, {speeds[1]} with {threads}"


def _refused(stream: dict[str, Any]) -> str:
    """What the system refused of huge pages, if anything."""
    got, reason = stream["huge"]["huge_bytes"], stream["huge"]["refused"]
    if got == stream["buffer_bytes"]:
        return ""
    return f"; only {got >> 20} MiB of the buffer got huge pages" + (f": {reason}" if reason else "")


def _goals(found: Sequence[Goal]) -> str:
    rows = [
        (goal.text, ("at least " if goal.at_least else "at most ") + amount(goal, goal.wanted),
         amount(goal, goal.found), goal.verdict)
        for goal in found
    ]  # fmt: skip
    count = sum(goal.verdict == "met" for goal in found)
    text = f"## Goals\n\nThose that the backend was built for; {count} of {len(found)} are met.  `{FOLDER}/history.md` "
    text += "says what stands in the way of the others.  Memory goals are for prompts one after the other.\n\n"
    return text + table(("goal", "wanted", "found", "verdict"), rows)


def _products(result: Result) -> str:
    rows = [
        (f"{row['op']} {row['format']}", str(row["rows"]), spread(row["seconds"], 1e6), f"{1e6 * row['floor_s']:.1f}",
         percent(row["share"]), spread(row["bandwidth"], 1e-9), f"{row['nbytes'] / row['seconds']['median'] / 1e9:.1f}",
         f"{row['flops'] / row['seconds']['median'] / 1e9:.0f}")
        for row in derive.product_rows(result)
    ]  # fmt: skip
    if not rows:
        return ""
    text = "## Products alone\n\nOne matrix of 4096 x 5120 a call, many in turn, so that none is in a cache; the calls "
    text += "are replayed from a recording, as in a decode step.\n\n"
    return text + table(("op", "rows", "us", "floor us", "of floor", "stream GB/s", "GB/s", "GFLOP/s"), rows)


def _size(result: Result, size: str, names: Sequence[str]) -> str:
    row = result["sizes"][size]
    parts = [f"## {size}\n\n{row['about'][0].upper()}{row['about'][1:]}.\n"]
    counts = row.get("parameters")
    if counts:
        parts.append(
            f"{counts['text']:,} parameters of the text model ({counts['engram_tables']:,} of them Engram tables), "
            f"{counts['draft']:,} of draft stages, {counts['active']:,} active for a token; {counts['bytes']:,} bytes "
            "stored.\n"
        )
    parts += [f"Failed: {name}: {reason}\n" for name, reason in row["errors"].items()]
    parts += [_decode(result, size), _prefill(result, size), _memory(row), _ops(row, size, names)]
    return "\n".join(part for part in parts if part)


def _decode(result: Result, size: str) -> str:
    rows = []
    for row in derive.decode_rows(result, size):
        experts = derive.experts_of(result, size, row["batch"])
        rows.append(
            (str(row["batch"]), spread(row["tokens_per_s"]), spread(row["step_s"], 1e3, 2),
             f"{1e3 * row['floor_s']:.2f}", percent(row["share"]), spread(row["bandwidth"], 1e-9),
             f"{row['bytes']['total'] / 1e6:.1f}", f"{sum(experts) / len(experts):.1f}",
             percent(row["outside"], 1) if "outside" in row else "")
        )  # fmt: skip
    head = ("batch", "tokens/s", "step ms", "floor ms", "of floor", "stream GB/s", "MB read", "experts a layer",
            "outside ops")  # fmt: skip
    return "Decode, greedy, without drafts:\n\n" + table(head, rows) + _outside(result, size) if rows else ""


def _outside(result: Result, size: str) -> str:
    """What the last column of the decode table is, and what it costs to measure it."""
    rows = [row for row in result["sizes"][size]["decode"] if "outside" in row]
    if not rows:
        return ""
    most = max(row["clock_s"] / row["step_s"]["median"] for row in rows)
    return (
        "\n*Outside ops* is the share of these steps that is not spent inside native calls (replays of recorded steps, "
        f"and calls by themselves).  Timing those calls takes at most {most:.2%} of a step.\n"
    )


def _prefill(result: Result, size: str) -> str:
    narrow = result["machine"]["gemm_f32"]["best"] / result["machine"]["gemm_bf16"]["best"]
    rows = [
        (str(row["tokens"]), str(row["rounds"]), spread(row["tokens_per_s"]), spread(row["first_token_s"], 1e3),
         f"{1e3 * row['floor_s']:.1f}", f"{row['share']:.0%}", f"{row['share'] * narrow:.0%}")
        for row in derive.prefill_rows(result, size)
    ]  # fmt: skip
    head = ("prompt", "rounds", "tokens/s", "first token ms", "floor ms", "of fp32 peak", "of bf16 peak")
    return "Prefill and time to first token, one request:\n\n" + table(head, rows) if rows else ""


def _memory(row: dict[str, Any]) -> str:
    if "memory" not in row:
        return ""
    found = row["memory"]
    values = [f"{found[name] / 1e6:,.1f}" for name in MEMORY]
    text = (
        "Resident memory in MB while 8 requests decode and a prompt of 512 tokens joins them, over what imports take.  "
        "Private memory is told apart from pages of files, which the system drops at will: of the checkpoint while it "
        "is loaded, of libraries' code, of the embedding, which stays mapped, and of Engram tables, which stay so too "
        "and are in no growth.\n\n"
    )
    wanted, whole = derive.memory_ratio(found), derive.memory_ratio(found, "peak_bytes")
    burst = derive.memory_ratio(found, "burst_bytes")
    ratios = (
        f"Over weights and caches: private {wanted:.2f}, with pages of files {whole:.2f}, private with 8 prompts at "
    )
    ratios += f"once {burst:.2f}."
    return f"{text}{table(tuple(MEMORY.values()), [values])}\n{ratios}\n"


def _ops(row: dict[str, Any], size: str, names: Sequence[str]) -> str:
    found = row.get("ops")
    if not found:
        return ""
    parts = ["The tables of ops are of eager steps, each op called and timed by itself from Python; the steps above "
             "are replayed, which takes less.\n"]  # fmt: skip
    for step in (*found["decode"], *found["prefill"]):
        what = f"decode, batch {step['batch']}" if "batch" in step else f"a prompt of {step['tokens']} tokens"
        outside = derive.outside_share(step, found["call_overhead_s"])
        parts.append(
            f"Ops of {what}, eager: {1e3 * step['step_s']:.2f} ms, {step['calls']:.0f} calls, {outside:.1%} outside; "
            f"stream {step['bandwidth'] / 1e9:.1f} GB/s:\n"
        )
        parts.append(_op_table(step))
    plot = f"ops_{size}.png"
    parts += [f"![time of ops of {size} beside their floors]({FOLDER}/{plot})\n"] if plot in names else []
    return "\n".join(parts)


def _op_table(step: dict[str, Any]) -> str:
    rows = []
    for op in step["rows"][:OPS_SHOWN]:
        share = f"{op['floor_s'] / op['seconds']:.0%}" if op["floor_s"] else ""
        rows.append(
            (op["op"], f"{op['calls']:.0f}", f"{1e3 * op['seconds']:.3f}", f"{op['seconds'] / step['step_s']:.1%}",
             f"{op['nbytes'] / 1e6:.3f}", f"{op['flops'] / 1e6:.1f}", f"{1e3 * op['floor_s']:.3f}", share)
        )  # fmt: skip
    rest = step["rows"][OPS_SHOWN:]
    if rest:
        took, calls = sum(op["seconds"] for op in rest), sum(op["calls"] for op in rest)
        share = f"{took / step['step_s']:.1%}"
        rows.append((f"{len(rest)} others", f"{calls:.0f}", f"{1e3 * took:.3f}", share, "", "", "", ""))
    return table(("op", "calls", "ms", "share", "MB", "MFLOP", "floor ms", "of floor"), rows)


def _peers(result: Result, names: Sequence[str]) -> str:
    own = result["sizes"].get("mid", {}).get("beside")
    if not result.get("peers"):
        return ""
    parts = ["## Beside other engines\n\nThe same machine, threads and run; random weights at the dimensions of `mid`. "
             "Prefill is 512 tokens of one request and 8 x 128; decode goes on behind them, greedy.  The ceiling is "
             "the stream bandwidth beside an engine's own rounds over the weights that a step reads, with uniform "
             "routing.\n"]  # fmt: skip
    rows = [_peer_row("Tandem", own)] if own else []
    rows += [_peer_row(row["peer"], row) for row in derive.peer_rows(result)]
    head = ("engine", "weights", "parameters M", "active M", "bits", "active MB", "decode 1", "ceiling", "stream GB/s",
            "decode 8", "ceiling", "stream GB/s", "prefill 1", "prefill 8")  # fmt: skip
    parts.append(table(head, rows))
    parts.append(
        "Tandem's speed over that of each engine; Tandem's is the mean of a run just before and one just after it:\n"
    )
    figures = ("decode_1", "decode_8", "prefill_1", "prefill_8")
    rows = [[row["peer"], row["variant"], *(_times(derive.ratio(row, name)) for name in figures)]
            for row in derive.peer_rows(result)]  # fmt: skip
    parts.append(table(("engine", "weights", "decode 1", "decode 8", "prefill 1", "prefill 8"), rows))
    for peer in result["peers"]:
        text = f"- {peer['peer']} ({', '.join(peer['packages'])}): {peer['differs']}."
        if "skipped" in peer:
            text += f"  Skipped: {peer['skipped']}."
        errors = [f"{row['variant']}: {row['error']}" for row in peer.get("rows", []) if "error" in row]
        parts.append(text + (f"  Not run: {'; '.join(errors)}." if errors else ""))
    left = [name for name in PEERS if name not in {peer["peer"] for peer in result["peers"]}]
    parts += [f"- Not asked for: {', '.join(left)}."] if left else []
    parts += [f"\n![decode by batch]({FOLDER}/decode.png)"] if "decode.png" in names else []
    return "\n".join(parts) + "\n"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def _peer_row(name: str, row: dict[str, Any]) -> list[str]:
    """A row; bits are those of the weights that one token uses."""
    parameters, nbytes = derive.active(row, "parameters"), derive.active(row, "bytes")
    cells = [name, row["variant"], f"{row['parameters'] / 1e6:.1f}", f"{parameters / 1e6:.1f}",
             f"{8 * nbytes / parameters:.2f}", f"{nbytes / 1e6:.1f}"]  # fmt: skip
    for batch in (1, 8):
        figure, bandwidth = row.get(f"decode_{batch}"), row.get(f"bandwidth_{batch}")
        cells.append(spread(figure) if figure else "")
        cells += [f"{derive.ceiling(row, batch):.0f}", spread(bandwidth, 1e-9)] if bandwidth else ["", ""]
    return cells + [spread(row[name], digits=0) if name in row else "" for name in ("prefill_1", "prefill_8")]


def _context(result: Result, names: Sequence[str]) -> str:
    found = result.get("context")
    if not found or "mid" not in result["sizes"]:
        return ""
    rows = [
        (f"{row['context']:,}", spread(row["step_s"], 1e3, 2), f"{1e3 * row['floor_s']:.2f}", percent(row["share"]),
         spread(row["bandwidth"], 1e-9), f"{row['cache_bytes'] / 1e6:.2f}")
        for row in derive.context_rows(result, "mid")
    ]  # fmt: skip
    cache = found["cache"]
    text = "## Long context\n\n`mid`, one request whose cache entries were imported as random pages.\n\n"
    text += table(("context", "ms a token", "floor ms", "of floor", "stream GB/s", "MB of cache read"), rows)
    text += f"\nMain and index caches take {cache['bytes_per_token']:.2f} bytes a token; their formats and ratios "
    text += f"give {cache['layout']:.2f}.\n"
    return text + (f"\n![time of a token by context]({FOLDER}/context.png)\n" if "context.png" in names else "")


def _startup(result: Result) -> str:
    if "startup" not in result:
        return ""
    rows = [(name, spread(value, 1.0, 2)) for name, value in result["startup"].items()]
    return "## Start-up\n\nFresh processes, files in the page cache.\n\n" + table(("what", "seconds"), rows)
