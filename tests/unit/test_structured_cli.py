"""The flags of structured output."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tandem.cli.main import main
from tandem.cli.options import add_sampling_flags, sampling_params
from tandem.errors import RequestError
from tandem.structured import StructuredSpec


def spec_of(*flags: str) -> StructuredSpec | None:
    parser = argparse.ArgumentParser()
    add_sampling_flags(parser)
    return sampling_params(parser.parse_args(flags)).structured


def test_each_flag_gives_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "grammar"
    file.write_text('{"type": "null"}', encoding="utf-8")
    assert spec_of() is None
    assert spec_of("--json-schema", str(file)) == StructuredSpec("json", '{"type": "null"}')
    assert spec_of("--json-schema", ' {"const": 1}') == StructuredSpec("json", '{"const": 1}')
    assert spec_of("--any-json") == StructuredSpec("json_object")
    assert spec_of("--regex", "a+") == StructuredSpec("regex", "a+")
    assert spec_of("--ebnf", str(file)) == StructuredSpec("ebnf", '{"type": "null"}')
    assert spec_of("--lark", str(file)) == StructuredSpec("lark", '{"type": "null"}')
    assert spec_of("--choice", "yes", "--choice", "no") == StructuredSpec("choice", ("yes", "no"))


def test_two_flags_exclude_one_another(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        spec_of("--any-json", "--regex", "a")
    assert "not allowed with" in capsys.readouterr().err


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for name in (tmp_path / "absent", tmp_path, binary):
        with pytest.raises(RequestError, match="--ebnf"):
            spec_of("--ebnf", str(name))
    long = tmp_path / "long"
    long.write_text("x" * 300_000)
    with pytest.raises(RequestError, match="too large"):
        spec_of("--lark", str(long))


def test_generate_keeps_to_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    schema = {
        "x-guidance": {"whitespace_flexible": False},
        "type": "object",
        "properties": {"found": {"type": "boolean"}, "days": {"type": "integer", "minimum": 10, "maximum": 99}},
        "required": ["found", "days"],
        "additionalProperties": False,
    }
    assert main(["generate", "They dug a well.", "--json-schema", json.dumps(schema), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["finish_reason"] == "stop"
    value = json.loads(result["text"])
    assert list(value) == ["found", "days"] and type(value["found"]) is bool and 10 <= value["days"] <= 99


def test_generate_names_what_is_wrong_with_a_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "They dug a well.", "--regex", "a("]) != 0
    assert "unclosed" in capsys.readouterr().err
