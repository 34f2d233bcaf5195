"""Errors of selection, loading, versions and unsupported ops, word for word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from support.registered import Toy, register

from tandem.backends.ascend import host
from tandem.contract import opspec, probing, registry, versions
from tandem.contract.backend import Backend
from tandem.contract.capabilities import Capabilities, OpCap, Probe
from tandem.contract.devices import check_index
from tandem.contract.opspec import OP_TABLE, OpFunction, OpSpec
from tandem.contract.plan import Plan
from tandem.contract.probing import Probed
from tandem.contract.registry import Registration
from tandem.contract.types import QFormat, QTensor
from tandem.contract.versions import VersionRow, check_versions
from tandem.errors import (
    BackendLoadError,
    BackendNotFound,
    ConfigError,
    ContractError,
    DeviceIndexError,
    LayoutError,
    OpUnsupported,
    VersionError,
)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TANDEM_BACKEND", "TANDEM_COMPOSITE"):
        monkeypatch.delenv(name, raising=False)
    register(monkeypatch, toy=Toy)


def test_backend_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_BACKEND", "acsend")
    with pytest.raises(BackendNotFound) as caught:
        registry.open_backend()
    assert str(caught.value) == (
        "TANDEM_BACKEND='acsend' is not registered. Where: backend selection, from environment TANDEM_BACKEND. "
        "Why: Did you mean 'ascend'? Registered: ascend, cpu, cuda (from tandem), toy (from entry point). "
        "Fix: use a registered name, or install the package that provides the backend."
    )


def test_backend_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Toy):
        @classmethod
        def open(cls, device_id: int, options: Mapping[str, Any]) -> Backend:
            raise OSError("libtoy_hal.so: cannot open shared object file")

    register(monkeypatch, toy=Broken)
    with pytest.raises(BackendLoadError) as caught:
        registry.open_backend("toy")
    assert str(caught.value) == (
        "backend 'toy' was requested but cannot be opened. Where: toy:0, package_of_toy:BACKEND from entry point. "
        "Why: OSError: libtoy_hal.so: cannot open shared object file. Checked: spring=wound, toykit=3.1. "
        "Fix: repair what the cause names, or set TANDEM_BACKEND=cpu to run the reference. No fallback was made."
    )
    assert isinstance(caught.value.__cause__, OSError)


def test_registration_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, gone="nothing to import")
    with pytest.raises(BackendLoadError) as caught:
        registry.open_backend("gone")
    assert str(caught.value) == (
        "backend 'gone' was requested but its registration failed. Where: package_of_gone:BACKEND from entry point. "
        "Why: ModuleNotFoundError: No module named 'package_of_gone'. "
        "Fix: repair or uninstall the package; 'tandem doctor' shows the traceback. No fallback was made."
    )


def test_absent_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ASCEND_VISIBLE_DEVICES", "3,4")
    for name in ("CONTROL", "DRIVER", "FIRMWARE"):
        monkeypatch.setattr(host, name, "/nowhere/davinci")
    monkeypatch.setattr(host, "PACKAGE", "no-such-package")
    with pytest.raises(BackendLoadError) as caught:
        registry.open_backend("ascend:2")
    assert str(caught.value) == (
        "backend 'ascend' was requested but cannot be opened. Where: ascend:2. "
        "Why: there is no Ascend driver: /nowhere/davinci is absent. "
        "Checked: /nowhere/davinci=absent, no-such-package=not installed, CANN=unknown, driver=unknown, "
        "firmware=unknown, ASCEND_TOOLKIT_HOME=unset, ASCEND_HOME_PATH=unset, ASCEND_RT_VISIBLE_DEVICES=unset, "
        "ASCEND_VISIBLE_DEVICES=set, and not read: did you mean ASCEND_RT_VISIBLE_DEVICES?, NPU files=0, "
        "logical devices=none. "
        "Fix: install the driver, or set TANDEM_BACKEND=cpu to run the reference. No fallback was made."
    )


def probed(name: str, answer: Probe) -> Probed:
    return Probed(Registration(name, "tandem", f"{name}:BACKEND"), answer, (1, 0))


def test_no_candidate_is_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = {
        "cuda": probed("cuda", Probe(False, "no driver\n(details)")),
        "ascend": probed("ascend", Probe(False, "libhccl.so is missing")),
        "cpu": probed("cpu", Probe(True, "host processor", accelerator=False)),
    }
    monkeypatch.setattr(probing, "probe_all", lambda: candidates)
    with pytest.raises(BackendLoadError) as caught:
        registry.select(None, {"TANDEM_REQUIRE_ACCELERATOR": "1"})
    assert str(caught.value) == (
        "no accelerator is present. Where: backend selection with TANDEM_REQUIRE_ACCELERATOR=1. "
        "Why: cuda: no driver; ascend: libhccl.so is missing; cpu: host processor, which is no accelerator. "
        "Fix: install the driver, or unset TANDEM_REQUIRE_ACCELERATOR to run on the CPU."
    )


def test_several_candidates_are_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = {name: probed(name, Probe(True, "there")) for name in ("cuda", "ascend")}
    monkeypatch.setattr(probing, "probe_all", lambda: candidates)
    with pytest.raises(BackendLoadError) as caught:
        registry.select(None, {})
    assert str(caught.value) == (
        "more than one accelerator is present. Where: backend selection. "
        "Why: found cuda, ascend and none was named. Fix: set TANDEM_BACKEND to one of them."
    )


def test_look_alike_variable() -> None:
    with pytest.raises(ConfigError) as caught:
        registry.select(None, {"TANDEM_DEVICE": "ascend:1"})
    assert str(caught.value) == (
        "the environment variable TANDEM_DEVICE is not read. Where: environment TANDEM_DEVICE. "
        "Why: did you mean TANDEM_BACKEND=ascend:1?. Fix: set TANDEM_BACKEND, or unset TANDEM_DEVICE."
    )


MATRIX = [
    VersionRow("toy", {"torch": "2.13.0", "torch-toy": "2.13.0rc1"}, {"CANN": "9.2"}, "toy.md"),
    VersionRow("toy", {"torch": "2.14", "torch-toy": "2.14"}),
]
INSTALLED = {"torch": "2.13.0+cpu", "torch-toy": "2.11.0", "CANN": "9.2"}


def test_versions_that_are_not_tested() -> None:
    with pytest.raises(VersionError) as caught:
        check_versions("toy", INSTALLED, MATRIX, {})
    assert str(caught.value) == (
        "torch 2.13.0+cpu with torch-toy 2.11.0 is not in the tested matrix. Where: backend 'toy'. "
        "Why: Tested with CANN 9.2: torch 2.13.0 + torch-toy 2.13.0rc1. "
        "Fix: install a tested set, or set TANDEM_ALLOW_UNTESTED=1 to go on."
    )
    check_versions("toy", INSTALLED, MATRIX, {"TANDEM_ALLOW_UNTESTED": "1"})
    check_versions("toy", INSTALLED | {"torch-toy": "2.13.0rc1"}, MATRIX, {})
    check_versions("other", INSTALLED, MATRIX, {})
    with pytest.raises(VersionError):
        check_versions("toy", {"torch": "2.14.1", "torch-toy": "2.14.0"}, MATRIX, {})  # declared is not tested


def test_versions_are_checked_before_a_backend_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "matrix", lambda: [VersionRow("toy", {"torch": "1.0"}, {"toykit": "3"}, "toy.md")])
    with pytest.raises(VersionError, match=r"^torch [\d.+a-z]+ is not in the tested matrix.*with toykit 3: torch 1.0"):
        registry.open_backend("toy")
    monkeypatch.setenv("TANDEM_ALLOW_UNTESTED", "1")
    assert registry.open_backend("toy").name == "toy"


def test_older_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(Toy):
        contract = (1, 2)

    register(monkeypatch, toy=Older)
    monkeypatch.setattr(opspec, "CONTRACT_VERSION", (1, 4))
    monkeypatch.setitem(OP_TABLE, "draft_heads", OpSpec("draft_heads", lambda x: x, {"y": "A"}, since=(1, 4)))
    monkeypatch.setitem(OP_TABLE, "known", OpSpec("known", lambda x: x, {"y": "A"}, since=(1, 2)))
    with pytest.raises(ContractError) as caught:
        registry.open_backend("toy")
    assert str(caught.value) == (
        "backend 'toy' implements contract 1.2, core needs >= 1.4 with the same major. "
        "Where: package_of_toy:BACKEND from entry point. Why: op 'draft_heads' since 1.4. "
        "Fix: install a version of the backend for contract 1.4."
    )
    monkeypatch.delitem(OP_TABLE, "draft_heads")
    with pytest.raises(ContractError, match="later minors added arguments or formats that it does not know"):
        registry.open_backend("toy")
    monkeypatch.setattr(opspec, "CONTRACT_VERSION", (2, 0))
    with pytest.raises(ContractError, match="core needs >= 2.0 with the same major.*another major changes what ops"):
        registry.open_backend("toy")


def test_an_op_declared_newer_than_the_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op gets its version where it is declared; the default is the first contract."""
    monkeypatch.setattr(opspec, "OP_TABLE", dict(OP_TABLE))
    monkeypatch.setattr(opspec, "CONTRACT_VERSION", (1, 3))
    opspec.op("later", classes={"y": "X"}, since=(1, 3))(lambda x: x)
    opspec.op("first", classes={"y": "X"})(lambda x: x)
    with pytest.raises(ContractError, match=r"core needs >= 1\.3 .* Why: op 'later' since 1\.3\. Fix:"):
        registry.open_backend("toy")


