"""Every refusal of the Ascend backend, from facts that are made up: no machine here has a device."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.backends.ascend import device, host, libraries, native, probing
from tandem.backends.ascend.backend import AscendBackend
from tandem.backends.ascend.host import Host
from tandem.backends.ascend.probing import Npu, check_chip, check_emulation, check_host, check_libraries
from tandem.errors import BackendLoadError, ConfigError, DeviceIndexError, TandemError, VersionError

FACTS = {"/dev/davinci_manager": "present", "torch-npu": "2.13.0", "ASCEND_RT_VISIBLE_DEVICES": "unset"}
GOOD = Host(FACTS, True, 4, None, package="2.13.0", torch="2.13.0+cpu", toolkit="/", script="")
NPU = Npu(0, 4, "Ascend950PR_9599", "9.2.0", "25.5.0")


def told(error: TandemError) -> str:
    assert all(error.to_dict().values())
    return f"{error.what} | {error.where} | {error.why} | {error.fix}"


def test_a_complete_machine_is_not_refused() -> None:
    check_host(GOOD, 0)
    check_host(replace(GOOD, package="2.13.0.post2", torch="2.13.0"), 0)
    check_libraries({}, GOOD, 0)
    check_emulation(replace(GOOD, npus=0))
    for name in ("Ascend950PR_9599", "Ascend950DT_9574"):
        check_chip(replace(NPU, soc=name))


@pytest.mark.parametrize(
    "change, kind, words",
    [
        ({"driver": False, "npus": 0}, BackendLoadError, ["no Ascend driver", "/dev/davinci_manager", "the driver"]),
        ({"npus": 0}, BackendLoadError, ["no NPU", "/dev/davinci0", "container"]),
        ({"visible": ""}, BackendLoadError, ["leaves no NPU", "names none of 0..3", "unset ASCEND_RT_VISIBLE_DEVICES"]),
        ({"visible": "3,1"}, BackendLoadError, ["ASCEND_RT_VISIBLE_DEVICES=3,1 leaves no NPU", "must ascend"]),
        ({"package": "not installed"}, BackendLoadError, ["torch-npu is not installed", "tandem-infer[ascend]"]),
        (
            {"package": "2.12.0.post3"},
            VersionError,
            ["torch-npu 2.12.0.post3 is for torch 2.12.0", "2.13.0+cpu is here"],
        ),
        ({"toolkit": ""}, BackendLoadError, ["no toolkit was sourced", "ASCEND_HOME_PATH", "none of the usual places"]),
        (
            {"toolkit": "", "script": "/usr/local/Ascend/cann/set_env.sh"},
            BackendLoadError,
            ["no toolkit was sourced", "source /usr/local/Ascend/cann/set_env.sh in this shell"],
        ),
        (
            {"toolkit": "/nowhere/cann"},
            BackendLoadError,
            ["/nowhere/cann does not exist", "source its set_env.sh again"],
        ),
    ],
    ids=["driver", "npu", "hidden", "order", "package", "versions", "unsourced", "script", "gone"],
)
def test_what_a_machine_lacks_is_named(change: dict[str, object], kind: type[TandemError], words: list[str]) -> None:
    with pytest.raises(kind) as caught:
        check_host(replace(GOOD, **change), 1)
    text = told(caught.value)
    wanted = [*words, "ascend:1", "Checked: /dev/davinci_manager=present", "No fallback was made"]
    assert [word for word in wanted if word not in text] == [], text


def test_a_library_that_the_loader_does_not_find_is_named() -> None:
    words = "libhccl.so: cannot open shared object file: No such file or directory"
    with pytest.raises(BackendLoadError) as caught:
        check_libraries({"libhccl.so": words, "libgraph.so": "x"}, GOOD, 2)
    text = told(caught.value)
    assert f"libhccl.so cannot be loaded: {words} (nor can libgraph.so)" in text and "ascend:2" in text
    assert "source set_env.sh of the toolkit in /" in text and "the part that has libhccl.so" in text


def test_the_loader_is_asked() -> None:
    assert libraries.unloadable(("libm.so.6",)) == {}
    ((name, words),) = libraries.unloadable(("libm.so.6", "libhccl_of_nobody.so")).items()
    assert name == "libhccl_of_nobody.so" and words.startswith("libhccl_of_nobody.so: cannot open shared object file")
    assert {"libascendcl.so", "libhccl.so"} <= set(libraries.NEEDED)


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend910_9382", "Ascend310P3", ""])
def test_another_chip_is_refused_by_name(soc: str) -> None:
    with pytest.raises(BackendLoadError) as caught:
        check_chip(replace(NPU, soc=soc))
    text = told(caught.value)
    assert f"{soc or 'a chip without a name'} is no Ascend 950" in text and "dav-3510" in text and "CANN 9.2.0" in text


def test_each_step_of_opening_is_taken_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong first is told first, and nothing is imported before the libraries are there."""
    monkeypatch.delenv("TANDEM_EMULATE", raising=False)
    monkeypatch.setattr(host, "look", lambda: GOOD)
    monkeypatch.setattr(libraries, "unloadable", lambda: {"libascendcl.so": "no"})
    with pytest.raises(BackendLoadError, match="libascendcl.so cannot be loaded"):
        AscendBackend.open(0, {})
    monkeypatch.setattr(libraries, "unloadable", dict)
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(BackendLoadError, match="torch-npu is installed and cannot be imported.*Fix: source"):
        AscendBackend.open(0, {})
    monkeypatch.setattr(device, "load", lambda: None)
    monkeypatch.setattr(device, "ask", lambda index: replace(NPU, index=index, soc="Ascend910B1" if index < 4 else ""))
    with pytest.raises(
        DeviceIndexError, match=r"ascend:4' but 4 devices.*ASCEND_RT_VISIBLE_DEVICES=unset -> logical 0..3"
    ):
        AscendBackend.open(4, {})
    with pytest.raises(BackendLoadError, match="Ascend910B1 is no Ascend 950"):
        AscendBackend.open(3, {})
    with pytest.raises(ConfigError, match="unknown backend option speed"):
        AscendBackend.open(0, {"speed": 1})


