"""Golden cases: written for every op, run from the files alone, and judged by the reader without Tandem."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.backends.cpu.backend import CpuBackend
from tandem.cli.main import main
from tandem.conformance.calls import leaves, run_call
from tandem.conformance.formats import encode
from tandem.conformance.golden import Summary, export
from tandem.contract import types
from tandem.contract.cases import CacheInput, WeightInput, materialise
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.contract.types import CacheKind, CanonicalWeight, KVLayout, QFormat, QTensor, WeightKind
from tandem.errors import ConfigError

Tensors = dict[str, torch.Tensor]
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """All cases."""
    return export(tmp_path_factory.mktemp("golden") / "cases")


@pytest.fixture(scope="module")
def numpy_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has numpy and nothing else to import."""
    folder = tmp_path_factory.mktemp("path")
    home = Path(np.__file__).parent
    for one in (home, home.parent / "numpy.libs"):
        if one.exists():
            (folder / one.name).symlink_to(one)
    return folder


def argument(node: dict[str, Any], tensors: Tensors) -> Any:
    """An input as data of `tandem.contract.cases`, from what its JSON says and nothing else."""
    if "tensor" in node:
        return tensors[node["tensor"]]
    if "value" in node:
        value = node["value"]
        return tuple(value) if isinstance(value, list) else value
    if "quantised" in node:
        parts = (tensors[node["data"]], tensors[node["scale"]])
        return QTensor(*parts, QFormat(node["quantised"]), tuple(node["shape"]))
    if "weight" in node:
        scale = None if node["scale"] is None else tensors[node["scale"]]
        weight = CanonicalWeight(tensors[node["data"]], scale, QFormat(node["fmt"]))
        return WeightInput(WeightKind(node["weight"]), weight, tuple(node["shape"]))
    if "cache" in node:
        layout = KVLayout(CacheKind(node["cache"]), QFormat(node["fmt"]), node["dim"], node["block_entries"])
        entries = tensors[node["entries"]].numpy()
        return CacheInput(layout, node["blocks"], tuple(range(len(entries))), entries)
    fields = {name: argument(item, tensors) for name, item in node["fields"].items()}
    return getattr(types, node["record"])(**fields)


def arguments(root: Path, case: str) -> dict[str, Any]:
    """All inputs of a case; the two arguments that are types of torch or Tandem are named as text in the files."""
    about = json.loads((root / f"{case}.json").read_text())
    tensors = load_file(root / f"{case}.safetensors")
    made = {name: argument(node, tensors) for name, node in about["inputs"].items()}
    if "fmt" in made:
        made["fmt"] = QFormat(made["fmt"])
    return made | ({"out_dtype": DTYPES[made["out_dtype"]]} if "out_dtype" in made else {})


@pytest.fixture(scope="module")
def answers(golden: Summary) -> dict[str, Tensors]:
    """What the CPU backend gives for the inputs in the files."""
    plan = Plan(CpuBackend(use_native=True))
    found = {}
    for case in golden.cases:
        made = materialise(arguments(golden.directory, case), plan.backend, 0)
        found[case] = {n: t.contiguous() for n, t in leaves(run_call(plan, case.split("/")[0], made)).items()}
    return found


def write(folder: Path, answers: dict[str, Tensors]) -> Path:
    for case, outputs in answers.items():
        (folder / case).parent.mkdir(parents=True, exist_ok=True)
        save_file(outputs, folder / f"{case}.safetensors")
    return folder


