"""The engine suite itself: each kind of defect that it is there for is caught by the check that is named for it."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from tandem.backends.cpu.backend import CpuBackend
from tandem.conformance.compare import Mismatch
from tandem.conformance.engine_harness import EngineHarness
from tandem.conformance.engine_suite import checks
from tandem.contract.backend import Array
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.contract.types import KVCache
from tandem.engine.scheduler import Scheduler
from tandem.structured.compiler import Compiler

Tensor = torch.Tensor
CHECKS = dict(checks())


class Faulty(CpuBackend):
    """The CPU backend with one defect."""

    def __init__(self, defect: str) -> None:
        super().__init__(use_native=True)
        self.defect = defect

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> Faulty:
        return cls("")

    def kv_export(self, cache: KVCache, blocks: Array) -> Array:
        data = super().kv_export(cache, blocks)
        if self.defect == "a scale byte is lost in transfer":
            data[:, cache.layout.entry_bytes - 1 :: cache.layout.entry_bytes] = 0
        return data

    def kv_import(self, cache: KVCache, blocks: Array, data: Array) -> None:
        ordered = self.defect == "blocks are taken in ascending order"
        super().kv_import(cache, np.sort(blocks) if ordered else blocks, data)

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        defect = DEFECTS.get((self.defect, op))
        return function if defect is None else functools.partial(defect, function)


def more_in_company(linear: OpFunction, x: Any, weight: Any, dtype: torch.dtype) -> Tensor:
    y: Tensor = linear(x, weight, dtype)
    return y if x.shape[0] == 1 else y * 1.03


def writes_padding(write: OpFunction, *args: Any) -> Any:
    *rest, slots = args
    return write(*rest, torch.where(slots < 0, 1, slots))


def by_row(sample: OpFunction, *args: Any) -> Any:
    *rest, position, filtered, min_p = args
    return sample(*rest, torch.arange(len(position)), filtered, min_p)


def short_seeds(sample: OpFunction, *args: Any) -> Any:
    *rest, seed, position, filtered, min_p = args
    return sample(*rest, seed & 0x7FFF, position, filtered, min_p)


def not_normalised(process: OpFunction, logits: Tensor, *rest: Any) -> Tensor:
    result: Tensor = process(logits, *rest)
    return result + 0.01


def keeps_history(context: OpFunction, rows: Any, vocabulary: Tensor, history: Tensor, pad: int, n: int) -> Tensor:
    """Prompts begin with what the slot held before."""
    before = history[rows.slot.long(), :1]
    found: Tensor = context(rows, vocabulary, history, pad, n)
    return torch.where(found == pad, before.clamp_min(0), found)


def drafts_are_taken(verify: OpFunction, *args: Any) -> Any:
    """Every draft of every row is taken, whatever the logits say."""
    *rest, forced, drafts, proposal, draft_row, coupled, filtered = args
    wanted = torch.where(draft_row < 0, forced, drafts[draft_row.long().clamp_min(0)])
    return verify(*rest, wanted, drafts, proposal, draft_row, coupled, filtered)


def never_coupled(verify: OpFunction, *args: Any) -> Any:
    *rest, coupled, filtered = args
    return verify(*rest, False, filtered)


def judged_by_row(verify: OpFunction, *args: Any) -> Any:
    """Random numbers of a row's place in the batch."""
    numbers, seed, position, rest = args[:5], args[5], args[6], args[7:]
    return verify(*numbers, seed, torch.arange(len(position)), *rest)


def nan_is_nothing(verify: OpFunction, logits: Tensor, *rest: Any) -> Any:
    return verify(torch.nan_to_num(logits, nan=0.0, posinf=torch.inf, neginf=-torch.inf), *rest)


def turned_weights(scatter: OpFunction, x: Tensor, index: Tensor, values: Tensor) -> Any:
    """The weights that drafts were drawn by, [R + 1, B, V], arrive as those of other tokens."""
    return scatter(x, index, values.roll(1, 2) if values.dim() == 3 and values.dtype == torch.int32 else values)


def host_tokens_only(inputs: OpFunction, *args: Any) -> Any:
    """Rows take their token from the host, though a step in flight draws it."""
    ids, positions, from_device, *rest = args
    return inputs(ids, positions, torch.where(from_device == 1, 0, from_device), *rest)


def one_mask_for_all(mask: OpFunction, logits: Tensor, bits: Tensor) -> Any:
    """Only the first row is masked."""
    return mask(logits, torch.where(torch.arange(len(bits))[:, None] > 0, -1, bits))


