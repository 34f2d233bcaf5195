"""Runs everything that needs a device, on a device, and writes the report that a claim may rest on.

    ci/device_report.sh BACKEND [--out docs/reports] [--quick]

Steps: what is installed; conformance up to L2 (L3 where the port states floors), batch invariance and graph replay
among it; parity of two recordings of the small model on a CPU, the one that comes with the sources and one made on
this host; each op at official shapes against the copy and matrix-product rates measured in the same run.  A step that
fails is in the report and the status is 1.
An emulated device is refused: its results say nothing about hardware.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tandem.contract.backend import Backend
from tandem.contract.environment import BACKEND, EMULATE
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend
from tandem.contract.types import KVCache
from tandem.errors import ConfigError, TandemError
from tools.kernels.filled import Held, fill
from tools.kernels.floors import least, size
from tools.kernels.workloads import BATCHES, PHASES, Maker, Phase, Workload, workloads

BUNDLED = Path(__file__).parent / "traces" / "nano-cpu"
PROMPTS = ("In the beginning", "Who are you?", "And it came to pass in the days of")
COPY_BYTES, SQUARE, ROUNDS = 1 << 30, 8192, 20
SHARE_OF_MEMORY = 0.6  # a workload that needs more of what is free is left out, and named


def tandem(*arguments: str, backend: str) -> dict[str, Any]:
    """Run a command of Tandem that prints JSON.

    Raises:
        RuntimeError: it printed none; with the end of what it said.
    """
    command = [sys.executable, "-m", "tandem.cli.main", *arguments]
    environ = os.environ | {BACKEND: backend}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"{' '.join(arguments)}: status {done.returncode}: {done.stderr[-2000:]}") from None
    return {"status": done.returncode, **found}


def conformance(backend: str, quick: bool, floors: bool) -> dict[str, Any]:
    """Level shown, counts, failures, skips, and the checks of batches and graphs."""
    level = "L3" if floors else "L2"
    flags = ["--quick"] if quick else []
    found = tandem("conformance", "--backend", backend, "--level", level, "--json", *flags, backend=backend)
    results = found.get("results", [])
    failed = [r for r in results if r.get("failure")]
    return {
        "ok": not failed and found["status"] == 0,
        "level": found.get("claim", "none"),
        "checks": len(results),
        "failed": [f"{r['op']}/{r['case']}/{r['check']}: {r['failure']}" for r in failed],
        "skipped": sum(1 for r in results if r.get("skipped")),
        "engine": {r["case"]: r.get("failure") or r.get("skipped") or "holds" for r in results if r["suite"] == "L2"},
    }


def parity(backend: str) -> dict[str, Any]:
    """Recordings of the small model on a CPU, replayed on the device call by call and freely."""
    with tempfile.TemporaryDirectory() as folder:
        prompts, trace = Path(folder) / "prompts.txt", Path(folder) / "host.trace"
        prompts.write_text("\n".join(PROMPTS) + "\n", encoding="utf-8")
        recorded = ["parity", "record", "--backend", "cpu", "--prompts", str(prompts), "--out", str(trace), "--json"]
        tandem(*recorded, backend="cpu")
        found: dict[str, Any] = {}
        for name, source in (("bundled", BUNDLED), ("host", trace)):
            for mode in ("local", "free"):
                out = str(Path(folder) / f"{name}-{mode}")
                tandem("parity", "replay", str(source), "--mode", mode, "--out", out, "--json", backend=backend)
                found[f"{name} {mode}"] = tandem("parity", "diff", str(source), out, "--json", backend="cpu")
        return {"ok": all(judged["status"] == 0 for judged in found.values()), "replays": found}


def timed(call: Callable[[], Any], backend: Backend, rounds: int = ROUNDS) -> list[float]:
    """Seconds of each round, the queue drained, sorted; two rounds warm up."""
    times = []
    for _ in range(rounds + 2):
        backend.synchronize()
        start = time.perf_counter()
        call()
        backend.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[2:])


def ceilings(backend: Backend, quick: bool) -> dict[str, Any]:
    """Bytes a second of a copy (read and written), operations a second of a bf16 product."""
    count, side = (COPY_BYTES >> 6, SQUARE >> 4) if quick else (COPY_BYTES, SQUARE)
    source = backend.empty((count,), torch.uint8)
    target = backend.empty((count,), torch.uint8)
    copy = timed(lambda: target.copy_(source), backend)
    left = backend.empty((side, side), torch.bfloat16).fill_(0.5)
    product = timed(lambda: torch.matmul(left, left), backend)
    return {"copy": 2 * count / copy[len(copy) // 2], "matmul_bf16": 2 * side**3 / product[len(product) // 2]}


def measure(workload: Workload, phase: Phase, backend: Backend, rounds: int) -> dict[str, Any]:
    """Median and range of one workload, and the rates that its least bytes and operations give."""
    arguments = fill(workload, phase, backend)
    spec = OP_TABLE[workload.op]
    function = Plan(backend).bind(workload.op, f"report of {workload.name}")
    function(**arguments)
    times = timed(lambda: function(**arguments), backend, rounds)
    floor = least(workload, phase)
    median = times[len(times) // 2]
    return {
        "op": spec.name,
        "site": workload.site,
        "phase": phase.name,
        "median_us": median * 1e6,
        "min_us": times[0] * 1e6,
        "max_us": times[-1] * 1e6,
        "bytes_per_s": floor.bytes / median,
        "flops_per_s": floor.flops / median,
    }


def benchmarks(backend: Backend, ops: set[str], phases: set[str], rounds: int) -> dict[str, Any]:
    """Every workload that fits into memory; the others are named with the reason."""
    found, left_out, failed = [], [], []
    todo = [(one, phase) for one in workloads() for phase in PHASES if phase.name in phases and one.op in ops]
    for workload, phase in tqdm(todo, desc="ops", disable=None):
        needed, free = _needed(workload, phase), backend.memory().free
        name = f"{workload.name} {phase.name}"
        if free and needed > SHARE_OF_MEMORY * free:
            left_out.append(f"{name}: needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
            continue
        try:
            found.append(measure(workload, phase, backend, rounds))
        except (TandemError, RuntimeError) as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    return {"ok": not failed, "ops": found, "failed": failed, "left_out": left_out}


def _needed(workload: Workload, phase: Phase) -> int:
    """Bytes of all arguments of a workload."""
    arguments = workload.build(Maker(Held()), phase).values()
    return sum(size(value.data if isinstance(value, KVCache) else value) for value in arguments)


def guarded(step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A step's findings; an error becomes one."""
    try:
        return step()
    except Exception as error:  # a report is written whatever fails; the error is what it reports
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def page(report: dict[str, Any]) -> str:
    """The report as text."""
    device, ceiling = report["device"], report["ceilings"]
    lines = [f"# {report['title']}", "", f"*Run on device* on {report['date']} by `ci/device_report.sh`.", ""]
    if report["quick"]:
        lines += ["A trial (`--quick`): few checks, small ceilings, batch 1 only.", ""]
    lines += ["| fact | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in device.items()), ""]
    for name in ("conformance", "parity", "benchmarks"):
        step = report[name]
        lines += [f"## {name}: {'holds' if step['ok'] else 'FAILS'}", ""]
        lines += [f"- {key}: {value}" for key, value in step.items() if key in ("level", "checks", "skipped", "error")]
        lines += [f"- {entry}" for entry in step.get("failed", [])]
        lines += [f"- engine, {case}: {state}" for case, state in step.get("engine", {}).items()]
        replays = step.get("replays", {}).items()
        lines += [f"- {replay}: {'differs' if judged['status'] else 'holds'}" for replay, judged in replays]
        lines += [f"- left out: {entry}" for entry in step.get("left_out", [])]
        lines.append("")
    copy, product = ceiling.get("copy", 0.0), ceiling.get("matmul_bf16", 0.0)
    lines += [f"Measured ceilings: copy {copy / 1e9:.4g} GB/s, bf16 product {product / 1e12:.4g} TFLOP/s.", ""]
    lines += ["| op | phase | median | range | of copy | of bf16 product |", "|---|---|---|---|---|---|"]
    for one in report["benchmarks"].get("ops", []):
        span = f"{one['min_us']:.3g} to {one['max_us']:.3g} us"
        of_copy = f"{one['bytes_per_s'] / copy:.1%}" if copy else "-"
        of_product = f"{one['flops_per_s'] / product:.1%}" if product and one["flops_per_s"] else "-"
        name = f"`{one['op']}` {one['site']}".strip()
        lines.append(f"| {name} | {one['phase']} | {one['median_us']:.3g} us | {span} | {of_copy} | {of_product} |")
    return "\n".join(lines) + "\n"


def make(backend_name: str, quick: bool, ops: set[str]) -> dict[str, Any]:
    """All steps on one backend."""
    backend = open_backend(backend_name)
    facts = backend.fingerprint()
    title = re.sub(r"[^A-Za-z0-9]+", "-", facts.get("device", facts.get("isa", backend_name))).strip("-").lower()
    phases = {"decode-1"} if quick else {phase.name for phase in PHASES}
    floors = (Path(sys.modules[type(backend).__module__].__file__ or ".").parent / "floors.json").is_file()
    report = {
        "title": title,
        "date": time.strftime("%Y-%m-%d"),
        "quick": quick,
        "batches": list(BATCHES),
        "device": facts,
        "doctor": guarded(lambda: tandem("doctor", "--json", backend=backend_name)),
        "conformance": guarded(lambda: conformance(backend_name, quick, floors)),
        "parity": guarded(lambda: parity(backend_name)),
        "ceilings": guarded(lambda: ceilings(backend, quick)),
        "benchmarks": guarded(lambda: benchmarks(backend, ops, phases, 3 if quick else ROUNDS)),
    }
    backend.close()
    return report


def refuse_emulation() -> None:
    """A report is about hardware.

    Raises:
        ConfigError: this process would emulate.
    """
    value = os.environ.get(EMULATE, "")
    if value not in ("", "0"):
        raise ConfigError(
            "no report is made of an emulated device",
            where=f"environment {EMULATE}",
            why=f"it is '{value}', and a report is about hardware",
            fix=f"unset {EMULATE}, on a machine that has the device",
        )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Run everything that needs a device, and write the report.")
    parser.add_argument("backend", help="name[:index]")
    parser.add_argument("--out", type=Path, default=Path("docs/reports"), help="folder of the report (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a trial: few checks, small ceilings, batch 1 only")
    parser.add_argument("--op", nargs="*", help="benchmark these ops only")
    arguments = parser.parse_args()
    try:
        refuse_emulation()
        report = make(arguments.backend, arguments.quick, set(arguments.op or OP_TABLE))
    except TandemError as error:
        print(f"device_report: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = arguments.out / report["title"]
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    stem.with_suffix(".md").write_text(page(report), encoding="utf-8")
    print(f"{stem}.md and {stem}.json are written")
    return 0 if all(report[step]["ok"] for step in ("conformance", "parity", "benchmarks")) else 1


if __name__ == "__main__":
    sys.exit(main())
