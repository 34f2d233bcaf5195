"""How an op is declared and found.

Each file in ``core/ops`` declares one op with ``@op``.  The decorated function is the reference: plain torch,
correct on any torch device, and the composite a backend falls on when it declares no implementation of its
own.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.contract import declared
from tandem.errors import ContractError

CONTRACT_VERSION = (1, 2)

# SHA-256 of names, arguments, attributes and classes of all ops, by contract version.  A port was written against
# a version: when a signature changes, raise CONTRACT_VERSION (the minor for an addition, the major for a changed
# meaning), give new ops ``since``, say so in docs/CONTRACT_CHANGELOG.md, and add the new version here.
TABLE_HASHES = {
    (1, 0): "06b1b4933452179a21a307a2be11d6492b8c99d0dad14bc47fb322f544684031",
    (1, 1): "9c09382f0b4f8aa57037d4c6c9fed95c1b075717c4f035469ac779cb8e97f708",
    (1, 2): "88c7db9163c18ba896318177f46bbc01b71cf2d923bf32b06f000f2a31873f75",
}

OpFunction = Callable[..., Any]
CaseBuilder = Callable[..., dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """One conformance case: a name that reads as a filter, and arguments made from a seed."""

    name: str
    build: Callable[[int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """Declaration of one op.

    Args:
        name: contract name.
        reference: plain-torch implementation; takes ``parts`` first when ``parts`` is not empty.
        classes: tolerance class per output, as in docs/CONTRACT.md.
        parts: ops (or backend methods) a composite is made of.
        attrs: names that a call site states when it binds (formats, layouts, shapes).
        reads: for an attribute, the values that the reference itself can read; one not named is not restricted.
        passes: (part, {attribute of the part: attribute of this op}) pairs that planning checks in the part too.
        since: contract version that introduced it.
    """

    name: str
    reference: OpFunction
    classes: dict[str, str]
    parts: tuple[str, ...] = ()
    attrs: tuple[str, ...] = ()
    reads: Mapping[str, frozenset[str]] = field(default_factory=dict)
    passes: tuple[tuple[str, Mapping[str, str]], ...] = ()
    since: tuple[int, int] = (1, 0)
    cases: list[Case] = field(default_factory=list)

    def signature(self) -> str:
        """Name, argument names and classes: what the frozen table hash covers."""
        return _signature(self.name, inspect.signature(self.reference).parameters, self.attrs, self.classes)


def _signature(name: str, arguments: Iterable[str], attrs: Iterable[str], classes: Mapping[str, str]) -> str:
    outputs = ",".join(f"{k}:{v}" for k, v in sorted(classes.items()))
    return f"{name}({','.join(a for a in arguments if a != 'parts')})[{','.join(attrs)}]->{outputs}"


OP_TABLE: dict[str, OpSpec] = {}


def op(
    name: str,
    *,
    classes: dict[str, str],
    parts: tuple[str, ...] = (),
    attrs: tuple[str, ...] = (),
    reads: Mapping[str, frozenset[str]] | None = None,
    passes: tuple[tuple[str, Mapping[str, str]], ...] = (),
    since: tuple[int, int] = (1, 0),
) -> Callable[[OpFunction], OpFunction]:
    """Register the decorated reference under ``name``; the arguments are the fields of `OpSpec`."""

    def register(reference: OpFunction) -> OpFunction:
        if name in OP_TABLE:
            raise ContractError(
                f"op '{name}' is declared twice",
                where=f"{reference.__module__}",
                why=f"it is already declared in {OP_TABLE[name].reference.__module__}",
                fix="rename one of them",
            )
        OP_TABLE[name] = OpSpec(name, reference, classes, parts, attrs, reads or {}, passes, since)
        return reference

    return register


def case(op_name: str, name: str, rows: tuple[int, ...] = ()) -> Callable[[CaseBuilder], CaseBuilder]:
    """Attach conformance cases to an op.

    The decorated function maps a seed to call arguments, as data of `tandem.contract.cases`.  With ``rows``
    it takes the number of rows as a second argument and gives one case each, named ``name-T17`` and so on.
    """

    def attach(build: CaseBuilder) -> CaseBuilder:
        cases = OP_TABLE[op_name].cases
        if not rows:
            cases.append(Case(name, build))
        for count in rows:
            cases.append(Case(f"{name}-T{count}", functools.partial(build, rows=count)))
        return build

    return attach


def table_signature() -> str:
    """SHA-256 over all op signatures; `TABLE_HASHES` freezes it per contract version.

    Where the ops are not imported, the signatures are those that their sources declare.
    """
    if declared.PACKAGE in sys.modules:
        signatures = {name: spec.signature() for name, spec in OP_TABLE.items()}
    else:
        signatures = {found.name: _signature(*found) for found in declared.declarations()}
    return hashlib.sha256("\n".join(signatures[name] for name in sorted(signatures)).encode()).hexdigest()


def table_state() -> str:
    """``frozen`` where the op table is the one of its contract version, else what differs; for reports and traces."""
    found, frozen = table_signature(), TABLE_HASHES.get(CONTRACT_VERSION, "none")
    return "frozen" if found == frozen else f"changed: {found[:12]}, frozen as {frozen[:12]}"


def iter_ops() -> Iterator[OpSpec]:
    """All declared ops by name."""
    for name in sorted(OP_TABLE):
        yield OP_TABLE[name]
