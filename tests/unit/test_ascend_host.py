"""What is found of an Ascend device comes from files, metadata and variables, all of them made up here."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import pytest

from tandem.backends.ascend import host
from tandem.backends.ascend.host import VISIBLE, logical, sourced, told

NAMES = (*host.HOMES, *host.LOOK_ALIKES, VISIBLE, host.PATHS)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with a driver, two NPUs, an installed toolkit, and nothing set."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "Ascend"
    toolkit = folder / "cann" / f"{platform.machine()}-linux"
    for path in (tmp_path / "dev", folder / "driver", folder / "firmware", toolkit, folder / "cann" / "lib64"):
        path.mkdir(parents=True)
    for name in ("davinci_manager", "davinci0", "davinci1", "davinci_rts"):
        (tmp_path / "dev" / name).touch()
    (folder / "driver" / "version.info").write_text("Version=25.5.1\nascendhal_version=7.35.23\n")
    (folder / "firmware" / "version.info").write_text("Version=8.5.0.1.220\n")
    (folder / "cann" / "set_env.sh").touch()
    info = "package_name=Ascend-cann-toolkit\nversion=9.2.0\ninnerversion=V100R001C25\narch=x86_64\n"
    (toolkit / "ascend_toolkit_install.info").write_text(info)
    monkeypatch.setattr(host, "CONTROL", str(tmp_path / "dev" / "davinci_manager"))
    monkeypatch.setattr(host, "DEVICES", tmp_path / "dev")
    monkeypatch.setattr(host, "DRIVER", str(folder / "driver" / "version.info"))
    monkeypatch.setattr(host, "FIRMWARE", str(folder / "firmware" / "version.info"))
    monkeypatch.setattr(host, "SCRIPTS", (folder / "nowhere" / "set_env.sh", folder / "cann" / "set_env.sh"))
    return folder


def test_a_machine_whose_toolkit_was_not_sourced(machine: Path) -> None:
    found = host.look()
    assert found.device and (found.driver, found.npus, found.visible) == (True, 2, None)
    assert found.toolkit == "" and found.script == str(machine / "cann" / "set_env.sh")
    facts = found.facts
    assert (facts["driver"], facts["firmware"], facts["CANN"]) == ("25.5.1", "8.5.0.1.220", "unknown")
    assert facts["logical devices"] == "0 is 0, 1 is 1" and facts["NPU files"] == "2"
    assert facts["torch-npu"] == found.package == "not installed" and found.torch.startswith("2.")


@pytest.mark.parametrize("name", host.HOMES)
def test_a_sourced_toolkit(machine: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    home = str(machine / "cann")
    monkeypatch.setenv(name, home)
    found = host.look()
    assert (found.toolkit, found.script, found.facts["CANN"]) == (home, "", "9.2.0")
    assert found.facts[host.PATHS] == "has none of its libraries"
    monkeypatch.setenv(host.PATHS, f"/usr/lib{os.pathsep}{home}/lib64")
    assert host.look().facts[host.PATHS] == "has its libraries"


def test_no_toolkit_anywhere(machine: Path) -> None:
    (machine / "cann" / "set_env.sh").unlink()
    assert host.look().script == ""


def test_a_user_without_a_home_or_rights_is_told_of_no_toolkit(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.stat

    def forbidden(path: Any, **others: Any) -> os.stat_result:
        if str(path).endswith("set_env.sh"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **others)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError("uid not found")))
    monkeypatch.setattr(host, "SCRIPTS", (Path("~") / "Ascend" / "set_env.sh", machine / "cann" / "set_env.sh"))
    assert host.look().script == str(machine / "cann" / "set_env.sh")
    monkeypatch.setattr(os, "stat", forbidden)
    assert host.look().script == ""


def test_the_search_path_is_compared_by_folder(tmp_path: Path) -> None:
    (tmp_path / "cann-9.2" / "lib64").mkdir(parents=True)
    (tmp_path / "cann").symlink_to(tmp_path / "cann-9.2")
    assert sourced(str(tmp_path / "cann"), f"{tmp_path}/cann-9.2/lib64")
    assert not sourced(str(tmp_path / "cann"), f"{tmp_path}/cann-9.2.1/lib64{os.pathsep}")
    assert not sourced(str(tmp_path / "cann"), "")


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2", [2]),
        ("1,3", [1, 3]),
        ("3,1", []),
        ("1,1", []),
        ("0,1,7,2", [0, 1]),
        ("1;2", [1]),
        ("-1", []),
        ("npu", []),
    ],
)
def test_logical_devices(visible: str | None, devices: list[int]) -> None:
    assert logical(visible, 4) == devices


def test_why_no_device_is_visible() -> None:
    assert told(None, 0) == told("1", 0) == "none"
    assert told("1,3", 4) == "0 is 1, 1 is 3"
    assert told("3,1", 4) == f"none: the numbers of {VISIBLE} must ascend"
    assert told("9", 4) == f"none: {VISIBLE}=9 names none of 0..3"
    assert not logical("9", 4)


@pytest.mark.parametrize("name", host.LOOK_ALIKES)
def test_look_alikes_are_diagnosed_unless_the_right_one_is_set(
    machine: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    assert host.look().facts[name] == f"set, and not read: did you mean {VISIBLE}?"
    monkeypatch.setenv(VISIBLE, "1")
    found = host.look()
    assert name not in found.facts and found.facts["logical devices"] == "0 is 1" and found.device
    monkeypatch.setenv(VISIBLE, "")
    assert not host.look().device
