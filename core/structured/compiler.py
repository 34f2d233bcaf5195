"""Grammars made in the background, within budgets, and kept for the next request."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import llguidance

from tandem.errors import RequestError, TandemError, TokenizerError
from tandem.structured.checker import Checker, closing
from tandem.structured.grammars import matcher, parser_limits, unusable
from tandem.structured.guide import Guide
from tandem.structured.spec import StructuredSpec

if TYPE_CHECKING:
    from tandem.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Budget:
    """What grammars may cost.

    Args:
        seconds: longest time to make one, without the wait for a free worker.
        memory_bytes: memory that making one may take.
        workers: grammars made at the same time.
        waiting: grammars that may wait or be made at one time; more are refused.
        cache_entries, cache_bytes: grammars kept, least recently used out first; bytes of their sources.
        grammar_symbols: largest grammar, in llguidance's symbols.
        lexer_states: most states of one request's lexer, about 2 kB each.
    """

    seconds: float = 10.0
    memory_bytes: int = 1 << 30
    workers: int = 2
    waiting: int = 256
    cache_entries: int = 256
    cache_bytes: int = 16 << 20
    grammar_symbols: int = 500_000
    lexer_states: int = 20_000


@dataclass(slots=True)
class GrammarStats:
    """Totals since the compiler was made, and its size now.

    Args:
        submitted: specs; reused: those whose grammar was there or being made already.
        made, failed: grammars that were made, and that could not be.
        waiting: grammars that wait or are being made now; kept: grammars in the cache now.
    """

    submitted: int = 0
    reused: int = 0
    made: int = 0
    failed: int = 0
    waiting: int = 0
    kept: int = 0


_Template = Future[llguidance.LLMatcher]


class _Key(NamedTuple):
    kind: str
    source: str


class Compiled:
    """A grammar that is ready, for one request's spec."""

    def __init__(self, template: llguidance.LLMatcher, spec: StructuredSpec, vocab_size: int, eos_id: int) -> None:
        self._template, self._spec = template, spec
        self._vocab_size, self._eos_id = vocab_size, eos_id

    def guide(self) -> Guide:
        """A new guide at the start; every output, of n too, needs its own."""
        return Guide(self._template, self._spec, self._vocab_size, self._eos_id)


