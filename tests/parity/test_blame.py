"""One op of a backend errs in one place, and the comparison must name that op and layer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from support.registered import register
from support.traces import run, write

from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.loading import native_status
from tandem.checkpoint.tiny import make_tiny
from tandem.cli.main import main
from tandem.config import EngineConfig, load_config
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.contract.registry import open_backend
from tandem.contract.types import QTensor
from tandem.parity.diff import Difference, diff
from tandem.parity.freerun import first_defect, swap
from tandem.parity.legal import LegalNoise, shaken
from tandem.parity.measure import LeafError
from tandem.parity.pairs import Side
from tandem.parity.record import Prompt, record
from tandem.parity.records import Call, Record
from tandem.parity.replay import replay
from tandem.parity.trace import Trace
from tandem.parity.verdict import Verdict, verdict
from tandem.sampling.params import SamplingParams

Tensor = torch.Tensor


class FaultyBackend(CpuBackend):
    """A CPU that errs in one outermost call of one op, counted from the first; -1 for all of them."""

    name = "faulty"
    _fault: tuple[str, int] = ("", 0)
    _size = 0.1
    _layer: ClassVar[Any] = None  # selection biases of the one layer whose mixtures of experts err, every time

    def __init__(self) -> None:
        super().__init__(use_native=native_status().available)
        self._depth = self._calls = 0

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        def counted(*args: Any, **kwargs: Any) -> Any:
            outermost, wanted = self._depth == 0, type(self)._fault
            self._depth += 1
            try:
                result = function(*args, **kwargs)
            finally:
                self._depth -= 1
            if op == "moe_block" and self._layer is not None:
                here = torch.equal(kwargs["weights"].bias, self._layer)
                return spoiled(result, self._size) if here else result
            if not outermost or op != wanted[0]:
                return result
            self._calls += 1
            return spoiled(result, self._size) if wanted[1] in (-1, self._calls - 1) else result

        return counted

    @classmethod
    def open(cls, device_id: int, options: Any) -> CpuBackend:
        return cls()


def spoiled(result: Any, size: float) -> Any:
    """The first output with one number of the last row wrong: a float by ``size`` beyond the row's greatest."""
    if isinstance(result, tuple):
        parts = (spoiled(result[0], size), *result[1:])
        return type(result)(*parts) if hasattr(result, "_fields") else parts
    if isinstance(result, QTensor):
        codes = result.data.clone()
        if codes.is_floating_point():  # the CPU keeps values instead of codes
            codes[-1, 0] = -codes[-1, 0] if codes[-1, 0] else 1.0
        else:
            codes[-1, 0] ^= 0x50
        return dataclasses.replace(result, data=codes)
    wrong: Tensor = result.clone()
    last = wrong[-1].view(-1)
    if not wrong.is_floating_point():
        last[0] = last[0] + 1 if last[0] < 1 else last[0] - 1
    else:
        finite = torch.isfinite(last)
        last[int(finite.to(torch.uint8).argmax())] = 0.01 + (1 + size) * torch.where(finite, last, 0.0).abs().max()
    return wrong


# Token ids of the prompts, and how tokens are drawn after them.
PROMPTS: tuple[list[Prompt], SamplingParams] = (
    [[5, 6, 7, 8]],
    SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True),
)


@dataclasses.dataclass
class Recorded:
    """A recording of two steps of the tiny model, and errors of calls by content."""

    side: Side
    config: EngineConfig
    judged: dict[str, list[LeafError]]

    @property
    def path(self) -> Path:
        return self.side.trace.path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("blame")
    make_tiny(folder / "model", 0)
    sizes = {"model.path": str(folder / "model"), "cache.block_size": 16, "cache.window_block": 8}
    config = load_config(env={}, args=sizes)
    record(config, *PROMPTS, folder / "trace", backend=open_backend("cpu"), show_progress=False)
    judged: dict[str, list[LeafError]] = {}
    yield Recorded(Side(Trace.open(folder / "trace"), judged), config, judged)


def compared(recorded: Recorded, backend: CpuBackend, mode: str, out: Path, chosen: Any) -> tuple[Difference, Verdict]:
    """The comparison of the recording with a replay of some records."""
    trace = recorded.side.trace
    replay(trace, backend, mode, out, chosen, show_progress=False)
    found = diff(recorded.side, Side(Trace.open(out, trace), recorded.judged))
    return found, verdict(found, trace.path)