def reader(golden: Summary, numpy_alone: Path, *words: str) -> tuple[int, list[str]]:
    """Run the reader where Tandem, torch and safetensors cannot be imported; its status and lines."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"PYTHONPATH": str(numpy_alone)}
    command = [sys.executable, "-S", str(golden.directory / "check.py"), *words]
    done = subprocess.run(command, cwd=golden.directory, env=environ, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def test_the_reader_is_short_and_needs_numpy_alone(golden: Summary, numpy_alone: Path) -> None:
    text = (golden.directory / "check.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    imports = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.Import, ast.ImportFrom))]
    names = {a.name for n in imports if isinstance(n, ast.Import) for a in n.names} | {
        n.module for n in imports if isinstance(n, ast.ImportFrom)
    }
    assert {str(n).split(".")[0] for n in names} - set(sys.stdlib_module_names) == {"numpy"}
    environ = {"PYTHONPATH": str(numpy_alone), "PATH": os.environ["PATH"]}
    for module, there in (("numpy", True), ("tandem", False), ("torch", False), ("safetensors", False)):
        done = subprocess.run([sys.executable, "-S", "-c", f"import {module}"], env=environ, capture_output=True)
        assert (done.returncode == 0) == there, module


def test_every_case_of_every_op_is_written(golden: Summary) -> None:
    assert set(golden.cases) == {f"{op}/{case.name}" for op, spec in OP_TABLE.items() for case in spec.cases}
    files = [f for f in golden.directory.rglob("*") if f.is_file()]
    assert len(files) == 2 * len(golden.cases) + 3  # the index, the reader and its page
    assert golden.nbytes == sum(f.stat().st_size for f in files) < 10_000_000
    for case in golden.cases:
        about = json.loads((golden.directory / f"{case}.json").read_text())
        assert about["outputs"] and {n.partition(".")[0] for n in about["outputs"]} <= set(about["classes"])


def test_the_value_of_a_mean_is_the_mean(golden: Summary) -> None:
    tensors = load_file(golden.directory / "hc_mean/random-T2.safetensors")
    rows = tensors["in/trunk"].double()
    by_hand = sum(rows[:, i] for i in range(rows.shape[1])) / rows.shape[1]
    assert torch.allclose(tensors["want/x/value"], by_hand, rtol=1e-14, atol=1e-14)
    assert tensors["want/x/value"].dtype is torch.float64


def test_the_cpu_backend_passes(
    golden: Summary, answers: dict[str, Tensors], numpy_alone: Path, tmp_path: Path
) -> None:
    status, lines = reader(golden, numpy_alone, "check", str(write(tmp_path, answers)))
    assert [line for line in lines[:-1] if not line.startswith("pass")] == []
    assert status == 0 and lines[-1] == f"{len(golden.cases)} pass, 0 FAIL, 0 none"


def bump(value: int) -> Callable[[torch.Tensor], None]:
    """Add to the first element's bits."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

    def change(tensor: torch.Tensor) -> None:
        tensor.view(kinds[tensor.element_size()]).view(-1)[0] += value

    return change


def swap_first(tensor: torch.Tensor) -> None:
    tensor[0] = tensor[0].flip(0)


FAULTS: list[tuple[str, str, Callable[[torch.Tensor], None], str]] = [
    ("kv_load/main-T2", "x", bump(1), "x (class X): bits differ in 1"),
    ("embed/plain-T2", "x", lambda x: x.view(torch.int16)[0].zero_(), "x (class X): bits differ"),
    ("hc_mean/random-T2", "x", bump(2), "x (class U): outside of the class in 1"),
    ("rope/forward-T2", "y", lambda x: x[0].fill_(float("nan")), "y (class U): outside of the class"),
    ("linear/bf16-T2", "y", lambda x: x[1].zero_(), "y (class A): outside of the class"),
    ("quantize/mxfp8-T2", "q.scale", bump(2), "q (class Q): a scale is more than a step off"),
    ("quantize/nvfp4-T2", "q.data", bump(3), "q (class Q): a code is more than a step off"),
    ("moe_route/text-and-image-rows-T2", "experts", swap_first, "experts (class S): an id that does not tie"),
    ("moe_route/text-and-image-rows-T15", "experts", lambda x: x[0].fill_(1), "experts (class S): an id twice"),
    ("kv_store/main-T2", "cache", lambda x: x.add_(1), "cache (class X): bits differ"),
    ("attn_block/window-and-main-T2", "q.data", bump(3), "q (class A): outside of the class in 1 of 256"),
    ("attn_block/window-only-T2", "q.scale", bump(1), "q (class A): a scale outside of the class in 1 of 8"),
    ("kv_write/window-T2", "cache", lambda x: x.view(-1)[-1:].add_(1), "cache (class Q): "),
]


