"""What an emulated device owes its callers: calls of several threads, and of a process that forked, are right."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tandem.conformance.stage import Stage
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan

Call = Callable[[], torch.Tensor]
PATIENCE = 20.0  # seconds


def calls(plan: Plan) -> list[tuple[Call, torch.Tensor]]:
    """Calls of one op on rows of several numbers, and what they give alone."""
    norm, generator = plan.bind("rms_norm", "test"), torch.Generator().manual_seed(1)
    weight, found = torch.ones(64), []
    for rows in (1, 3, 5, 7):
        x = torch.randn(rows, 64, generator=generator).to(torch.bfloat16)
        found.append(lambda x=x: norm(x, weight, 1e-6, False)[0])
    return [(call, call()) for call in found]


def check_threads(plan: Plan, times: int) -> None:
    """Each of four threads makes each call many times, and gets what it gives alone."""
    known, wrong = calls(plan), []

    def work(number: int) -> None:
        for step in range(times):
            call, expected = known[(number + step) % len(known)]
            try:
                same = torch.equal(call(), expected)
            except Exception as error:
                wrong.append(repr(error))
            else:
                wrong.extend([] if same else [f"thread {number}, step {step}"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns within every kernel
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong


def check_memory(plan: Plan, op: str, times: int, most: int) -> None:
    """Calls leave nothing behind: resident memory grows by less than ``most`` bytes in many of them."""
    stage = Stage(plan, OP_TABLE[op], OP_TABLE[op].cases[0], quick=True)
    args, function = stage.arguments(), plan.bind(op, "test")
    grown = []
    for count in (200, times):
        before = _resident()
        with torch.no_grad():
            for _ in range(count):
                function(**args)
        grown.append(_resident() - before)
    assert grown[1] < most


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check_fork(plan: Plan) -> None:
    """A process forks while a thread is within a call; the child's own call ends, and is right."""
    known, stop = calls(plan), threading.Event()

    def work() -> None:
        while not stop.is_set():
            known[3][0]()

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.1)
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(known[1][0](), known[1][1]) else 3)
    stop.set()
    thread.join()
    limit = time.monotonic() + PATIENCE
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < limit:
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended and os.waitstatus_to_exitcode(status) == 0
