"""Selection of a backend: order, errors, and no silent fallback."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.registered import Toy, register

from tandem.backends.cpu.backend import CpuBackend
from tandem.config import load_config
from tandem.contract import registry
from tandem.contract.backend import Backend
from tandem.contract.capabilities import Probe
from tandem.contract.probing import probe_all
from tandem.errors import (
    BackendLoadError,
    BackendNotFound,
    ConfigError,
    ContractError,
    DeviceIndexError,
    TandemError,
)

Install = Callable[..., None]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("TANDEM")]:
        monkeypatch.delenv(name)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Register backend classes as if packages had brought them; a value that is no class fails to import."""

    return functools.partial(register, monkeypatch)


def four_parts(error: TandemError) -> None:
    parts = error.to_dict()
    assert all(parts[name] for name in ("what", "where", "why", "fix"))


def test_shipped_names() -> None:
    assert {"cpu", "cuda", "ascend"} <= set(registry.registrations())


def test_explicit_before_environment_before_automatic() -> None:
    environment = {"TANDEM_BACKEND": "ascend:2"}
    assert registry.select("cuda", environment) == "cuda"
    assert registry.select(None, environment) == "ascend:2"
    with pytest.warns(UserWarning):
        assert registry.select("auto", environment) == "cpu"
    with pytest.warns(UserWarning):
        assert registry.select(None, {}) == "cpu"
    with pytest.warns(UserWarning):
        assert registry.select(None, {"TANDEM_BACKEND": ""}) == "cpu"


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_BACKEND", "cpu:0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.open_backend().name == "cpu"


def test_automatic_without_accelerator_warns_once() -> None:
    with pytest.warns(UserWarning, match="no accelerator found.*TANDEM_BACKEND=cpu") as caught:
        assert registry.open_backend().name == "cpu"
    assert len(caught) == 1


def test_a_named_cpu_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.open_backend("cpu").name == "cpu"


def test_an_accelerator_can_be_required() -> None:
    with pytest.raises(BackendLoadError, match="no accelerator is present") as caught:
        registry.select(None, {"TANDEM_REQUIRE_ACCELERATOR": "1"})
    four_parts(caught.value)
    assert "cuda: " in caught.value.why and "ascend: " in caught.value.why
    assert "cpu: host processor, which is no accelerator" in caught.value.why
    assert registry.select("cpu", {"TANDEM_REQUIRE_ACCELERATOR": "1"}) == "cpu"


