"""What the Ascend backend does on the stand-in for the vendor's runtime, as one line of JSON.

Run in a process of its own, ``python -m support.acl_stub_session FOLDER INDEX``, with the stand-in on the loader's
search path and the kernel library of `support.ascend_library` in FOLDER.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tandem.backends.ascend import host, native
from tandem.backends.ascend.host import Host
from tandem.contract.backend import Backend
from tandem.contract.registry import open_backend
from tandem.errors import TandemError


class Session:
    """An open device and the log of the stand-in."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._stub = ctypes.CDLL("libascendcl.so")
        self._stub.acl_stub_log.restype = ctypes.c_char_p

    def log(self) -> list[str]:
        """What was asked of the runtime since the last time."""
        text = self._stub.acl_stub_log().decode()
        self._stub.acl_stub_forget()
        return text.splitlines()

    def refuse_memory(self, on: bool) -> None:
        self._stub.acl_stub_refuse_memory(int(on))

    def arguments(self) -> tuple[Any, ...]:
        """Of the entry ``tell``; the third is what it writes."""
        up = self.backend.from_host
        x = up(np.full(6, 0x3F80, np.int16)).view(torch.bfloat16)
        return x, up(np.ones(3, np.float32)), up(np.zeros(9, np.int32)), 5, 3, 0.25


def memory(s: Session) -> Any:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    s.log()
    held = s.backend.from_host(array)
    array[:] = 0
    back = s.backend.to_host(held).result().tolist()
    copies = [line for line in s.log() if line.startswith("copy")]
    found = s.backend.memory()
    s.backend.synchronize()
    waits = s.log()
    return {
        "device": str(held.device),
        "back": back,
        "copies": copies,
        "memory": [found.total, found.free],
        "wait": waits,
    }


def streams(s: Session) -> Any:
    """A kernel gets the default stream, and one of its own while another is current."""
    arguments, npu = s.arguments(), getattr(torch, "npu")  # noqa: B009
    device = s.backend.device
    found = []
    with npu.device(device):
        other = npu.Stream(device)
        for stream in (npu.default_stream(device), other):
            with npu.stream(stream):
                native.run("tell", *arguments)
            found.append([s.backend.to_host(arguments[2]).result().tolist()[1], stream.npu_stream])
    return found


def other_device(s: Session) -> Any:
    """A call from a thread whose current device is another one."""
    arguments, npu = s.arguments(), getattr(torch, "npu")  # noqa: B009
    with npu.device(0):
        native.run("tell", *arguments)
        current = npu.current_device()
    return {"told": s.backend.to_host(arguments[2]).result().tolist(), "current": current}


def capture(s: Session) -> Any:
    arguments = s.arguments()
    s.log()
    graph = s.backend.capture(lambda: native.run("tell", *arguments))
    captured = s.log()
    told = s.backend.to_host(arguments[2]).result().tolist()
    s.log()
    graph.replay()
    graph.replay()
    return {"capture": captured, "told": told, "replay": s.log()}


def resident(s: Session) -> Any:
    runtime: Any = s.backend
    table = torch.arange(100, dtype=torch.uint8).view(10, 10)
    s.log()
    held = runtime._runtime.resident(table)
    asked = s.log()
    return {"asked": asked, "device": str(held.device), "same": bool((held.cpu() == table).all())}


def collectives(s: Session) -> Any:
    from tandem.accelerator.collectives import Collectives

    runtime: Any = s.backend
    store = torch.distributed.HashStore()
    group = Collectives(0, 1, store, runtime._runtime.transport, s.backend.device, patience=60)
    group.all_reduce(s.backend.from_host(np.ones(4, np.float32)))
    log = [line for line in s.log() if "join" in line or "reduce" in line]
    group.close()
    return {"calls": group.log, "asked": log}


def no_memory(s: Session) -> Any:
    runtime: Any = s.backend
    s.refuse_memory(True)
    try:
        told = refused(lambda: s.backend.empty((1 << 26,), torch.float32))
        mapped = refused(lambda: runtime._runtime.resident(torch.ones(10)))
    finally:
        s.refuse_memory(False)
    return {"empty": told, "resident": mapped}


def wrong_calls(s: Session) -> Any:
    x, *rest = s.arguments()
    getattr(torch, "npu").set_task_queue_enable(2)  # noqa: B009
    captured = refused(lambda: s.backend.capture(lambda: None))
    getattr(torch, "npu").set_task_queue_enable(1)  # noqa: B009
    return {"host array": refused(lambda: native.run("tell", x.cpu(), *rest)), "queue": captured}


def refused(call: Callable[[], object]) -> dict[str, str]:
    """The error that a call ends in."""
    try:
        call()
    except TandemError as error:
        return error.to_dict()
    return {}


STEPS = (memory, streams, other_device, capture, resident, collectives, no_memory, wrong_calls)


def main(folder: Path, index: int) -> dict[str, Any]:
    """All steps by name, or the error of opening."""
    host.look = lambda: Host({host.VISIBLE: "unset"}, True, 2, None, "2.13.0", torch.__version__, "/", "")
    native.places = lambda name: [folder / name]
    try:
        session = Session(open_backend(f"ascend:{index}"))
    except TandemError as error:
        return {"error": error.to_dict()}
    patches = [name for name in sys.modules if "transfer_to_npu" in name]
    found = {"facts": session.backend.fingerprint(), "patches": patches}
    return found | {step.__name__: step(session) for step in STEPS}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