class Ticket:
    """A grammar being made."""

    def __init__(self, future: _Template, spec: StructuredSpec, vocab_size: int, eos_id: int) -> None:
        self._future, self._spec = future, spec
        self._vocab_size, self._eos_id = vocab_size, eos_id

    @property
    def ready(self) -> bool:
        """Whether `result` returns or raises at once."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Compiled:
        """The grammar; waits for it if it is not ready.

        Raises:
            RequestError: the form is invalid or over a budget.
            TimeoutError: it was not ready within `timeout` seconds.
        """
        try:
            template = self._future.result(timeout)
        except CancelledError as error:
            raise closing() from error
        return Compiled(template, self._spec, self._vocab_size, self._eos_id)


def wait_for_any(tickets: Iterable[Ticket], seconds: float) -> None:
    """Wait until one of them is ready, at most so long."""
    wait([ticket._future for ticket in tickets], seconds, FIRST_COMPLETED)


class Compiler:
    """Makes grammars for one tokenizer, each tried out in a process of its own first.

    Nothing is started before the first spec is submitted.  All methods may be called from any thread and
    return at once.

    Args:
        tokenizer: of the model.
        vocab_size: tokens of the model, padding included.
        budget: limits for every grammar.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, budget: Budget | None = None) -> None:
        self._path, self._eos_id, self._vocab_size = tokenizer.path, tokenizer.eos_id, vocab_size
        self._budget = budget or Budget()
        self._lock = threading.Lock()
        self._cache: OrderedDict[_Key, llguidance.LLMatcher] = OrderedDict()
        self._cached_bytes = 0
        self._pending: dict[_Key, _Template] = {}
        self._library: llguidance.LLTokenizer | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._local = threading.local()
        self._checkers: list[Checker] = []
        self._closed = False
        self._stats = GrammarStats()
        self._limits = parser_limits(self._budget.grammar_symbols, self._budget.lexer_states)

    def submit(self, spec: StructuredSpec) -> Ticket:
        """Have the grammar made.  Whatever is wrong with it shows in the ticket's result."""
        return Ticket(self._future(spec), spec, self._vocab_size, self._eos_id)

    def stats(self) -> GrammarStats:
        """A copy of the totals, with the sizes now."""
        with self._lock:
            return replace(self._stats, waiting=len(self._pending), kept=len(self._cache))

    def close(self) -> None:
        """End workers and processes; tickets that are not ready fail."""
        with self._lock:
            self._closed = True
            pool, checkers = self._pool, list(self._checkers)
        for checker in checkers:
            checker.stop()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        for checker in checkers:
            checker.close()

    def _future(self, spec: StructuredSpec) -> _Template:
        key = _Key(spec.kind, spec.source)
        try:
            spec.check_vocabulary(self._vocab_size)
        except RequestError as error:
            return _failed(error)
        with self._lock:
            self._stats.submitted += 1
            self._stats.reused += key in self._cache or key in self._pending
            if key in self._cache:
                self._cache.move_to_end(key)
                return _done(self._cache[key])
            if key in self._pending:
                return self._pending[key]
            if self._closed:
                return _failed(closing())
            if len(self._pending) >= self._budget.waiting:
                why = f"{self._budget.waiting} other grammars are waiting to be made"
                return _failed(unusable(why, "send it again later"))
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._budget.workers, thread_name_prefix="tandem-grammar")
            future = self._pending[key] = self._pool.submit(self._make, key)
        future.add_done_callback(lambda done: self._settle(key, done))
        return future

    def _make(self, key: _Key) -> llguidance.LLMatcher:
        try:
            grammar = self._checker().grammar(key.kind, key.source)
            template = matcher(self._tokenizer(), grammar, self._limits)
        except TandemError:
            raise
        except BaseException as error:  # a panic in the library is no Exception
            raise unusable(f"{type(error).__name__}: {error}") from error
        with self._lock:
            self._cache[key] = template
            self._cached_bytes += _size(key)
            while len(self._cache) > self._budget.cache_entries or self._cached_bytes > self._budget.cache_bytes:
                self._cached_bytes -= _size(self._cache.popitem(last=False)[0])
        return template

    def _settle(self, key: _Key, done: _Template) -> None:
        good = not done.cancelled() and done.exception() is None
        with self._lock:
            self._stats.made += good
            self._stats.failed += not good
            self._pending.pop(key, None)

    def _checker(self) -> Checker:
        """This worker's."""
        found: Checker | None = getattr(self._local, "checker", None)
        if found is None:
            setup = {
                "tokenizer": str(self._path),
                "vocab_size": self._vocab_size,
                "eos_id": self._eos_id,
                "grammar_symbols": self._budget.grammar_symbols,
                "lexer_states": self._budget.lexer_states,
                "memory_bytes": self._budget.memory_bytes,
                "seconds": self._budget.seconds,
            }
            found = self._local.checker = Checker(setup)
            with self._lock:
                if self._closed:
                    raise closing()
                self._checkers.append(found)
        return found

    def _tokenizer(self) -> llguidance.LLTokenizer:
        if self._library is None:
            self._library = load_tokenizer(self._path, self._vocab_size, self._eos_id)
        return self._library


def load_tokenizer(path: Path, vocab_size: int, eos_id: int) -> llguidance.LLTokenizer:
    """llguidance's form of a `tokenizer.json`, padded to the model's vocabulary.

    Raises:
        TokenizerError: llguidance cannot read it.
    """
    try:
        return llguidance.LLTokenizer(str(path), n_vocab=vocab_size, eos_token=eos_id)
    except ValueError as error:
        raise TokenizerError(
            "the tokenizer cannot be used for structured output",
            where=str(path),
            why=str(error),
            fix="use the tokenizer.json that belongs to this checkpoint",
        ) from error


def _size(key: _Key) -> int:
    return len(key.source.encode())


def _done(template: llguidance.LLMatcher) -> _Template:
    future: _Template = Future()
    future.set_result(template)
    return future


def _failed(error: RequestError) -> _Template:
    future: _Template = Future()
    future.set_exception(error)
    return future
