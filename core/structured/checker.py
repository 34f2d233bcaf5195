"""Trying out grammars in another process, with a limit of time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from tandem.errors import RequestError
from tandem.structured.grammars import unusable

_START_SECONDS = 60.0


def closing() -> RequestError:
    """The error of a grammar that came too late."""
    return RequestError(
        "the form asked of the output cannot be used",
        where="StructuredSpec",
        why="the engine is closing",
        fix="send the request to another engine",
    )


class Checker:
    """One checking process, started at the first use and again after it was lost.

    Belongs to one thread; only `stop` may come from another.

    Args:
        setup: first line for `check_process`: tokenizer, vocab_size, eos_id and the limits.
    """

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._setup = setup
        self._seconds = float(setup["seconds"])
        self._lock = threading.Lock()  # of the next two
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def grammar(self, kind: str, source: str) -> str:
        """The checked grammar.

        Raises:
            RequestError: it is invalid, or over a budget.
        """
        if self._process is None:
            self._start()
        answer = self._ask({"kind": kind, "source": source}, self._seconds)
        if "error" in answer:
            raise RequestError(**answer["error"])
        return str(answer["grammar"])

    def stop(self) -> None:
        """End the process, for good; a job in progress fails."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """`stop`, and give back what belongs to the process; only when no job is in progress."""
        self.stop()
        if self._process is not None:
            self._forget(self._process)

    def _start(self) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        with self._lock:
            if self._closed:
                raise closing()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tandem.structured.check_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            )
        self._ask(self._setup, _START_SECONDS, starting=True)

    def _ask(self, request: Mapping[str, Any], seconds: float, starting: bool = False) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise closing()
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError):
            line = ""
        finally:
            timer.cancel()
        if line.endswith("\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._forget(process)
        if self._closed:
            raise closing()
        if starting:
            raise unusable(f"the process that checks grammars did not start (exit {process.returncode})")
        if late.is_set():
            raise unusable(f"making its grammar takes longer than {seconds:g} s")
        why = "making its grammar needs more memory than is allowed, or too deep a stack"
        raise unusable(f"{why} (exit {process.returncode})")

    def _forget(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._process = None
        process.kill()
        process.communicate()
