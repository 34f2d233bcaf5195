"""Engram constants against published values and an independent derivation."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from tandem.checkpoint.tiny import make_tiny
from tandem.cli.checkpoint import official_config
from tandem.errors import ConfigError, TokenizerError
from tandem.model.config import ModelConfig
from tandem.model.engram_tables import (
    compressed_vocabulary,
    engram_multipliers,
    engram_offsets,
    engram_primes,
    engram_vocabulary_map,
    hash_primes,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelConfig]:
    path = tmp_path_factory.mktemp("tiny")
    return path, make_tiny(path, 0)


def test_official_primes() -> None:
    primes = engram_primes(official_config().text)
    assert primes[0][0] == (
        *(16000057, 16000079, 16000081, 16000097),
        *(16000121, 16000129, 16000133, 16000183),
    )
    assert primes[1][2][-1] == 16000889
    assert [sum(map(sum, layer)) for layer in primes] == [384_006_168, 384_016_682]


def test_small_primes_and_offsets(tiny: tuple[Path, ModelConfig]) -> None:
    # the primes from 101 on, two heads for each n-gram size, never repeated between layers
    assert engram_primes(tiny[1].text) == (
        ((101, 103), (107, 109), (113, 127)),
        ((131, 137), (139, 149), (151, 157)),
    )
    assert engram_offsets(tiny[1].text)[0] == ((0, 101), (204, 311), (420, 533))


def test_search_starts_at_the_bound_itself() -> None:
    assert hash_primes(1, 2, 2, 6) == (((2, 3, 5, 7, 11, 13),),)
    assert hash_primes(1, 24, 2, 2) == (((29, 31),),)  # not 25


def test_sizes_must_be_the_sums_of_the_primes(tiny: tuple[Path, ModelConfig]) -> None:
    raw = tiny[1].to_dict()
    raw["text_config"]["engram_num_embeddings"] = [660, 865]
    with pytest.raises(ConfigError, match=r"\[660, 865\].*\[660, 864\]"):
        engram_primes(ModelConfig.from_dict(raw).text)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (1, [76632096046245, 4839876093313, 35959672319349, 73987337458391]),
        (14, [67716810739261, 51510806800915, 30921347202721, 82619226485591]),
    ],
)
def test_official_multipliers(layer: int, expected: list[int]) -> None:
    multipliers = engram_multipliers(layer, 99092, 4)
    assert multipliers.dtype == np.int64
    assert multipliers.tolist() == expected
    assert max(expected) * 99091 < 2**63  # the largest product of an id and a multiplier


def folded(text: str) -> str:
    """Independent form of the text folding, from the Unicode database."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c for c in text if unicodedata.category(c) != "Mn").lower()
    text = re.sub(r"[ \t\r\n]+", " ", text)
    return text if text == " " else text.strip()


def test_compressed_vocabulary_of_a_small_tokenizer(tiny: tuple[Path, ModelConfig]) -> None:
    mapping, count = compressed_vocabulary(tiny[0] / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tiny[0] / "tokenizer.json"))
    classes: dict[str, int] = {}
    expected = []
    for token_id in range(512):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        key = tokenizer.id_to_token(token_id) if "\ufffd" in text else folded(text) or text
        expected.append(classes.setdefault(key, len(classes)))
    assert mapping.tolist() == expected
    assert mapping.dtype == np.int32
    assert count == len(classes) == tiny[1].text.engram_compressed_vocab_size

    def class_of(byte: int) -> int:
        return int(mapping[3 + byte])

    assert class_of(ord("A")) == class_of(ord("a")) != class_of(ord("b"))
    assert class_of(ord(" ")) == class_of(ord("\n")) == class_of(ord("\t"))
    assert class_of(0xC3) != class_of(0xC4)  # halves of characters stay apart
    assert mapping[tokenizer.token_to_id("Ġthe")] == mapping[tokenizer.token_to_id("ĠThe")]


def test_folding_by_hand(tmp_path: Path) -> None:
    # Bytes are written in the byte-level alphabet: \u0120 is a space, \u010a a line feed.
    tokens = {
        "e": 0,
        "E": 0,
        "\u0120E": 0,  # a space beside other text is stripped
        "\u00c3\u00a9": 0,  # e with an acute accent, as UTF-8
        "fi": 1,
        "\u00ef\u00ac\u0123": 1,  # the ligature fi
        "\u0120": 2,
        "\u0120\u010a\u0120": 2,  # white space alone is one space
        "\u00c3": 3,  # half a character
        "\u00a9": 4,  # the other half
        "\u00cc\u0123": 5,  # an accent alone folds to nothing, so it stands for itself
    }
    model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    mapping, count = compressed_vocabulary(tmp_path / "tokenizer.json")
    assert mapping.tolist() == list(tokens.values())
    assert count == 6


def test_vocabulary_map_covers_rows_without_a_token(tiny: tuple[Path, ModelConfig]) -> None:
    raw = tiny[1].to_dict()
    raw["text_config"]["vocab_size"] = 520
    text = ModelConfig.from_dict(raw).text
    mapping = engram_vocabulary_map(text, tiny[0] / "tokenizer.json")
    assert mapping.shape == (520,)
    assert set(mapping[512:].tolist()) == {int(mapping[2])}


def test_tokenizer_of_another_model_is_refused(tiny: tuple[Path, ModelConfig], tmp_path: Path) -> None:
    raw = tiny[1].to_dict()
    raw["text_config"]["engram_compressed_vocab_size"] -= 1
    with pytest.raises(ConfigError, match="engram_compressed_vocab_size"):
        engram_vocabulary_map(ModelConfig.from_dict(raw).text, tiny[0] / "tokenizer.json")
    with pytest.raises(TokenizerError, match="cannot be read"):
        compressed_vocabulary(tmp_path / "tokenizer.json")
    content = json.loads((tiny[0] / "tokenizer.json").read_text())
    content["model"]["vocab"]["one more"] = 512
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match="513 tokens"):
        engram_vocabulary_map(tiny[1].text, tmp_path / "tokenizer.json")