PLACES = [
    ("hc_enter", 0), ("hc_step", 3), ("hc_step", 7), ("hc_post", 2), ("engram_gather", 1), ("engram_hash", 2),
    ("engram_gate", 1), ("linear", 0), ("linear", 4), ("linear", 7), ("rms_norm", 5), ("kv_write", 1), ("kv_write", 6),
    ("compress_update", 1), ("index_query", 3), ("index_scores", 4), ("index_scores_at", 6), ("topk_index", 1),
    ("block_max", 4), ("pool_expand", 4), ("aux.map_entries", 3), ("attn_block", 0), ("attn_block", 5),
    ("group_linear", 2), ("quantize", 7), ("moe_route", 1), ("moe_block", 6),
]  # fmt: skip


@pytest.mark.parametrize(("op", "layer"), PLACES)
def test_a_fault_is_blamed(
    op: str, layer: int, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls of a layer in the first step run, and one of them errs."""
    calls = [r for r in recorded.side.trace.records if r.step == 0 and r.layer == layer]
    same = [r for r in calls if r.op == op]
    monkeypatch.setattr(FaultyBackend, "_fault", (op, len(same) - 1))
    found, outcome = compared(recorded, FaultyBackend(), "local", tmp_path / "out", lambda r: r in calls)
    assert len(found.ops) == len(calls)
    assert [o.record.id for o in found.ops if o.outside] == [same[-1].id]
    assert (outcome.status, outcome.side, outcome.op, outcome.layer) == ("FAIL", "faulty", op, layer)
    assert outcome.record == same[-1].id
    assert not any(o.outside_one for o in found.ops)


def test_the_plain_composites_pass(recorded: Recorded, tmp_path: Path) -> None:
    """Native kernels sum in another order; that is no fault, and flips nothing."""
    found, outcome = compared(recorded, CpuBackend(use_native=False), "free", tmp_path / "out", lambda r: True)
    assert outcome.status == "PASS"
    assert len(found.ops) == len(recorded.side.trace.records)
    assert found.decided["experts"] == (40, 0)  # 8 layers, 4 + 1 rows
    assert found.divergent is None


def test_two_recordings_of_the_same_prompts(recorded: Recorded, tmp_path: Path) -> None:
    """Each backend ran the engine by itself; calls are matched by where they stand."""
    plain = CpuBackend(use_native=False)
    record(recorded.config, *PROMPTS, tmp_path / "other", backend=plain, show_progress=False)
    found = diff(recorded.side, Side(Trace.open(tmp_path / "other"), recorded.judged))
    assert found.mode == "recording"
    assert len(found.ops) == len(recorded.side.trace.records)
    assert not found.unmatched and not found.headers and not found.stops
    assert verdict(found, recorded.path).status == "PASS"
    assert any(not op.same for op in found.ops) == native_status().available  # native kernels sum in another order


def test_in_a_free_run_only_the_cause_is_blamed(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything after the fault differs, and every op but one is right about what it was given."""
    late = [r for r in recorded.side.trace.records if r.step == 1 and (r.layer is None or r.layer >= 6)]
    blamed = next(r for r in late if r.op == "moe_block")
    monkeypatch.setattr(FaultyBackend, "_fault", ("moe_block", 0))
    found, outcome = compared(recorded, FaultyBackend(), "free", tmp_path / "out", lambda r: r in late)
    assert [o.record.id for o in found.ops if o.outside] == [blamed.id]
    after = [o for o in found.ops if o.record.id > blamed.id and o.inherited > 0]
    assert len(after) > 10
    assert all(o.free > 0 for o in after if o.record.op == "linear")
    assert (outcome.op, outcome.layer, outcome.step) == ("moe_block", 6, 1)
    assert all(flip.cause == blamed.id for flip in found.flips if flip.record > blamed.id)


def test_swap_finds_the_call_that_flips_a_decision(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [r for r in recorded.side.trace.records if r.op == "moe_block"]
    assert calls[2].layer == 2
    monkeypatch.setattr(FaultyBackend, "_layer", recorded.side.call(calls[2].id).inputs["weights"].bias)
    monkeypatch.setattr(FaultyBackend, "_size", 30.0)  # enough to flip what comes after
    found = swap(recorded.side, FaultyBackend())
    assert found is not None and (found.flip.verdict, found.flip.cause) == ("defect", calls[2].id)
    assert found.first == calls[2]
    assert found.kept == (calls[2],)
    assert (found.kinds(), found.layers(), found.minimal) == (["moe_block"], [2], True)
    assert found.runs < 16


def test_swap_without_a_flip(recorded: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """That nothing flips is a result; a decision that cannot be is refused before anything runs."""
    register(monkeypatch, sound=FaultyBackend)
    words = ["parity", "swap", str(recorded.path), "--backend", "sound"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("no decision flips: backend 'faulty' takes every recorded decision")
    monkeypatch.setattr(FaultyBackend, "open", None)
    assert main([*words, "--decision", "experts:1"]) == 2
    assert "'experts:1' names no decision" in capsys.readouterr().err


def test_the_commands(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that a verdict names, run as it stands."""
    register(monkeypatch, faulty=FaultyBackend)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FaultyBackend, "_fault", ("rms_norm", -1))
    trace = str(recorded.path)
    words = ["parity", "replay", trace, "--backend", "faulty", "--mode", "local", "--op", "rms_norm", "--layer", "5"]
    assert main([*words, "--step", "0", "--out", "first"]) == 0
    capsys.readouterr()
    assert main(["parity", "diff", trace, "first", "--report", "page", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["verdict"]
    assert (told["status"], told["op"], told["layer"]) == ("FAIL", "rms_norm", 5)
    for line in told["command"].split(" && "):
        code = main(line.split()[1:])
    assert code == 1
    assert "FAIL: op 'rms_norm' layer 5 step 0 row 3" in capsys.readouterr().out
    assert {file.name for file in (tmp_path / "page").iterdir()} == {"report.html", "results.json", "summary.txt"}


def test_a_flip_that_legal_rounding_makes_is_a_tie(tmp_path: Path) -> None:
    """Two logits lie one bf16 step apart; the norm before them may round either of its outputs by one step."""
    norm = Record(1, 0, 1, "rms_norm", "norm", None, 1)
    head = Record(2, 0, 2, "linear", "head", None, 1, sources={"x": (1, "y")})
    x = torch.tensor([[1.0078125, 1.0, 0.5, 0.25]], dtype=torch.bfloat16)
    case = next(case.build(0) for case in OP_TABLE["linear"].cases if "bf16" in case.name)
    weight = dataclasses.replace(
        case["weight"], weight=case["weight"].weight._replace(data=torch.eye(4, dtype=torch.bfloat16)), shape=(4, 4)
    )
    first = run("rms_norm", {"x": x, "weight": None, "eps": 1e-6, "quant": False})
    y = first.outputs["y"]
    assert y[0, 0] > y[0, 1]
    moved = y.clone()
    moved[0, :2] = y[0, :2].flip(0)
    calls = [Call(first.inputs, {"y": made}) for made in (y, moved)]
    heads = [run("linear", {"x": made, "weight": weight, "out_dtype": torch.float32}) for made in (y, moved)]
    one = Side(write(tmp_path / "a", [(norm, calls[0]), (head, heads[0])]))
    two = Side(write(tmp_path / "b", [(norm, calls[1]), (head, heads[1])], backend="two"))
    assert verdict(diff(one, two), one.trace.path).metric == "margin"  # its own noise does not explain it
    found = diff(one, two, legal=LegalNoise(one))
    assert [flip.verdict for flip in found.flips] == ["tie"]
    outcome = verdict(found, one.trace.path)
    assert outcome.status == "TIE"
    tie = found.flips[0]
    assert tie.legal is not None and tie.limit == 2 * (tie.floor + tie.legal) >= tie.margin > 2 * tie.floor
    assert f"margin {tie.margin:.3g}, limit {tie.limit:.3g}" in outcome.headline() and "legal noise" in tie.told()
    assert (outcome.value, outcome.threshold) == (tie.margin, tie.limit)
    wide = dataclasses.replace(tie, margin=100.0)
    assert first_defect(one, [tie, wide], lambda calls: None).margin == 100.0, "a tie is passed over for a defect"
    assert first_defect(one, [tie], lambda calls: None).verdict == "tie"
    wrong = first_defect(one, [tie], lambda calls: min(calls))
    assert (wrong.verdict, wrong.cause) == ("defect", 1), "the norm before it errs"


def test_legal_noise_is_one_step() -> None:
    value = torch.tensor([1.0, -3.0, 0.0, float("inf")], dtype=torch.bfloat16)
    seen = torch.stack([shaken(value, torch.Generator().manual_seed(seed)) for seed in range(40)]).double()
    assert set(seen[:, 0].tolist()) == {1.0, 1.0 + 2.0**-7, 1.0 - 2.0**-8}
    assert set(seen[:, 1].tolist()) == {-3.0, -3.0 + 2.0**-6, -3.0 - 2.0**-6}
    assert set(seen[:, 2].tolist()) == {0.0}
    assert set(seen[:, 3].tolist()) == {float("inf")}
