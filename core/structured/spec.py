"""What a request asks of the form of its output."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tandem.errors import RequestError

KINDS = ("json", "json_object", "regex", "ebnf", "lark", "choice")
MAX_SOURCE_BYTES = 256 * 1024
MAX_CHOICES = 10_000
MAX_TRIGGER_TOKENS = 256

_INT32 = 1 << 31
_GIVEN_AS = {
    "json": "a JSON Schema, as an object or as JSON text",
    "regex": "a regular expression",
    "ebnf": "a grammar with a rule named root",
    "lark": "a grammar in Lark syntax with a rule named start",
    "choice": "a list of strings",
}


@dataclass(frozen=True, slots=True)
class StructuredSpec:
    """The form that the output of one request must have.

    Args:
        kind: what `schema` holds.
            `json`: a JSON Schema (draft 2020-12), as JSON text or as a mapping.
            `json_object`: nothing; the output is any JSON value.
            `regex`: a regular expression that the whole output matches, in the syntax of the Rust crate
            `regex`, which has no look-around and no back-references.
            `ebnf`: a grammar as `tandem.structured.ebnf` reads it.
            `lark`: a grammar in llguidance's variant of Lark, `<special tokens>` included.
            `choice`: the strings of which the output is one.
        schema: see `kind`; kept as JSON text for `json` and as a tuple for `choice`.
        trigger_token_ids: without them the form holds from the first token on.  With them the output is
            free until exactly these tokens have appeared one after another; the form begins behind them.
        bound_token_id: needs a trigger.  Once this token appears in the free part, the trigger's tokens
            are forced one by one, and the form begins.

    Raises:
        RequestError: a field is of a wrong type, missing, out of range or too large.
    """

    kind: str
    schema: str | Mapping[str, Any] | tuple[str, ...] | None = field(default=None)
    trigger_token_ids: tuple[int, ...] = ()
    bound_token_id: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise _unknown("kind", self.kind, KINDS)
        object.__setattr__(self, "schema", self._checked_schema())
        if len(self.source.encode()) > MAX_SOURCE_BYTES:
            raise _refused("schema", "it is too large", f"at most {MAX_SOURCE_BYTES} bytes")
        self._check_trigger()

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> StructuredSpec:
        """From a JSON object with the names of the fields; lists for tuples.

        Raises:
            RequestError: an unknown name, or a value that the constructor refuses.
        """
        if not isinstance(raw, Mapping):
            raise _refused("", f"it is {_shown(raw)}", "an object with kind and schema")
        known = [item.name for item in fields(cls)]
        for name in raw:
            if name not in known:
                raise _unknown("", name, known)
        if "kind" not in raw:
            raise _refused("kind", "it is missing", f"one of {', '.join(KINDS)}")
        return cls(**raw)

    @property
    def source(self) -> str:
        """The schema as one text: JSON for `json`, `json_object` and `choice`."""
        if self.kind == "json_object":
            return "{}"
        return json.dumps(self.schema) if self.kind == "choice" else str(self.schema)

    def check_vocabulary(self, size: int) -> None:
        """Refuse token ids that a model with `size` tokens does not have.

        Raises:
            RequestError: names the field and the id.
        """
        bound = () if self.bound_token_id is None else (self.bound_token_id,)
        for name, tokens in (("trigger_token_ids", self.trigger_token_ids), ("bound_token_id", bound)):
            for token in tokens:
                if token >= size:
                    raise _refused(name, f"it holds {token}", f"token ids below the vocabulary size {size}")

    def _checked_schema(self) -> str | tuple[str, ...] | None:
        given = self.schema
        if self.kind == "json_object":
            if given is not None:
                raise _refused("schema", "it is given with kind json_object", "no schema, or kind json")
            return None
        if self.kind == "choice":
            return _choices(given)
        if self.kind == "json":
            return _json_schema(given)
        if not isinstance(given, str):
            raise _refused("schema", f"it is {_shown(given)}", _GIVEN_AS[self.kind])
        return _unicode(given)

    def _check_trigger(self) -> None:
        given: object = self.trigger_token_ids
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            raise _refused("trigger_token_ids", f"it is {_shown(given)}", "a list of token ids")
        tokens = tuple(given)
        if not all(_is_token(token) for token in tokens):
            raise _refused("trigger_token_ids", f"it is {_shown(tokens)}", "token ids of at least 0")
        if len(tokens) > MAX_TRIGGER_TOKENS:
            raise _refused("trigger_token_ids", f"it has {len(tokens)} tokens", f"at most {MAX_TRIGGER_TOKENS}")
        if self.bound_token_id is not None:
            if not _is_token(self.bound_token_id):
                raise _refused("bound_token_id", f"it is {_shown(self.bound_token_id)}", "one token id of at least 0")
            if not tokens:
                raise _refused("bound_token_id", "there is no trigger to force", "trigger_token_ids with it")
        object.__setattr__(self, "trigger_token_ids", tokens)


def _choices(given: object) -> tuple[str, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not given:
        raise _refused("schema", f"it is {_shown(given)}", _GIVEN_AS["choice"])
    if len(given) > MAX_CHOICES:
        raise _refused("schema", f"it has {len(given)} strings", f"at most {MAX_CHOICES}")
    for item in given:
        if not isinstance(item, str):
            raise _refused("schema", f"it holds {_shown(item)}", _GIVEN_AS["choice"])
    return tuple(_unicode(item) for item in given)


def _json_schema(given: object) -> str:
    """The schema as JSON text, in the order in which it was given."""
    try:
        value = json.loads(given, parse_constant=_no_constant) if isinstance(given, str) else given
        if isinstance(value, (Mapping, bool)):
            return _unicode(json.dumps(value, allow_nan=False, default=_plain))
    except RecursionError as error:
        raise _refused("schema", "it is nested too deeply", "a flatter schema") from error
    except (ValueError, TypeError) as error:
        raise _refused("schema", f"it is not JSON: {error}", _GIVEN_AS["json"]) from error
    raise _refused("schema", f"it is {_shown(given)}", _GIVEN_AS["json"])


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"found {type(value).__name__}")


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refused("schema", "it holds half of a surrogate pair", "valid Unicode") from error
    return text


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _INT32


def _unknown(name: str, found: object, known: Sequence[str]) -> RequestError:
    near = difflib.get_close_matches(str(found), known, n=1)
    fix = f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(known)}"
    return _error(name, f"found {_shown(found)}, which is not known", fix)


def _refused(name: str, why: str, allowed: str) -> RequestError:
    return _error(name, why, f"give {allowed}")


def _error(name: str, why: str, fix: str) -> RequestError:
    where = f"StructuredSpec.{name}" if name else "StructuredSpec"
    return RequestError("the form asked of the output cannot be used", where=where, why=why, fix=fix)


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= 100 else f"{text[:97]}..."
