"""Binding of call sites to implementations, once, before any step runs."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import tandem.ops  # noqa: F401  (declares every op)
from tandem.contract.backend import Backend
from tandem.contract.environment import COMPOSITE
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.contract.types import KVCache, PackedWeight, ShardSpec
from tandem.errors import ConfigError, OpUnsupported

_ELSEWHERE = "use a supported one, or another backend"


@dataclass(frozen=True, slots=True)
class Binding:
    """One bound call site, for tables and traces."""

    op: str
    site: str
    impl: str  # "fused" when the backend brings its own, else "composite"
    attrs: tuple[tuple[str, Any], ...]


def weight_attrs(weight: PackedWeight) -> dict[str, Any]:
    """What a call site states about a weight it passes."""
    return {"w": weight.fmt.value, "shape": weight.shape, "layout": weight.layout}


def cache_attrs(cache: KVCache) -> dict[str, Any]:
    """What a call site states about a cache it passes."""
    return {"fmt": cache.layout.fmt.value, "dim": cache.layout.dim, "layout": cache.memory_layout}


class Plan:
    """Binds ops for one model on one backend.

    Args:
        backend: an open backend.
        shard: the part of the model this rank owns.

    Raises:
        ConfigError: TANDEM_COMPOSITE names an op that does not exist.
    """

    def __init__(self, backend: Backend, shard: ShardSpec | None = None) -> None:
        self.backend = backend
        self.shard = shard or ShardSpec()
        self.composite = composite_ops(os.environ)
        self.bindings: list[Binding] = []
        self._cache: dict[tuple[str, tuple[tuple[str, Any], ...]], OpFunction] = {}

    @property
    def graphs(self) -> bool:
        """Whether steps of this plan can be captured and replayed: a replay calls no bound function."""
        caps = self.backend.caps
        return caps.graphs and (caps.composite_graphs or not self.composite)

    def bind(self, op: str, site: str, **attrs: Any) -> OpFunction:
        """The callable that runs ``op`` at ``site``.

        Args:
            op: contract name.
            site: where in the model, e.g. ``layers.3.attn.wq_a``; used in errors and tables.
            attrs: formats and shapes of this call (``x="mxfp8", w="fp8_block32", out="bf16"``).
        Raises:
            OpUnsupported: the op is unknown, or the backend's capabilities exclude these attributes.
        """
        spec = OP_TABLE.get(op)
        if spec is None:
            raise self._unsupported(op, site, attrs, "the op is not in the contract", "use an op of docs/CONTRACT.md")
        unknown = sorted(set(attrs) - set(spec.attrs))
        if unknown:
            raise self._unsupported(
                op, site, attrs, f"the op has no attribute {', '.join(unknown)}", f"use {', '.join(spec.attrs)}"
            )
        self._check(op, site, attrs)
        key = (op, tuple(sorted(attrs.items())))
        function = self._cache.get(key)
        own = self._own(op)
        if function is None:
            function = self._resolve(op, site, own)
            self._cache[key] = function
        self.bindings.append(Binding(op, site, "composite" if own is None else "fused", key[1]))
        return function

    def _own(self, op: str) -> OpFunction | None:
        return None if op in self.composite else self.backend.implementation(op)

    def _check(self, op: str, site: str, attrs: dict[str, Any]) -> None:
        """Refuse formats, layouts and shapes that the implementation, or the composite and its parts, cannot take."""
        cap = self.backend.caps.ops.get(op)
        if cap is not None and cap.impl == "absent":
            why = f"the backend declares the op absent ({cap.notes})"
            raise self._unsupported(op, site, attrs, why, "use another backend")
        own = self._own(op)
        # A record of an own implementation does not restrict the composite that runs in its place.
        if cap is not None and not (cap.impl == "fused" and op in self.composite):
            refused = _refused(attrs, cap.allows)
            if refused:
                hint = "" if own is None else self._composite_hint(op, site, attrs)
                raise self._unsupported(op, site, attrs, refused, hint or _ELSEWHERE)
        if own is None:
            self._check_composite(op, site, attrs)

    def _check_composite(self, op: str, site: str, attrs: dict[str, Any]) -> None:
        spec = OP_TABLE[op]
        refused = _refused(attrs, spec.reads)
        if refused:
            raise self._unsupported(op, site, attrs, refused, _ELSEWHERE)
        presence: list[tuple[str, Mapping[str, str]]] = [(part, {}) for part in spec.parts if part in OP_TABLE]
        for part, names in (*spec.passes, *presence):
            self._check(part, site, {theirs: attrs[own] for theirs, own in names.items() if own in attrs})

    def _composite_hint(self, op: str, site: str, attrs: dict[str, Any]) -> str:
        """What to do where the composite can run what the backend's own implementation refuses; else empty."""
        try:
            self._check_composite(op, site, attrs)
        except OpUnsupported:
            return ""
        parts = "+".join(OP_TABLE[op].parts) or "plain torch"
        return f"the composite ({parts}) can run: set {COMPOSITE}={op}, or repack the checkpoint"

    def _resolve(self, op: str, site: str, own: OpFunction | None) -> OpFunction:
        if own is not None:
            return self.backend.wrap_op(op, own)
        spec = OP_TABLE[op]
        function: OpFunction = spec.reference
        if spec.parts:
            parts = {name.rpartition(".")[2]: self._part(name, site) for name in spec.parts}
            function = functools.partial(spec.reference, SimpleNamespace(**parts))
        return self.backend.wrap_op(op, function)

    def _part(self, name: str, site: str) -> OpFunction:
        if name in OP_TABLE:
            return self._resolve(name, site, self._own(name))
        method: OpFunction = getattr(self.backend, name)
        return method

    def _unsupported(self, op: str, site: str, attrs: dict[str, Any], why: str, fix: str) -> OpUnsupported:
        detail = ", ".join(f"{k}={v}" for k, v in attrs.items())
        return OpUnsupported(
            f"op '{op}' on backend '{self.backend.name}' has no implementation" + (f" for {detail}" if detail else ""),
            where=site,
            why=why,
            fix=f"{fix}. Raised while planning; no step has run",
        )


def _refused(attrs: Mapping[str, Any], allows: Mapping[str, frozenset[Any]]) -> str:
    """The first attribute whose value is not allowed, and the values that are; empty if all are."""
    for name, value in attrs.items():
        allowed = allows.get(name)
        if allowed is not None and value not in allowed:
            return f"{name}={value} is not supported. Supported: {name}={' or '.join(sorted(map(str, allowed)))}"
    return ""


def composite_ops(environ: Mapping[str, str]) -> frozenset[str]:
    """Ops of TANDEM_COMPOSITE: they run as composites even where the backend has its own implementation.

    Raises:
        ConfigError: a name is no op.
    """
    names = [name.strip() for name in environ.get(COMPOSITE, "").split(",") if name.strip()]
    for name in names:
        if name not in OP_TABLE:
            close = difflib.get_close_matches(name, OP_TABLE, n=1)
            raise ConfigError(
                f"{COMPOSITE} names an op that does not exist",
                where=f"environment {COMPOSITE}",
                why=f"'{name}' is not in the contract",
                fix=f"did you mean {close[0]}?" if close else "use ops of docs/CONTRACT.md, separated by commas",
            )
    return frozenset(names)
