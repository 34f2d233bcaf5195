"""From the form that is asked for to a grammar in llguidance's own notation."""

from __future__ import annotations

import json
import re

import llguidance

from tandem.errors import RequestError
from tandem.structured.ebnf import ebnf_to_lark

# Any white space is allowed between the parts of a JSON text, but not for ever.
_WHITESPACE = r"[ \n\r\t]{1,64}"


def to_grammar(kind: str, source: str) -> str:
    """The grammar of a `StructuredSpec` with this kind and source.

    It is not yet checked, except for EBNF.

    Raises:
        RequestError: the EBNF grammar cannot be translated.
    """
    if kind in ("json", "json_object"):
        # Keywords that llguidance does not know are refused, whatever the schema asks for.
        schema = "{}" if source == "true" else source
        if not schema.startswith("{"):
            raise unusable("the schema allows nothing")
        return llguidance.LLMatcher.grammar_from_json_schema(
            schema,
            defaults={"whitespace_pattern": _WHITESPACE} if _spaced(schema) else None,
            overrides={"lenient": False},
        )
    if kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(source)
    if kind == "choice":
        return llguidance.LLMatcher.grammar_from_regex("|".join(_literal(text) for text in json.loads(source)))
    return llguidance.LLMatcher.grammar_from_lark(ebnf_to_lark(source) if kind == "ebnf" else source)


def _spaced(schema: str) -> bool:
    """Whether white space may stand between parts; a pattern for it would win over the schema's wish to have none."""
    wishes = json.loads(schema).get("x-guidance")
    return not (isinstance(wishes, dict) and wishes.get("whitespace_flexible") is False)


def parser_limits(grammar_symbols: int, lexer_states: int) -> llguidance.LLParserLimits:
    """llguidance's limits, besides its own for one step; see `Budget`."""
    return llguidance.LLParserLimits(max_grammar_size=grammar_symbols, max_lexer_states=lexer_states)


def matcher(tokenizer: llguidance.LLTokenizer, grammar: str, limits: llguidance.LLParserLimits) -> llguidance.LLMatcher:
    """A matcher at the start of a grammar, with the first mask computed.

    Raises:
        RequestError: the grammar is invalid, too large, or matches nothing.
    """
    found = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if not found.is_error():
        found.compute_bitmask()
    if found.is_error():
        raise unusable(message(found.get_error()))
    return found


def unusable(why: str, fix: str = "correct or simplify it") -> RequestError:
    """The error of a form that has no grammar."""
    return RequestError(
        "the form asked of the output cannot be used",
        where="StructuredSpec.schema",
        why=why,
        fix=fix,
    )


def message(text: str) -> str:
    """llguidance's message without the state of its parser and the grammar, which it adds below."""
    found = " ".join(text.split("\n<state>", 1)[0].split())
    if found in ("", "NoExtensionBias", "NoExtension"):
        return "no token can follow"
    return found if len(found) <= 300 else f"{found[:297]}..."


def _literal(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", lambda found: f"\\x{{{ord(found[0]):X}}}", text)