def test_what_torch_npu_says_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch_npu.py").write_text("raise RuntimeError('Two accelerators at once\\n[ERROR] and more')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    with pytest.raises(BackendLoadError) as caught:
        device.load()
    assert caught.value.why == "RuntimeError: Two accelerators at once" and "set_env.sh" in told(caught.value)


def test_emulation_beside_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_EMULATE", "1")
    monkeypatch.setattr(host, "look", lambda: GOOD)
    assert not AscendBackend.probe().present and "beside a device" in AscendBackend.probe().reason
    with pytest.raises(BackendLoadError) as caught:
        AscendBackend.open(0, {})
    text = told(caught.value)
    assert "not emulated beside a real one" in text and "4 NPU files and a driver" in text
    assert "ASCEND_RT_VISIBLE_DEVICES= (set to nothing)" in text
    check_emulation(replace(GOOD, visible=""))


def test_the_emulated_device_is_only_taken_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TANDEM_EMULATE", "1")
    monkeypatch.setattr(host, "look", lambda: replace(GOOD, driver=False, npus=0))
    monkeypatch.setattr(native, "places", lambda name: [tmp_path / name])
    absent = AscendBackend.probe()
    assert not absent.present and absent.reason.endswith("`make ascend-emulated`")
    (tmp_path / native.EMULATED).touch()
    probe = AscendBackend.probe()
    assert probe.present and not probe.accelerator and probe.reason == "emulated: Ascend C kernels on the host"
    with pytest.raises(DeviceIndexError, match="the emulated device -> logical 0"):
        probing.open_runtime(1)
    monkeypatch.setenv("TANDEM_EMULATE", "yes")
    wrong = AscendBackend.probe()
    assert not wrong.present and "neither 0 nor 1" in wrong.reason and "Fix: " in wrong.reason
    with pytest.raises(ConfigError, match="neither 0 nor 1"):
        probing.open_runtime(0)


def test_importing_and_probing_load_no_vendor_library(repo_root: Path) -> None:
    code = (
        "import sys; from tandem.backends.ascend.backend import BACKEND; BACKEND.probe(); "
        "print([name for name in sys.modules if name.split('.')[0] in ('torch_npu', 'acl', 'triton')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=repo_root)
    assert done.stdout == "[]\n"


def test_nothing_is_set_or_patched(repo_root: Path) -> None:
    """Neither another vendor's module nor the environment nor an import is touched, by the text of the sources."""
    words = r"torch\.cuda|putenv|sys\.modules|\bsetattr\(|environ(\[[^]]+\] *=[^=]|\.update|\.setdefault|\.pop)"
    odd = re.compile(words)
    assert all(odd.search(text) for text in ("torch.cuda.init()", "os.environ['A'] = 'b'", "setattr(torch, 'x', 1)"))
    folders = (repo_root / "backends" / "ascend", repo_root / "core" / "accelerator")
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    assert len(sources) > 15 and [path for path in sources if odd.search(path.read_text(encoding="utf-8"))] == []
