"""Every known way to get the model subtly wrong is tried once, and the agreement check notices it.

The numbers are those of the list in docs/ORACLE.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import faults_attention, faults_engram, faults_hyper, faults_indexer, faults_moe, faults_sampling
from support.agreement import Judge, Stats
from support.edge_model import FAINT, LEVEL, make_edge
from support.mutation import Fault, planted
from support.teacher import Ask, Teacher, Trace, WatchingBackend, random_ids

from tandem.checkpoint.tiny import make_tiny

PARTS = (faults_hyper, faults_attention, faults_indexer, faults_moe, faults_engram)
FAULTS: list[Fault] = [fault for part in PARTS for fault in part.FAULTS]
ROWS = 80
IMAGE = 500
EXEMPT = {
    25: "draft module",
    26: "draft module",
    27: "rollback of drafts",
    29: "verification of drafts",
    34: "prefix cache",
    35: "bounded replay",
    36: "bounded replay",
    39: "image encoder",
}
OF_THE_TEST_MODEL = {40: "test_the_clamp_is_not_saturated"}


def asks() -> list[Ask]:
    """A request with everything in it, and one that shares its steps.

    Image spans end where a chunk of 16 ends, so that the next chunk looks back into them; one is a single
    token, so that a look-back sees text beyond it.  The last row is zero.
    """
    ids, roles = random_ids(1, ROWS), [0] * ROWS
    embeds = {ROWS - 1: torch.zeros(128, dtype=torch.bfloat16)}
    generator = torch.Generator().manual_seed(3)
    for start, kinds in ((24, (3, 2, 2, 5, 2, 2, 5, 4)), (60, (3, 2, 5, 4)), (70, (2,))):
        for position, kind in enumerate(kinds, start):
            row = 4 * torch.randn(128, generator=generator)
            row[0] = LEVEL
            ids[position], roles[position] = IMAGE, kind
            embeds[position] = (row * 2.0**-FAINT).bfloat16()
    return [Ask(ids, roles, embeds), Ask(random_ids(2, 41))]


def run(model: Path, backend: WatchingBackend) -> Trace:
    return Teacher(model, 16, backend).run(asks())[0]


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("edge")
    make_edge(directory, 11)
    return directory


@pytest.fixture(scope="module")
def judge(edge: Path) -> Judge:
    return Judge(edge)


@pytest.fixture(scope="module")
def floor(edge: Path, judge: Judge) -> Stats:
    return judge.floor(run(edge, WatchingBackend()))[0]


@pytest.mark.parametrize("use_native", [True, False])
def test_without_a_fault(edge: Path, judge: Judge, floor: Stats, use_native: bool) -> None:
    assert judge.judge(run(edge, WatchingBackend(use_native)), floor).findings == []


@pytest.mark.parametrize(
    "fault", [pytest.param(f, id=str(f), marks=pytest.mark.slow if f.variant else ()) for f in FAULTS]
)
def test_a_fault_is_noticed(edge: Path, judge: Judge, floor: Stats, fault: Fault) -> None:
    with planted(fault) as backend:
        if fault.stops is not None:
            with pytest.raises(fault.stops):
                run(edge, backend)
            return
        trace = run(edge, backend)
    assert judge.judge(trace, floor).findings


def test_every_pitfall_is_tried_or_exempt(repo_root: Path) -> None:
    tried = {fault.pitfall for fault in [*FAULTS, *faults_sampling.FAULTS]}
    assert tried.isdisjoint(EXEMPT)
    assert tried | set(EXEMPT) | set(OF_THE_TEST_MODEL) == set(range(1, 41))
    document = (repo_root / "docs" / "ORACLE.md").read_text(encoding="utf-8")
    listed = [int(number) for number in re.findall(r"^\| (\d+) \|", document, re.MULTILINE)]
    assert listed == list(range(1, 41))


# -- what a comparison of logits cannot see ------------------------------------------------------

TEMPERATURE, TOP_P, TOP_K = 0.8, 0.7, 6


def draw(model: Path, backend: WatchingBackend) -> list[str]:
    """Draw tokens and compare filters and logprobs with a derivation in float64 from the same logits."""
    params: dict[str, Any] = {
        "temperature": TEMPERATURE, "top_p": TOP_P, "top_k": TOP_K, "seed": 5, "ignore_eos": True,
        "logprobs": 0, "processed_logprobs": True,
    }  # fmt: skip
    trace = Teacher(model, 64, backend).run([Ask(random_ids(4, 30), draws=24, params=params)])[0]
    findings = []
    for row, drawn in zip(trace.logits[29:].double().numpy(), trace.output.logprobs, strict=True):
        scaled = row / TEMPERATURE
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))
        share = np.exp(scaled - scaled.max())
        share /= share.sum()
        before = np.cumsum(share[order]) - share[order]
        kept = [token for token, mass in zip(order, before, strict=True) if mass <= TOP_P][:TOP_K]
        if drawn.token_id not in kept:
            findings.append(f"{drawn.token_id} was drawn outside the filters")
            continue
        processed = scaled[drawn.token_id] - np.log(np.exp(scaled[kept]).sum())
        raw = row[drawn.token_id] - np.log(np.exp(row).sum())
        if abs(processed - drawn.processed) > 1e-5 or abs(raw - drawn.raw) > 1e-5:
            findings.append(f"logprobs of {drawn.token_id}: {drawn.raw}, {drawn.processed}, not {raw}, {processed}")
    return findings


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny(directory, 3)
    return directory


def test_sampling_without_a_fault(tiny: Path) -> None:
    assert draw(tiny, WatchingBackend()) == []


@pytest.mark.parametrize("fault", faults_sampling.FAULTS, ids=str)
def test_a_fault_of_sampling_is_noticed(tiny: Path, fault: Fault) -> None:
    with planted(fault) as backend:
        assert draw(tiny, backend)


def test_the_clamp_is_not_saturated(tiny: Path) -> None:
    """On a model whose gates all met the clamp, few faults would show: the tiny model meets it now and then."""
    beyond: list[torch.Tensor] = []

    def count(swiglu_quant: Callable[..., Any]) -> Callable[..., Any]:
        def watched(gate: torch.Tensor, up: torch.Tensor, limit: float, *rest: Any) -> Any:
            beyond.append(torch.stack((gate > limit, up.abs() > limit)).flatten())
            return swiglu_quant(gate, up, limit, *rest)

        return watched

    Teacher(tiny, 256, WatchingBackend(wraps={"swiglu_quant": count})).run([Ask(random_ids(0, 200))])
    assert 0 < torch.cat(beyond).float().mean() < 0.01
