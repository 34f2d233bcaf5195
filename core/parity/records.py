"""Records of a trace: one op call each, as Python values and as a line of the index."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tandem.ops  # noqa: F401  (declares every op)
from tandem.contract.opspec import OP_TABLE
from tandem.parity import limits
from tandem.parity.limits import integer, keys, mapping, require, sequence, text

_OWN = {"id", "step", "call", "op", "site", "layer", "rows", "attrs", "sources", "views", "caches", "writers", "parent"}
_SCALAR = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class View:
    """How an input lies in the output it comes from: in elements, from the output's first one."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One op call.

    Args:
        id: its number in the run; ascending, with gaps where records were left out.
        step: engine step; call: number of the call in the step.
        op: contract name; site: where the model bound it; layer: of the model, None outside layers.
        rows: leading dimension of the first output.
        attrs: what the call site stated when it bound the op; layouts are the recording backend's.
        sources: by input path, the record and output path that the input is (the same memory).
        views: for inputs that are a part or another shape of their source.
        caches: by input path, the name of the cache that was passed.
        parent: the call that this one shows a part of (the routing inside a block), None for calls of the model.
        error: why there are no outputs, as `TandemError.to_dict` gives it (replays only).
    """

    id: int
    step: int
    call: int
    op: str
    site: str
    layer: int | None
    rows: int
    attrs: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, tuple[int, str]] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    caches: dict[str, str] = field(default_factory=dict)
    parent: int | None = None
    error: dict[str, str] | None = None

    @property
    def place(self) -> str:
        """The site with its layer, where the model binds one site for all layers."""
        inside = self.layer is not None and not self.site.startswith("layers.")
        return f"layers.{self.layer}.{self.site}" if inside else self.site


@dataclass(frozen=True, slots=True)
class Call:
    """Values of a record, on the host.

    Args:
        inputs: by argument name; `tandem.contract.cases.materialise` makes call arguments of them on any backend.
        outputs: by the names of the op's classes, written arguments included, without what no one may read; a
            written cache is a `CacheInput` of the entries written.
    """

    inputs: dict[str, Any]
    outputs: dict[str, Any]


def record_tree(record: Record) -> dict[str, Any]:
    """A record without its values, as it stands in the index."""
    tree: dict[str, Any] = {
        "id": record.id,
        "step": record.step,
        "call": record.call,
        "op": record.op,
        "site": record.site,
        "layer": record.layer,
        "rows": record.rows,
        "attrs": {name: list(value) if isinstance(value, tuple) else value for name, value in record.attrs.items()},
        "sources": {path: list(source) for path, source in record.sources.items()},
        "views": {
            path: {"offset": view.offset, "shape": list(view.shape), "stride": list(view.stride)}
            for path, view in record.views.items()
        },
        "caches": dict(record.caches),
        "writers": {},
        "parent": record.parent,
    }
    return tree | ({} if record.error is None else {"error": record.error})


def read_record(tree: dict[str, Any], where: str) -> Record:
    keys(tree, _OWN | {"inputs", "outputs"}, {"error"}, where)
    op = text(tree["op"], where, 200)
    require(op in OP_TABLE, where, f"op '{op[:80]}' is not in the contract")
    for kind in ("inputs", "outputs", "writers"):
        mapping(tree[kind], where)
    sources, views = {}, {}
    for path, item in mapping(tree["sources"], where).items():
        source, leaf = (*sequence(item, where, 2), None, None)[:2]
        sources[path] = integer(source, where), text(leaf, where, 200)
    for path, item in mapping(tree["views"], where).items():
        require(path in sources, where, f"a view of '{path[:80]}', which has no source")
        views[path] = _read_view(item, where)
    error = tree.get("error")
    for item in mapping(error, where).values() if error is not None else ():
        text(item, where)
    return Record(
        id=integer(tree["id"], where),
        step=integer(tree["step"], where),
        call=integer(tree["call"], where),
        op=op,
        site=text(tree["site"], where, 400),
        layer=None if tree["layer"] is None else integer(tree["layer"], where, 0, 1 << 20),
        rows=integer(tree["rows"], where),
        attrs={name: _attr(value, where) for name, value in mapping(tree["attrs"], where).items()},
        sources=sources,
        views=views,
        caches={path: text(name, where, 200) for path, name in mapping(tree["caches"], where).items()},
        parent=None if tree["parent"] is None else integer(tree["parent"], where),
        error=error,
    )


def _read_view(item: Any, where: str) -> View:
    keys(mapping(item, where), {"offset", "shape", "stride"}, set(), where)
    shape, stride = (
        tuple(integer(n, where, 0, 1 << 40) for n in sequence(item[name], where, limits.MAX_DIMS))
        for name in ("shape", "stride")
    )
    require(len(shape) == len(stride), where, "shape and stride of a view have different lengths")
    return View(integer(item["offset"], where, 0, 1 << 40), shape, stride)


def _attr(value: Any, where: str) -> Any:
    if isinstance(value, list):
        return tuple(integer(n, where) for n in sequence(value, where, limits.MAX_DIMS))
    require(isinstance(value, _SCALAR), where, "an attribute is neither a number, a text nor a shape")
    return value