def test_device_index() -> None:
    with pytest.raises(DeviceIndexError) as caught:
        check_index("ascend", 5, 4, "ASCEND_RT_VISIBLE_DEVICES=1,3,5,7")
    assert str(caught.value) == (
        "TANDEM_BACKEND='ascend:5' but 4 devices are visible. Where: backend 'ascend'. "
        "Why: ASCEND_RT_VISIBLE_DEVICES=1,3,5,7 -> logical 0..3. Fix: use ascend:0 to ascend:3."
    )
    with pytest.raises(DeviceIndexError) as caught:
        registry.open_backend("cpu:1")
    assert str(caught.value) == (
        "TANDEM_BACKEND='cpu:1' but 1 device is visible. Where: backend 'cpu'. "
        "Why: the host processor -> logical 0. Fix: use cpu:0."
    )
    with pytest.raises(DeviceIndexError, match="but 0 devices are visible.*-> none. Fix: use another backend than toy"):
        check_index("toy", 0, 0, "TOYS=")
    check_index("toy", 3, 4, "")


class Picky(Toy):
    """An own implementation of one op for one format; its composite can do another."""

    @property
    def caps(self) -> Capabilities:
        experts = OpCap("fused", {"w": frozenset({"mxfp4"})})
        grouped = OpCap("composite", {"w": frozenset({"mxfp4", "fp8_block32"})})
        ops = {"moe_experts": experts, "grouped_linear": grouped}
        return Capabilities((1, 0), frozenset(), ops, False, False)

    def implementation(self, op: str) -> OpFunction | None:
        return (lambda *_: "own") if op == "moe_experts" else None


