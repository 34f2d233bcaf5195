"""Rules about who may know whom, checked on the source text.

Each rule is a function from a parsed file to its violations.  One test runs every rule over the tree; another
runs it on a planted violation, so that a rule that sees nothing does not pass for a clean tree.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("cpu", "cuda", "ascend")
VENDOR_MODULES = {
    "torch_npu", "triton", "cupy", "pynvml", "pycuda", "tensorrt", "flashinfer", "flash_attn", "deep_gemm",
    "acl", "tbe", "te", "nvidia", "cutlass", "tilelang",
}  # fmt: skip
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
# Tensor methods that compute, without those that lists, dicts and strings have too. Reading a shape
# differently computes nothing.
TENSOR_METHODS = {name for name in dir(torch.Tensor) if not name.startswith("_")} - {
    *dir(list), *dir(dict), *dir(str), "view", "reshape"
}  # fmt: skip

Rule = Callable[[str, ast.Module, str], Iterator[str]]


def imports(tree: ast.Module) -> Iterator[str]:
    """Full dotted names of everything a file imports; relative imports do not occur in the packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def dotted(node: ast.expr) -> str:
    """``torch.nn.Linear`` for nested attributes of a name; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def core_knows_no_vendor(path: str, tree: ast.Module, text: str) -> Iterator[str]:
    if not path.startswith("core/"):
        return
    for name in imports(tree):
        if name.split(".")[0] in VENDOR_MODULES or name.startswith(("torch.cuda", "torch.npu")):
            yield f"imports the vendor module {name}"
    for word in re.findall(r"(?<![a-z])(?:cuda|npu)(?![a-z])", text, flags=re.IGNORECASE):
        yield f"mentions '{word}'"


def core_imports_no_backend(path: str, tree: ast.Module, text: str) -> Iterator[str]:
    """The registry may list the package `tandem.backends`; a particular backend is loaded by name only."""
    if path.startswith("core/"):
        yield from (f"imports {n}" for n in imports(tree) if n.startswith("tandem.backends."))


def backends_do_not_know_each_other(path: str, tree: ast.Module, text: str) -> Iterator[str]:
    own = re.match(r"backends/(\w+)/", path)
    for name in imports(tree) if own else ():
        if any(name.startswith(f"tandem.backends.{b}") for b in BACKENDS if own and b != own[1]):
            yield f"imports {name}"


def only_mapped_names_are_imported(path: str, tree: ast.Module, text: str) -> Iterator[str]:
    for name in imports(tree):
        if name.split(".")[0] in ("core", "backends"):
            yield f"imports {name}; core/ is tandem and backends/ is tandem.backends"
        if name.startswith(".") and path.startswith(("core/", "backends/")):
            yield f"imports {name} relatively"


def nothing_is_unpickled(path: str, tree: ast.Module, text: str) -> Iterator[str]:
    for name in imports(tree):
        if name.split(".")[0] in UNSAFE_MODULES or name == "torch.load":
            yield f"imports {name}"
    for call in calls(tree):
        if dotted(call.func) in ("torch.load", "torch.jit.load") or any(
            k.arg == "allow_pickle" for k in call.keywords
        ):
            yield f"line {call.lineno} loads code together with data"


def the_graph_uses_ops_only(path: str, tree: ast.Module, text: str) -> Iterator[str]:
    """Model code calls contract ops. Configuration, hash tables and the weight loader are host code."""
    name = path.removeprefix("core/model/")
    if name == path or name.startswith(("config", "engram_tables", "weights", "rope")):
        return
    for imported in imports(tree):
        if imported.startswith("torch.") and imported not in ("torch.Tensor", "torch.dtype"):
            yield f"imports {imported}"
    for call in calls(tree):
        function = dotted(call.func)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if function.startswith("torch."):
            yield f"line {call.lineno} calls {function}"
        elif method in TENSOR_METHODS and function.split(".")[0] not in ("np", "math"):
            yield f"line {call.lineno} calls the tensor method .{method}()"


def no_assert_outside_tests(path: str, tree: ast.Module, text: str) -> Iterator[str]:
    if path.startswith(("core/", "backends/")):
        yield from (f"line {n.lineno} asserts" for n in ast.walk(tree) if isinstance(n, ast.Assert))


def files_and_functions_stay_small(path: str, tree: ast.Module, text: str) -> Iterator[str]:
    if not path.startswith(("core/", "backends/")):
        return
    if text.count("\n") > 400:
        yield f"has {text.count(chr(10))} lines; 400 are the limit"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > 60:
                yield f"{node.name} has {length} lines; 60 are the limit"


PLANTED: list[tuple[Rule, str, str]] = [
    (core_knows_no_vendor, "core/x.py", "import triton.language as tl"),
    (core_knows_no_vendor, "core/x.py", "import torch.cuda"),
    (core_knows_no_vendor, "core/x.py", "device = 'CUDA:0'"),
    (core_knows_no_vendor, "core/x.py", "import torch_npu"),
    (core_imports_no_backend, "core/engine/x.py", "from tandem.backends import cpu"),
    (backends_do_not_know_each_other, "backends/cuda/x.py", "from tandem.backends.cpu.native import x"),
    (backends_do_not_know_each_other, "backends/cpu/x.py", "from tandem.backends import ascend"),
    (only_mapped_names_are_imported, "tests/x.py", "from core.errors import TandemError"),
    (only_mapped_names_are_imported, "examples/x.py", "import backends.cpu"),
    (only_mapped_names_are_imported, "core/x.py", "from .errors import TandemError"),
    (nothing_is_unpickled, "core/x.py", "import pickle"),
    (nothing_is_unpickled, "core/x.py", "import torch\ntorch.load('f')"),
    (nothing_is_unpickled, "core/x.py", "from torch import load"),
    (nothing_is_unpickled, "core/x.py", "import numpy as np\nnp.load('f', allow_pickle=True)"),
    (the_graph_uses_ops_only, "core/model/x.py", "import torch\ny = torch.cat([])"),
    (the_graph_uses_ops_only, "core/model/x.py", "def f(x):\n    return x.sum(-1)"),
    (the_graph_uses_ops_only, "core/model/x.py", "def f(x):\n    return x.view(2, 3).softmax(-1)"),
    (the_graph_uses_ops_only, "core/model/x.py", "from torch.nn import functional"),
    (no_assert_outside_tests, "backends/cpu/x.py", "assert 1"),
    (files_and_functions_stay_small, "core/x.py", "x = 1\n" * 401),
    (files_and_functions_stay_small, "core/x.py", "def f():\n" + "    pass\n" * 60),
]
RULES = list(dict.fromkeys(rule for rule, _, _ in PLANTED))


def python_files() -> list[Path]:
    folders = ("core", "backends", "tests", "examples", "benchmarks")
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps_the_rule(rule: Rule) -> None:
    found = []
    for path in python_files():
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        found += [f"{name}: {violation}" for violation in rule(name, ast.parse(text), text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED, ids=lambda v: getattr(v, "__name__", None))
def test_rule_sees_a_planted_violation(rule: Rule, path: str, text: str) -> None:
    assert list(rule(path, ast.parse(text), text))


def test_ordinary_words_are_no_vendor_words() -> None:
    text = "x = input_ids  # ascending, unput, barracuda\n"
    assert not list(core_knows_no_vendor("core/x.py", ast.parse(text), text))


def test_importing_tandem_starts_nothing() -> None:
    """No thread, no backend, no change of torch's threads, dtype or random state."""
    program = """
import sys, threading, torch
before = (torch.get_num_threads(), torch.get_default_dtype(), torch.random.get_rng_state().tolist())
import tandem
after = (torch.get_num_threads(), torch.get_default_dtype(), torch.random.get_rng_state().tolist())
assert before == after, "torch state changed"
assert threading.active_count() == 1, threading.enumerate()
loaded = sorted(m for m in sys.modules if m.startswith("tandem.backends"))
assert not loaded, loaded
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_data_files_of_core_name_no_vendor() -> None:
    texts = [p for p in (ROOT / "core").rglob("*") if p.suffix in (".toml", ".in", ".json", ".md")]
    assert len(texts) > 5
    word = re.compile(r"(?<![a-z])(?:cuda|npu)(?![a-z])", re.IGNORECASE)
    assert word.search('backend = "cuda"')
    assert [str(p) for p in texts if word.search(p.read_text(encoding="utf-8"))] == []
