"""Calls through the C ABI of the Ascend kernels, with libraries that tell what they were called with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support import ascend_library

from tandem.backends.ascend import native
from tandem.backends.ascend.native import DEVICE, EMULATED, AscendLibrary
from tandem.errors import BackendLoadError, KernelError, LayoutError, TandemError

Tensor = torch.Tensor
X, WEIGHT = torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ascend_native")


@pytest.fixture(scope="module")
def library(folder: Path) -> AscendLibrary:
    return native.load(ascend_library.build(folder / EMULATED, emulated=True), None)


def told(error: TandemError) -> str:
    assert all(error.to_dict().values())
    return f"{error.what} | {error.where} | {error.why} | {error.fix}"


def test_the_library_declares_itself(library: AscendLibrary) -> None:
    assert library.entries == {"tell", "end_with", "take"}
    facts = library.facts()
    assert (facts["cube_cores"], facts["vector_cores"], facts["ub_bytes"]) == (36, 72, 248 << 10)
    assert list(facts)[2:] == ["ub_bytes", "l1_bytes", "l0a_bytes", "l0b_bytes", "l0c_bytes"]


def test_what_an_emulated_entry_gets(library: AscendLibrary) -> None:
    """Device, no stream, the arrays registered while it runs and not longer; None is NULL."""
    out, expected = torch.zeros(9, dtype=torch.int32), [72, 0, 0x3F80, 1, 5, 3, 250, 3, 1]
    library.run("tell", X, WEIGHT, out, 5, 3, 0.25)
    assert out.tolist() == expected
    library.run("tell", X, None, out, 5, 3, 1)
    assert out.tolist() == [72, 0, 0x3F80, 0, 5, 3, 1000, 2, 1]
    library.run("tell", X, torch.empty(0), out, 0, 3, 0.25)
    assert out[7] == 2, "an array without elements was registered"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({0: X.float()}, "'x' has torch.float32, it takes uint16_t"),
        ({0: X.half()}, "'x' has torch.float16, it takes uint16_t"),
        ({1: torch.ones(3, dtype=torch.int32)}, "'weight' has torch.int32, it takes float"),
        ({2: torch.zeros(9, dtype=torch.int64)}, "'out' has torch.int64, it takes int32_t"),
        ({2: torch.zeros(9)}, "'out' has torch.float32, it takes int32_t"),
        ({0: torch.ones(3, 2, dtype=torch.bfloat16).t()}, "'x' (2, 3) is not contiguous"),
        ({0: 3}, "'x' is int, it takes uint16_t array or None"),
        ({3: None}, "'rows' is NoneType, it takes int"),
        ({3: True}, "'rows' is bool, it takes int"),
        ({3: 2.0}, "'rows' is float, it takes int"),
        ({5: torch.ones(())}, "'eps' is Tensor, it takes float"),
        ({4: 2**31}, "a number is too large"),
        ({2: torch.zeros(9, dtype=torch.int32, device="meta")}, "arrays are on cpu and meta, not on one device"),
    ],
)
def test_what_an_entry_does_not_take_is_refused_by_name(
    library: AscendLibrary, change: dict[int, object], words: str
) -> None:
    arguments = {0: X, 1: WEIGHT, 2: torch.zeros(9, dtype=torch.int32), 3: 5, 4: 3, 5: 0.5} | change
    with pytest.raises(LayoutError) as caught:
        library.run("tell", *arguments.values())  # type: ignore[arg-type]
    assert words in told(caught.value) and "kernel 'tell'" in caught.value.where


def test_numbers_of_arguments_and_unknown_entries(library: AscendLibrary) -> None:
    with pytest.raises(LayoutError, match="2 arguments were passed; it takes 6: x, weight, out, rows, width, eps"):
        library.run("tell", X, WEIGHT)
    with pytest.raises(BackendLoadError, match="no entry 'nothing'.*make ascend-emulated"):
        library.run("nothing", X)


def test_void_takes_every_type_and_codes_are_passed_as_unsigned(library: AscendLibrary) -> None:
    for dtype in (torch.float8_e4m3fn, torch.int64, torch.float32, torch.uint8):
        library.run("take", torch.zeros(4, dtype=dtype))
    taken = library._bind("tell").parameters[0].arrays
    assert {torch.bfloat16, torch.int16} <= taken and not taken & {torch.uint8, torch.int32, torch.float32}


def test_status_codes_become_errors(library: AscendLibrary) -> None:
    library.run("end_with", 0)
    with pytest.raises(LayoutError) as refused:
        library.run("end_with", 1)
    assert refused.value.why == "a bad value" and "kernel 'end_with'" in told(refused.value)
    with pytest.raises(KernelError) as launch:
        library.run("end_with", 3)
    assert "was not started" in told(launch.value)
    with pytest.raises(KernelError) as fault:
        library.run("end_with", 4)
    assert fault.value.what == "the emulated device found a fault: ub-overflow"
    assert fault.value.why == "tell took too much: 12 of 8" and told(fault.value)


def test_an_entry_of_a_device_gets_the_stream_of_its_arrays(folder: Path) -> None:
    asked: list[int] = []

    @contextmanager
    def queue(index: int) -> Iterator[int]:
        asked.append(index)
        yield 77
        asked.append(-1)

    device = native.load(ascend_library.build(folder / DEVICE, emulated=False), queue)
    x = torch.empty(2, 3, dtype=torch.bfloat16, device="meta")  # no array of a device is to be had here
    device.run("tell", x, None, None, 5, 3, 0.5)
    device.run("tell", x, None, None, 5, 3, 0.5)
    assert asked == [0, -1, 0, -1] and device.facts()["cube_cores"] == 36
    with pytest.raises(LayoutError, match="arrays are on cpu, not on one device"):
        device.run("tell", X, None, None, 5, 3, 0.5)


def test_a_library_that_cannot_be_used_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "none").mkdir()
    broken = folder / "none" / EMULATED
    broken.write_bytes(b"no library")
    with pytest.raises(BackendLoadError, match=r"cannot be loaded.*OSError.*make ascend-emulated"):
        native.load(broken, None)
    odd = ascend_library.build(folder / "none" / DEVICE, emulated=True)
    with pytest.raises(BackendLoadError, match="it emulates a device, and its name says otherwise"):
        native.load(odd, lambda _: None)  # type: ignore[arg-type, return-value]
    (folder / "wrong").mkdir()
    wrong = ascend_library.build(folder / "wrong" / DEVICE, emulated=False, text="int 3;")
    with pytest.raises(BackendLoadError, match=r"cannot be loaded.*CDefError.*source set_env.sh.*`make ascend`"):
        native.load(wrong, lambda _: None)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(native, "_HERE", folder / "nowhere")
    monkeypatch.setattr(native, "_BUILD", folder / "nowhere")
    for value, make in (("1", "make ascend-emulated"), ("0", "make ascend")):
        monkeypatch.setenv("TANDEM_EMULATE", value)
        with pytest.raises(BackendLoadError) as caught:
            native.library.__wrapped__()
        assert "are missing" in told(caught.value) and caught.value.fix == f"build it with `{make}`"
    (folder / "build" / "ascend_x").mkdir(parents=True)
    (folder / "build" / "ascend_x" / EMULATED).touch()
    monkeypatch.setattr(native, "_BUILD", folder / "build")
    assert native.places(EMULATED)[1:] == [folder / "build" / "ascend_x" / EMULATED]
