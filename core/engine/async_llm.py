"""Async iterators over an engine that steps in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tandem.engine.llm import LLM, Prompt, join_copies
from tandem.engine.outputs import RequestOutput, StreamPiece
from tandem.engine.request_checks import closed
from tandem.errors import RequestError
from tandem.sampling.params import SamplingParams


@dataclass(slots=True, eq=False)
class _Listener:
    """Someone who reads a request from an event loop."""

    loop: asyncio.AbstractEventLoop
    pieces: asyncio.Queue[StreamPiece | BaseException] = field(default_factory=asyncio.Queue)
    requests: list[int] = field(default_factory=list)

    def send(self, item: StreamPiece | BaseException) -> bool:
        """Hand over an item; False when the loop is gone."""
        try:
            self.loop.call_soon_threadsafe(self.pieces.put_nowait, item)
        except RuntimeError:
            return False
        return True


class AsyncLLM:
    """Serves requests from async code: one thread runs steps while there is work.

    Only that thread touches the engine; others leave it orders, which it carries out between two steps, so an event
    loop never waits for a step.  Args are those of `LLM`.  Use as an async context manager, or call `close`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._llm = LLM(*args, **options)
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._gate = threading.Lock()  # between taking an order and closing
        self._closed = False
        self._listeners: dict[int, _Listener] = {}
        self._thread = threading.Thread(target=self._run, name="tandem-engine", daemon=True)
        self._thread.start()

    async def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[StreamPiece]:
        """Pieces of one prompt as steps produce them; leaving the iterator early cancels what has not ended.

        With ``n`` above 1 the pieces of all outputs come in turn, told apart by `StreamPiece.copy`.

        Raises:
            RequestError, CapacityError: the request cannot be served, or the engine is closed.
        """
        listener = _Listener(asyncio.get_running_loop())
        accepted: Future[None] = Future()
        self._order(partial(self._submit, prompt, params or SamplingParams(), listener, accepted))
        try:
            await asyncio.wrap_future(accepted)
            left = len(listener.requests)
            while left:
                piece = await listener.pieces.get()
                if isinstance(piece, BaseException):
                    raise piece
                left -= piece.output is not None
                yield piece
        finally:
            with contextlib.suppress(RequestError):  # closed: everything has ended
                self._order(partial(self._leave, listener))

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> RequestOutput:
        """Run one prompt to its end; with ``n`` above 1 `RequestOutput.copies` are all its outputs."""
        return join_copies([piece.output async for piece in self.stream(prompt, params) if piece.output is not None])

    def close(self) -> None:
        """Stop the thread after the step it is in; requests that still run end with an error."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            self._orders.put(None)
        self._thread.join()
        self._llm.close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def _order(self, order: Callable[[], None]) -> None:
        with self._gate:
            if self._closed:
                raise closed("AsyncLLM")
            self._orders.put(order)

    # -- in the engine's thread ----------------------------------------------------------------

    def _run(self) -> None:
        engine = self._llm.engine
        while True:
            while engine.idle or not self._orders.empty():
                order = self._orders.get()
                if order is None:
                    self._fail_all(closed("AsyncLLM"))
                    return
                order()
            try:
                pieces = engine.step()
            except Exception as error:  # whatever it is, those who wait must hear of it
                self._fail_all(error)
                continue
            for piece in pieces:
                self._deliver(piece)

    def _submit(self, prompt: Prompt, params: SamplingParams, listener: _Listener, accepted: Future[None]) -> None:
        if not accepted.set_running_or_notify_cancel():
            return
        try:
            listener.requests = self._llm.submit_copies(prompt, params)
        except Exception as error:
            accepted.set_exception(error)
            return
        self._listeners.update(dict.fromkeys(listener.requests, listener))
        accepted.set_result(None)

    def _leave(self, listener: _Listener) -> None:
        for request_id in listener.requests:
            if self._listeners.pop(request_id, None) is not None:
                self._llm.engine.cancel(request_id)

    def _deliver(self, piece: StreamPiece) -> None:
        listener = self._listeners.get(piece.request_id)
        if listener is not None and not listener.send(piece):
            self._leave(listener)
        elif piece.output is not None:
            self._listeners.pop(piece.request_id, None)

    def _fail_all(self, error: Exception) -> None:
        for listener in dict.fromkeys(self._listeners.values()):
            self._leave(listener)
            listener.send(error)
