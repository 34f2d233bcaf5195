"""Async iterators over an engine that steps in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from tandem.engine.llm import LLM, Prompt
from tandem.engine.outputs import RequestOutput, StreamPiece
from tandem.errors import TandemError
from tandem.sampling.params import SamplingParams

Listener = tuple[asyncio.AbstractEventLoop, "asyncio.Queue[StreamPiece | BaseException]"]


class AsyncLLM:
    """Serves requests from async code: one thread runs steps while there is work.

    Args are those of `LLM`.  Use as an async context manager, or call `close`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._llm = LLM(*args, **options)
        self._lock = threading.Condition()
        self._listeners: dict[int, Listener] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tandem-engine", daemon=True)
        self._thread.start()

    async def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[StreamPiece]:
        """Pieces of one request as steps produce them; leaving the iterator early cancels the request.

        Raises:
            RequestError, CapacityError: the request cannot be served.
        """
        queue: asyncio.Queue[StreamPiece | BaseException] = asyncio.Queue()
        with self._lock:
            request_id = self._llm.submit(prompt, params or SamplingParams())
            self._listeners[request_id] = (asyncio.get_running_loop(), queue)
            self._lock.notify()
        try:
            while True:
                piece = await queue.get()
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
                if piece.output is not None:
                    return
        finally:
            with self._lock:
                if self._listeners.pop(request_id, None) is not None:
                    self._llm.engine.cancel(request_id)

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> RequestOutput:
        """Run one request to its end."""
        output: RequestOutput | None = None
        async for piece in self.stream(prompt, params):
            output = piece.output
        if output is None:
            raise AssertionError("a stream ended without an output")
        return output

    def close(self) -> None:
        """Stop the thread after the step it is in."""
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join()
        self._llm.close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._closed or not self._llm.engine.idle)
                if self._closed:
                    return
                try:
                    pieces = self._llm.engine.step()
                except TandemError as error:
                    self._fail_all(error)
                    continue
                for piece in pieces:
                    self._deliver(piece)

    def _deliver(self, piece: StreamPiece) -> None:
        listener = self._listeners.get(piece.request_id)
        if listener is None:
            return
        if piece.output is not None:
            del self._listeners[piece.request_id]
        _send(listener, piece)

    def _fail_all(self, error: TandemError) -> None:
        for request_id, listener in list(self._listeners.items()):
            self._llm.engine.cancel(request_id)
            _send(listener, error)
        self._listeners.clear()


def _send(listener: Listener, item: StreamPiece | BaseException) -> None:
    loop, queue = listener
    if not loop.is_closed():
        loop.call_soon_threadsafe(queue.put_nowait, item)