def test_unsupported_op(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Picky(use_native=False)
    with pytest.raises(OpUnsupported) as caught:
        Plan(backend).bind("moe_experts", "model.layers.12.moe", x="mxfp8", w="fp8_block32")
    assert str(caught.value) == (
        "op 'moe_experts' on backend 'toy' has no implementation for x=mxfp8, w=fp8_block32. "
        "Where: model.layers.12.moe. Why: w=fp8_block32 is not supported. Supported: w=mxfp4. "
        "Fix: the composite (grouped_linear+swiglu_quant) can run: set TANDEM_COMPOSITE=moe_experts, or repack the "
        "checkpoint. Raised while planning; no step has run."
    )
    monkeypatch.setenv("TANDEM_COMPOSITE", "rope, moe_experts")
    plan = Plan(backend)
    assert plan.bind("moe_experts", "model.layers.12.moe", x="mxfp8", w="fp8_block32") is not None
    assert [binding.impl for binding in plan.bindings] == ["composite"]


def test_a_composite_that_cannot_run_either_is_not_offered() -> None:
    with pytest.raises(OpUnsupported) as caught:
        Plan(Picky(use_native=False)).bind("moe_experts", "moe", x="mxfp8", w="bf16")
    assert caught.value.fix == "use a supported one, or another backend. Raised while planning; no step has run"


def test_composite_of_no_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_COMPOSITE", "moe_expert")
    with pytest.raises(ConfigError) as caught:
        Plan(Picky(use_native=False))
    assert str(caught.value) == (
        "TANDEM_COMPOSITE names an op that does not exist. Where: environment TANDEM_COMPOSITE. "
        "Why: 'moe_expert' is not in the contract. Fix: did you mean moe_experts?"
    )


def test_foreign_layout() -> None:
    zeros = torch.zeros(2, 32, dtype=torch.uint8)
    with pytest.raises(LayoutError) as caught:
        QTensor(zeros, zeros, QFormat.MXFP8, (2, 32), "other.tiles").require("linear", QFormat.MXFP8)
    assert str(caught.value) == (
        "'linear' got a quantised tensor it does not read. Where: op 'linear', shape (2, 32). "
        "Why: it is mxfp8 in layout 'other.tiles', the op reads mxfp8 in 'canonical'. "
        "Fix: convert with to_canonical()/from_canonical() of the backend that made it."
    )