@pytest.fixture(scope="module")
def judged(
    golden: Summary, answers: dict[str, Tensors], numpy_alone: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Lines of the reader by case, for outputs with one fault each."""
    wrong = {}
    for case, output, change, _ in FAULTS:
        wrong[case] = {name: tensor.clone() for name, tensor in answers[case].items()}
        change(wrong[case][output])
    wrong["hc_post/random-T1"] = {"another": torch.zeros(1)}
    wrong["hc_post/random-T2"] = {"trunk": answers["hc_post/random-T2"]["trunk"][:1]}
    wrong["hc_post/random-T15"] = {"trunk": answers["hc_post/random-T15"]["trunk"].float()}
    folder = write(tmp_path_factory.mktemp("wrong"), wrong)
    status, lines = reader(golden, numpy_alone, "check", str(folder))
    assert status == 1
    return {line.split()[1]: line for line in lines[:-1]}


@pytest.mark.parametrize(("case", "output", "change", "said"), FAULTS, ids=[f"{f[0]}-{f[1]}" for f in FAULTS])
def test_a_wrong_output_fails_and_is_named(
    case: str, output: str, change: object, said: str, judged: dict[str, str]
) -> None:
    assert judged[case].startswith(f"FAIL  {case}  {said}"), judged[case]


def test_missing_outputs_and_wrong_forms_are_named(judged: dict[str, str]) -> None:
    assert judged["hc_post/random-T1"].endswith("trunk (class U): no output 'trunk' in ['another']")
    assert "it is uint16 [1, 4, 72], not bf16 [2, 4, 72]" in judged["hc_post/random-T2"]
    assert "it is float32 [15, 4, 72], not bf16 [15, 4, 72]" in judged["hc_post/random-T15"]
    assert judged["hc_post/random-T33"] == "none  hc_post/random-T33"


def test_another_legal_rounding_passes_with_what_is_made_from_it(
    golden: Summary, answers: dict[str, Tensors], numpy_alone: Path, tmp_path: Path
) -> None:
    """A device may round some y up by a place; its codes are those of its own y."""
    case = next(c for c in golden.cases if c.startswith("rms_norm/") and "yq.data" in answers[c] and "T17" in c)
    y = answers[case]["y"].clone()
    y.view(torch.int16)[3] += 1
    codes, scales = encode(y.double().numpy(), "mxfp8")
    mine = {"y": y, "yq.data": torch.from_numpy(codes), "yq.scale": torch.from_numpy(scales)}
    assert int((mine["yq.data"] != answers[case]["yq.data"]).sum()) > 1
    status, lines = reader(golden, numpy_alone, "check", str(write(tmp_path / "own", {case: mine})), case)
    assert status == 0, lines
    mine["y"] = answers[case]["y"]  # the same codes without that rounding are wrong
    status, lines = reader(golden, numpy_alone, "check", str(write(tmp_path / "not", {case: mine})), case)
    assert status == 1 and "yq (class Q): codes differ" in lines[0]


def test_outputs_may_be_arrays_of_numpy(
    golden: Summary, answers: dict[str, Tensors], numpy_alone: Path, tmp_path: Path
) -> None:
    case = "hc_post/random-T2"
    (tmp_path / case).mkdir(parents=True)
    np.save(tmp_path / case / "trunk.npy", answers[case]["trunk"].view(torch.int16).numpy().view(np.uint16))
    assert reader(golden, numpy_alone, "check", str(tmp_path), case) == (0, [f"pass  {case}", "1 pass, 0 FAIL, 0 none"])
    assert reader(golden, numpy_alone, "check", str(tmp_path / "nothing"), case)[0] == 1


def test_damaged_files_fail_and_missing_cases_are_no_success(
    golden: Summary, answers: dict[str, Tensors], numpy_alone: Path, tmp_path: Path
) -> None:
    good, damaged, empty = (f"hc_post/random-T{rows}" for rows in (1, 2, 15))
    write(tmp_path, {good: answers[good]})
    (tmp_path / f"{damaged}.safetensors").write_bytes(b"\xff" * 64)
    (tmp_path / empty).mkdir()
    (tmp_path / empty / "trunk.npy").write_bytes(b"")
    status, lines = reader(golden, numpy_alone, "check", str(tmp_path), "hc_post/")
    said = {line.split()[1]: line for line in lines[:-1]}
    assert status == 1 and said[good] == f"pass  {good}"
    for case in (damaged, empty):
        wanted = f"FAIL  {case}  trunk (class U): no output 'trunk' in ['a file that cannot be read: "
        assert said[case].startswith(wanted)
    for case in (damaged, empty):
        (tmp_path / f"{case}.safetensors").unlink(missing_ok=True)
        shutil.rmtree(tmp_path / case, ignore_errors=True)
    status, lines = reader(golden, numpy_alone, "check", str(tmp_path), "hc_post/")
    assert status == 1 and f"none  {damaged}" in lines and lines[-1].startswith("1 pass, 0 FAIL, ")
    assert reader(golden, numpy_alone, "check", str(tmp_path), good)[0] == 0, "the case that is wanted is there"


def test_cases_are_listed_by_filter(golden: Summary, numpy_alone: Path) -> None:
    status, lines = reader(golden, numpy_alone, "list", "hc_post/")
    assert status == 0 and "hc_post/random-T1: y, trunk, post, comb" in lines
    assert len([line for line in lines if line]) == len(OP_TABLE["hc_post"].cases)
    lines = reader(golden, numpy_alone, "list", "linear/")[1]  # no group_linear
    assert len([line for line in lines if line]) == len(OP_TABLE["linear"].cases)


def test_a_filtered_export_has_those_cases_alone(golden: Summary, tmp_path: Path) -> None:
    summary = export(tmp_path / "some", "hc_mean/")
    assert summary.cases == tuple(f"hc_mean/{case.name}" for case in OP_TABLE["hc_mean"].cases)
    for file in ("hc_mean/random-T2.json", "hc_mean/random-T2.safetensors", "check.py"):
        assert (tmp_path / "some" / file).read_bytes() == (golden.directory / file).read_bytes(), "the same bytes again"
    with pytest.raises(ConfigError, match="golden cases are not written over other files"):
        export(tmp_path / "some", "hc_mean/")
    with pytest.raises(ConfigError, match="no golden case was chosen.*'no_such_op/'"):
        export(tmp_path / "other", "no_such_op/")
    shutil.rmtree(tmp_path / "some")


def test_the_example_on_the_page_passes(tmp_path: Path, numpy_alone: Path) -> None:
    root = export(tmp_path / "cases", "hc_mean/").directory
    page = (root / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    code += "import sys, check\nsys.exit(check.main(['check', 'mine', case]))\n"
    environ = {"PYTHONPATH": f"{numpy_alone}:{root}", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=root, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 pass, 0 FAIL, 0 none"), done.stdout + done.stderr


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cases"
    assert main(["conformance", "--golden", str(folder), "--case", "hc_expand/", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["directory"] == str(folder)
    assert said["cases"] == json.loads((folder / "index.json").read_text())["cases"]
    assert main(["conformance", "--golden", str(tmp_path / "two"), "--quick", "--backend", "cpu"]) != 0
    said = capsys.readouterr().err
    assert "--backend and --quick are about checking a backend" in said and "leave out --backend and --quick" in said
    assert not (tmp_path / "two").exists()
