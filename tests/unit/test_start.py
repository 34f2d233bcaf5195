"""What starting loads: torch takes longer to import than everything else, and is left until something computes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tandem.backends.cpu.loading import native_status
from tandem.cli.autoload import SWITCH
from tandem.contract import declared
from tandem.contract.opspec import CONTRACT_VERSION, OP_TABLE, TABLE_HASHES, table_signature

HEAVY = "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'numpy', 'triton', 'tokenizers', 'cffi'}))\n"


def fresh(program: str) -> str:
    """What a process of its own prints, on a machine where torch loads no vendor packages."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {SWITCH: "0"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_loads_nothing() -> None:
    assert fresh("import sys, tandem\n" + HEAVY) == "[]\n"


def test_options_and_the_list_of_backends_load_nothing() -> None:
    program = "import sys; from tandem.config import load_config; from tandem.contract.registry import registrations\n"
    assert fresh(program + "load_config(env={}); registrations()\n" + HEAVY) == "[]\n"


def test_the_survey_of_the_doctor_runs_without_torch() -> None:
    """Backends are loaded and probed, the op table is hashed and the model is read."""
    program = "import sys; from tandem.cli import survey\nsurvey.main()\nprint('torch' in sys.modules)\n"
    survey, imported = fresh(program).splitlines()
    assert imported == "False" and '"table": "frozen"' in survey and '"state": "present"' in survey


@pytest.mark.skipif(not native_status().parallel, reason="the native kernels have no OpenMP runtime here")
def test_a_library_loaded_before_torch_shares_its_threads() -> None:
    """Whoever probes first and computes later has the kernels of a process that imported torch first."""
    program = (
        "import sys; from tandem.backends.cpu.backend import CpuBackend\n"
        "CpuBackend.probe()\n"
        "assert 'torch' not in sys.modules\n"
        "from tandem.backends.cpu import native\n"
        "runtimes = {line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line}\n"
        "print(native.library().parallel, len(runtimes))\n"
    )
    assert fresh(program) == "True 1\n"


# -- the op table, read from its sources -------------------------------------------------------------------------


def test_declarations_are_those_of_the_imported_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {item.name: item for item in declared.declarations()}
    assert set(found) == set(OP_TABLE)
    for name, spec in OP_TABLE.items():
        assert (found[name].attrs, found[name].classes) == (spec.attrs, spec.classes)
    monkeypatch.delitem(sys.modules, declared.PACKAGE)  # as where nobody imported them
    assert table_signature() == TABLE_HASHES[CONTRACT_VERSION]


def test_forms_of_declarations() -> None:
    source = (
        "@op('a.b', classes=dict.fromkeys(('y', 'z'), 'X'), attrs=('k',))\n"
        "@other\n"
        "def some(parts, x, /, y, *rest, k=1, **more): ...\n"
        "@case('a.b', 'small')\n"
        "def case(seed): ...\n"
    )
    arguments = ("parts", "x", "y", "rest", "k", "more")
    assert list(declared.read(source)) == [("a.b", arguments, ("k",), {"y": "X", "z": "X"})]
    with pytest.raises(ValueError):
        list(declared.read("@op(NAME, classes={})\ndef some(x): ...\n"))
