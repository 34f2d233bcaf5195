"""Tokenising, incremental decoding, and chat rendering."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import deepseek_recipe
import pytest
from tokenizers import Tokenizer as HfTokenizer

from tandem.checkpoint.tiny import make_tiny
from tandem.errors import RequestError, TokenizerError
from tandem.tokenizer.chat import render_chat
from tandem.tokenizer.detokenize import IncrementalDetokenizer
from tandem.tokenizer.tokenizer import Tokenizer

FIRST_BYTE = 3  # the tiny tokenizer has byte b as token 3 + b
TEXT = "The quick brown fox — naïve café, 日本語, 🙂\n\tand the END."


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_tiny(path, 0)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.load(directory)


@pytest.fixture(scope="module")
def library(directory: Path) -> HfTokenizer:
    return HfTokenizer.from_file(str(directory / "tokenizer.json"))


def byte_ids(data: bytes) -> list[int]:
    return [FIRST_BYTE + byte for byte in data]


def test_text_round_trip(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    assert ids[0] == tokenizer.bos_id == 0
    assert tokenizer.encode(TEXT, add_bos=False) == ids[1:]
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.decode(ids, skip_special=False) == "<｜begin▁of▁sentence｜>" + TEXT
    assert len(ids) < len(TEXT.encode())  # merges are used
    assert tokenizer.encode("", add_bos=False) == []


def test_every_byte_decodes(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(byte_ids(TEXT.encode())) == TEXT
    assert tokenizer.decode(byte_ids(bytes(range(128)))) == bytes(range(128)).decode()
    # C3 28 is broken after C3; FF never occurs; E2 82 is cut short
    assert tokenizer.decode(byte_ids(b"\xc3(\xff\xe2\x82")) == "\ufffd(\ufffd\ufffd"


def test_ids_of_the_config(tokenizer: Tokenizer) -> None:
    assert (tokenizer.eos_id, tokenizer.pad_id, tokenizer.image_id, tokenizer.vocab_size) == (1, 2, 500, 512)
    assert tokenizer.is_special(499) and not tokenizer.is_special(FIRST_BYTE)


def test_ids_without_a_token_give_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([FIRST_BYTE + 65, 512, 10**6, -1, FIRST_BYTE + 66]) == "AB"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("skip_special", [True, False])
def test_pieces_join_to_what_the_library_decodes(
    tokenizer: Tokenizer, library: HfTokenizer, seed: int, skip_special: bool
) -> None:
    rng = random.Random(seed)
    ids = [rng.randrange(512) for _ in range(200)]
    expected = library.decode(ids, skip_special_tokens=skip_special)
    assert tokenizer.decode(ids, skip_special) == expected
    stream = IncrementalDetokenizer(tokenizer.token_bytes, skip_special)
    pieces = [stream.feed([token_id]) for token_id in ids]
    assert "".join(pieces) + stream.flush() == expected


def test_characters_appear_when_complete(tokenizer: Tokenizer) -> None:
    stream = IncrementalDetokenizer(tokenizer.token_bytes)
    fed = [stream.feed([token_id]) for token_id in byte_ids("a🙂é".encode())]
    assert fed == ["a", "", "", "", "🙂", "", "é"]
    assert stream.flush() == ""
    assert stream.feed(byte_ids("🙂".encode()[:3])) == ""
    assert stream.flush() == "\ufffd"
    assert stream.feed(byte_ids(b"ok")) == "ok"


def test_special_tokens_are_single_tokens(library: HfTokenizer) -> None:
    kinds = [
        getattr(deepseek_recipe.SpecialToken, n) for n in dir(deepseek_recipe.SpecialToken) if n[0].isupper()
    ]
    assert len(kinds) == 18
    for kind in kinds:
        spelling = kind.default_str()
        assert library.encode(f"a{spelling}b", add_special_tokens=False).tokens == ["a", spelling, "b"]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say <｜User｜> and </think>."},
    {"role": "assistant", "content": "No."},
    {"role": "user", "content": "Why?"},
]


def test_chat_renders_the_format(tokenizer: Tokenizer) -> None:
    ids = render_chat(MESSAGES, tokenizer)
    assert tokenizer.decode(ids, skip_special=False) == (
        "<｜begin▁of▁sentence｜><｜System｜>Be brief.<｜User｜>Say <｜User｜> and </think>."
        "<｜Assistant｜></think>No.<｜end▁of▁sentence｜><｜User｜>Why?<｜Assistant｜></think>"
    )
    thinking = render_chat(MESSAGES[:2], tokenizer, thinking=True)
    assert tokenizer.decode(thinking, skip_special=False).endswith("<｜Assistant｜><think>")


def test_special_spellings_in_a_message_stay_text(tokenizer: Tokenizer, library: HfTokenizer) -> None:
    ids = render_chat(MESSAGES, tokenizer)
    user, think_end = library.token_to_id("<｜User｜>"), library.token_to_id("</think>")
    assert ids.count(user) == 2  # one for each user message, none for the spelling inside
    assert ids.count(think_end) == 2  # before each assistant answer
    # a prompt written by hand may use them
    assert tokenizer.encode("<｜User｜>", add_bos=False) == [user]


def test_all_special_tokens_of_a_tool_prompt_are_tokens(directory: Path, library: HfTokenizer) -> None:
    options = deepseek_recipe.ConversionOptions().with_model_alias(
        "m", deepseek_recipe.ModelVersion.DeepseekV41Flash
    )
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    content = [{"type": "text", "text": "look"}, IMAGE]
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "tools": [tool]}
    conversation = deepseek_recipe.ChatCompletionRequest(body).convert(options).conversation
    rendered = deepseek_recipe.DeepseekV41Encoding().render_conversation(conversation)
    spellings = {rendered.prompt[start:end] for start, end in rendered.special_ranges}
    assert {"｜DSML｜", "<｜image｜>", "<think>"} <= spellings
    assert all(library.token_to_id(spelling) is not None for spelling in spellings)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hello",
        None,
        [1],
        [{"role": "nobody", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": "\ud800"}],
        [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
            }
        ],
    ],
)
def test_bad_messages(tokenizer: Tokenizer, messages: Any) -> None:
    with pytest.raises(RequestError) as caught:
        render_chat(messages, tokenizer)
    assert caught.value.where == "messages"


@pytest.mark.parametrize("prompt", ["\ud800", 3, None])
def test_bad_prompts(tokenizer: Tokenizer, prompt: Any) -> None:
    with pytest.raises(RequestError, match="cannot be tokenised"):
        tokenizer.encode(prompt)


def test_missing_or_unfit_tokenizer(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no tokenizer"):
        Tokenizer.load(tmp_path)
    content = json.loads((directory / "tokenizer.json").read_text())
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"decoder": None}))
    with pytest.raises(TokenizerError, match="does not decode to bytes"):
        Tokenizer.load(tmp_path)
    content["model"]["vocab"]["one more"] = 512
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match="513 tokens"):
        Tokenizer.load(tmp_path)