def test_one_accelerator_is_taken_without_a_warning(install: Install) -> None:
    install(toy=Toy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.open_backend().name == "toy"


def test_several_accelerators_must_be_chosen_from(install: Install) -> None:
    install(toy=Toy, other=Toy)
    with pytest.raises(BackendLoadError, match="more than one accelerator") as caught:
        registry.open_backend()
    four_parts(caught.value)
    assert "toy, other" in caught.value.why
    assert registry.open_backend("other").name == "toy"


def test_an_unknown_name_gets_a_close_match(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendNotFound) as caught:
        registry.open_backend("acsend", origin="--backend")
    four_parts(caught.value)
    assert caught.value.what == "backend 'acsend' is not registered" and "--backend" in caught.value.where
    monkeypatch.setenv("TANDEM_BACKEND", "acsend")
    with pytest.raises(BackendNotFound) as caught:
        registry.open_backend()
    assert caught.value.what == "TANDEM_BACKEND='acsend' is not registered"
    assert "Did you mean 'ascend'?" in caught.value.why
    with pytest.raises(BackendNotFound) as caught:
        registry.open_backend("zzzzzz")
    assert caught.value.why == "Registered: ascend, cpu, cuda (from tandem)"
    for odd in ("CPU", "cpu ", "cpus"):
        with pytest.raises(BackendNotFound) as caught:
            registry.open_backend(odd)
        assert "Did you mean 'cpu'?" in caught.value.why


@pytest.mark.parametrize("name, why", [("cuda", "there is no NVIDIA driver"), ("ascend", "there is no Ascend driver")])
def test_absent_accelerators_explain_and_do_not_fall_back(name: str, why: str) -> None:
    with pytest.raises(BackendLoadError) as caught:
        registry.open_backend(f"{name}:0")
    four_parts(caught.value)
    assert f"backend '{name}' was requested but cannot be opened" in caught.value.what
    assert why in caught.value.why and "No fallback was made" in caught.value.fix


def test_a_failing_named_backend_does_not_fall_back(install: Install) -> None:
    class Broken(Toy):
        @classmethod
        def open(cls, device_id: int, options: Mapping[str, Any]) -> CpuBackend:
            raise BackendLoadError("no", where="toy", why="the toy is broken", fix="mend it")

    install(toy=Broken)
    with pytest.raises(BackendLoadError, match="the toy is broken"):
        registry.open_backend("toy")
    with pytest.raises(BackendLoadError, match="the toy is broken"):
        registry.open_backend()  # taken because it is the only one, and then it is not left


def test_a_device_index_that_does_not_exist() -> None:
    with pytest.raises(DeviceIndexError, match="'cpu:1' but 1 device is visible") as caught:
        registry.open_backend("cpu:1")
    four_parts(caught.value)


@pytest.mark.parametrize("selector", ["cpu:", "cpu:x", "cpu:-1", "cpu:0:1"])
def test_a_selector_that_cannot_be_read(selector: str) -> None:
    with pytest.raises(ConfigError, match="is not a backend selector"):
        registry.open_backend(selector)


def test_selectors() -> None:
    assert registry.parse_selector("cpu") == ("cpu", 0) and registry.parse_selector("toy:12") == ("toy", 12)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown backend option threads"):
        registry.open_backend("cpu", {"threads": 4})


def test_duplicate_names_are_an_error(install: Install) -> None:
    install(cpu=Toy)
    with pytest.raises(ContractError, match="two backends are called 'cpu'") as caught:
        registry.open_backend("cpu")
    four_parts(caught.value)


def test_a_registration_that_raises_is_kept_with_its_traceback(install: Install) -> None:
    install(toy="nothing to import")
    found = probe_all()["toy"]
    error = "ModuleNotFoundError: No module named 'package_of_toy'"
    assert (found.state, found.failed, found.contract) == ("failed", True, None)
    assert found.probe.reason == f"its registration failed: {error}"
    assert found.trace.startswith("Traceback ") and found.trace.rstrip().endswith(error)
    with pytest.raises(BackendLoadError, match="backend 'toy' was requested but its registration failed") as caught:
        registry.open_backend("toy")
    assert "package_of_toy" in caught.value.why
    assert caught.value.__cause__ is not None
    assert registry.open_backend("cpu").name == "cpu"


def test_a_probe_that_raises_is_kept_with_its_traceback(install: Install) -> None:
    class Raising(Toy):
        @classmethod
        def probe(cls) -> Probe:
            raise RuntimeError("the driver answered 42")

    install(toy=Raising)
    found = probe_all()["toy"]
    assert found.probe.reason == "its probe failed: RuntimeError: the driver answered 42"
    assert (found.state, found.contract) == ("failed", (1, 2)) and "in probe" in found.trace


def test_automatic_selection_names_registrations_that_failed(install: Install) -> None:
    """Running on the CPU because a plug-in is broken is said in the one warning, with the plug-in's own error."""
    install(toy="nothing to import")
    told = r"backend 'toy' \(from entry point\): its registration failed: ModuleNotFoundError: No module named "
    with pytest.warns(UserWarning, match=f"^no accelerator found, running on the CPU .*; {told}") as caught:
        assert registry.select(None, {}) == "cpu"
    assert len(caught) == 1
    with pytest.raises(BackendLoadError, match="toy: its registration failed: ModuleNotFoundError"):
        registry.select(None, {"TANDEM_REQUIRE_ACCELERATOR": "1"})
    install(toy="nothing to import", other=Toy)
    with pytest.warns(UserWarning, match=f"^running on other, the only accelerator found; {told}"):
        assert registry.select(None, {}) == "other"


def test_what_is_registered_must_be_a_backend_class(install: Install) -> None:
    install(number=int, nameless=type("Nameless", (Backend,), {"contract": (1, 2)}))
    reasons = {name: found.probe.reason for name, found in probe_all().items() if found.failed}
    assert set(reasons) == {"number", "nameless"}
    assert "'int'> is no subclass of tandem.contract.backend.Backend" in reasons["number"]
    assert "the class sets no name" in reasons["nameless"]


def test_opening_an_incomplete_class_names_what_it_lacks(install: Install) -> None:
    members: dict[str, Any] = {"name": "half", "contract": (1, 2), "close": lambda self: None}
    members["open"] = classmethod(lambda cls, device_id, options: cls())
    members["probe"] = classmethod(lambda cls: Probe(True, "there"))
    install(half=type("Half", (Backend,), members))
    with pytest.raises(BackendLoadError, match="TypeError: Can't instantiate abstract class.*kv_alloc") as caught:
        registry.open_backend("half")
    assert "'close'" not in caught.value.why


def test_a_backend_of_another_package_has_a_package_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        importlib.metadata.EntryPoint(name, f"tandem.backends.{name}.backend:BACKEND", registry.ENTRY_POINTS)
        for name in ("cpu", "foreign")
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    assert registry.registrations()["cpu"].origin == "tandem"
    found = probe_all()["foreign"]
    assert found.failed and "'foreign' lies in a package that is not its own" in found.probe.reason


def test_a_class_off_the_surface_is_a_failed_registration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "from tandem.contract.backend import Backend\nclass B(Backend):\n    def colse(self): ...\n"
    (tmp_path / "package_of_toy.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    register(monkeypatch, toy="nothing")
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    assert "unknown public name 'colse' (did you mean 'close'?)" in probe_all()["toy"].probe.reason


@pytest.mark.parametrize(
    "name", ["TANDEM_BACKENDS", "TANDEM_DEVICE", "TANDEMBACKEND", "tandem_backend", "Tandem-Backend", "TADNEM_BACKEND"]
)
def test_a_variable_that_looks_like_the_right_one_is_not_passed_over(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.select(None, {name: "ascend"})
    assert caught.value.what == f"the environment variable {name} is not read"
    assert caught.value.why == "did you mean TANDEM_BACKEND=ascend?"
    assert registry.select(None, {name: "ascend", "TANDEM_BACKEND": "cpu"}) == "cpu"
    assert registry.select("cpu", {name: "ascend"}) == "cpu"


def test_the_registry_imports_no_torch() -> None:
    program = (
        "import sys; from tandem.contract import registry; print(sorted(registry.registrations())); "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['ascend', 'cpu', 'cuda']\n[]\n"


FITTING = [((1, 2), True), ((1, 7), True), ((1, 1), False), ((0, 9), False), ((2, 2), False)]


@pytest.mark.parametrize(("version", "accepted"), FITTING)
def test_the_contract_version_must_fit(install: Install, version: tuple[int, int], accepted: bool) -> None:
    class Versioned(Toy):
        contract = version

    install(toy=Versioned)
    if accepted:
        assert isinstance(registry.open_backend("toy"), Backend)
        return
    with pytest.raises(ContractError, match=f"backend 'toy' implements contract {version[0]}.{version[1]}"):
        registry.open_backend("toy")


def test_probing_loads_no_vendor_library() -> None:
    before = set(sys.modules)
    probe_all()
    assert not {"torch_npu", "triton"} & (set(sys.modules) - before)


def test_automatic_selection_takes_no_index() -> None:
    with pytest.raises(ConfigError) as caught:
        registry.parse_selector("auto:3")
    assert "automatic selection takes no index" in caught.value.why


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_BACKEND", "")
    assert load_config().backend.name == "auto"
    with pytest.warns(UserWarning, match="no accelerator found"):
        assert registry.resolve()[0].name == "cpu"
