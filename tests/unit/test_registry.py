"""Selection of a backend: order, errors, and no silent fallback."""

from __future__ import annotations

import importlib.metadata
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tandem.backends.cpu.backend import CpuBackend
from tandem.config import load_config
from tandem.contract import registry
from tandem.contract.backend import Backend
from tandem.contract.capabilities import Probe
from tandem.errors import (
    BackendLoadError,
    BackendNotFound,
    ConfigError,
    ContractError,
    DeviceIndexError,
    TandemError,
)

Install = Callable[..., None]


class Toy(CpuBackend):
    """An accelerator from another package."""

    name = "toy"

    @classmethod
    def probe(cls) -> Probe:
        return Probe(True, "a toy on the desk")

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> CpuBackend:
        return cls(use_native=False)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TANDEM_BACKEND", "TANDEM_REQUIRE_ACCELERATOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Register backend classes as if packages had brought them; a value that is no class fails to import."""

    def run(**backends: Any) -> None:
        entries = []
        for name, backend in backends.items():
            module = types.ModuleType(f"package_of_{name}")
            if isinstance(backend, type):
                module.BACKEND = backend  # type: ignore[attr-defined]
                monkeypatch.setitem(sys.modules, module.__name__, module)
            target = f"{module.__name__}:BACKEND"
            entries.append(importlib.metadata.EntryPoint(name, target, registry.ENTRY_POINTS))
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)

    return run


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
    assert "cuda: " in caught.value.why and "ascend: " in caught.value.why and "cpu: " not in caught.value.why
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
    assert "did you mean 'ascend'?" in caught.value.why
    assert "cpu (from tandem)" in caught.value.why
    with pytest.raises(BackendNotFound) as caught:
        registry.open_backend("zzzzzz")
    assert "did you mean" not in caught.value.why


@pytest.mark.parametrize("name", ["cuda", "ascend"])
def test_absent_accelerators_explain_and_do_not_fall_back(name: str) -> None:
    with pytest.raises(BackendLoadError) as caught:
        registry.open_backend(f"{name}:0")
    four_parts(caught.value)
    assert f"backend '{name}' was requested but cannot be opened" in caught.value.what
    assert f"no {name} kernels" in caught.value.why and "No fallback was made" in caught.value.fix


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
    with pytest.raises(DeviceIndexError, match="'cpu:1' does not exist") as caught:
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


def test_a_registration_that_raises_is_shown(install: Install) -> None:
    install(toy="nothing to import")
    probe = registry.probe_all()["toy"]
    assert not probe.present and "registration failed" in probe.reason
    assert "ModuleNotFoundError: No module named 'package_of_toy'" in probe.reason
    with pytest.raises(BackendLoadError, match="backend 'toy' was requested but its registration failed") as caught:
        registry.open_backend("toy")
    assert "package_of_toy" in caught.value.why
    assert caught.value.__cause__ is not None
    assert registry.open_backend("cpu").name == "cpu"


def test_a_probe_that_raises_is_shown(install: Install) -> None:
    class Raising(Toy):
        @classmethod
        def probe(cls) -> Probe:
            raise RuntimeError("the driver answered 42")

    install(toy=Raising)
    assert "the driver answered 42" in registry.probe_all()["toy"].reason
    with pytest.warns(UserWarning):
        assert registry.select(None, {}) == "cpu"


@pytest.mark.parametrize(("version", "accepted"), [((1, 0), True), ((1, 7), True), ((0, 9), False), ((2, 0), False)])
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
    registry.probe_all()
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