def longer_window(slots: OpFunction, *args: Any) -> Any:
    """A row sees a page or two too many."""
    *rest, window = args
    return slots(*rest, window + 8)


def best_of_company(linear: OpFunction, x: Any, weight: Any, dtype: torch.dtype) -> Tensor:
    """Steps of more than eight rows are computed otherwise."""
    y: Tensor = linear(x, weight, dtype)
    return y if x.shape[0] <= 8 else y * 1.03


DEFECTS = {
    ("every draft is taken", "spec_verify"): drafts_are_taken,
    ("coupled drafts are refused by law", "spec_verify"): never_coupled,
    ("the row decides what is verified", "spec_verify"): judged_by_row,
    ("NaN logits count as 0", "spec_verify"): nan_is_nothing,
    ("weights of drafts are lost in transfer", "scatter_rows"): turned_weights,
    ("tokens of steps in flight are not seen", "aux.step_inputs"): host_tokens_only,
    ("one row is masked", "mask_logits"): one_mask_for_all,
    ("a row sees what came before its window", "aux.window_slots"): longer_window,
    ("large steps have other bits", "linear"): best_of_company,
    ("a row depends on its batch", "linear"): more_in_company,
    ("padding rows write", "kv_write"): writes_padding,
    ("the row decides what is drawn", "sample"): by_row,
    ("seeds lose their high bits", "sample"): short_seeds,
    ("probabilities sum to more than one", "process_logits"): not_normalised,
    ("state of the last request is seen", "engram_context"): keeps_history,
}
SLOW = pytest.mark.slow
CAUGHT = [
    pytest.param("a row depends on its batch", "batch", "together", marks=SLOW),
    pytest.param("padding rows write", "padding", "padding rows changed"),
    pytest.param("the row decides what is drawn", "seeds", "want", marks=SLOW),
    pytest.param("seeds lose their high bits", "seeds", "highest bit", marks=SLOW),
    pytest.param("probabilities sum to more than one", "logprobs", "sum to"),
    pytest.param("state of the last request is seen", "pressure", "the second time", marks=SLOW),
    pytest.param("a scale byte is lost in transfer", "transfer", "moved", marks=SLOW),
    pytest.param("blocks are taken in ascending order", "cache-bytes", "came back otherwise"),
    pytest.param("every draft is taken", "drafts", "1 drafts, request", marks=SLOW),
    pytest.param("coupled drafts are refused by law", "coupled", "coupled drafts, request", marks=SLOW),
    # Which of the two runs comes out otherwise first depends on tokens, and so on the last place of logits.
    pytest.param("the row decides what is verified", "rejection", "(alone|small chunks), with drafts", marks=SLOW),
    pytest.param("NaN logits count as 0", "bad-logits", "ended with length", marks=SLOW),
    pytest.param("weights of drafts are lost in transfer", "moved-drafts", "moved with drafts", marks=SLOW),
    pytest.param("tokens of steps in flight are not seen", "overlap", "two steps in flight, request", marks=SLOW),
    pytest.param("one row is masked", "grammar", "request . failed", marks=SLOW),
    pytest.param("a row sees what came before its window", "prefix", "from stored state", marks=SLOW),
    pytest.param("large steps have other bits", "invariance", "jittered run", marks=SLOW),
]


@pytest.mark.parametrize(("defect", "check", "words"), CAUGHT)
def test_a_defect_is_caught(defect: str, check: str, words: str) -> None:
    assert {op for _, op in DEFECTS} <= set(OP_TABLE)
    with EngineHarness(Faulty(defect)) as harness, pytest.raises(Mismatch, match=words):
        CHECKS[check](harness)


@pytest.mark.slow
def test_a_failed_step_that_is_only_taken_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "abandon", lambda scheduler, plan: scheduler.rollback(plan))
    with EngineHarness(CpuBackend(use_native=True)) as harness, pytest.raises(Mismatch, match="after a failed step"):
        CHECKS["failed-step"](harness)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.05, 0.5])
def test_damage_meets_its_request_however_long_a_grammar_takes(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Compiler._make
    monkeypatch.setattr(Compiler, "_make", lambda compiler, key: (time.sleep(seconds), made(compiler, key))[1])
    with EngineHarness(CpuBackend(use_native=True)) as harness:
        CHECKS["bad-logits"](harness)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("native", [True, False])
def test_the_cpu_serves(name: str, native: bool) -> None:
    with EngineHarness(CpuBackend(native), lambda: CpuBackend(native)) as harness:
        CHECKS[name](harness)
