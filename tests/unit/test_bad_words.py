"""Bad words: no token may complete one in the text, however the text is cut into tokens."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from support.request_modes import OVERLAP, REJECTION, engine

from tandem.engine.bad_words import BadWords
from tandem.engine.llm import LLM
from tandem.sampling.params import SamplingParams
from tandem.tokenizer.detokenize import TokenBytes, byte_alphabet
from tandem.tokenizer.token_index import TokenIndex

SPECIAL = 0


def index_of(texts: list[bytes]) -> TokenIndex:
    """Token 0 is a control token, which adds nothing to a text, whatever its name."""
    symbols = byte_alphabet()
    spelling = ["<end>", *("".join(symbols[byte] for byte in text) for text in texts)]
    return TokenIndex(TokenBytes(spelling.__getitem__, len(spelling), frozenset({SPECIAL})), len(spelling))


def allowed(row: np.ndarray, size: int) -> list[bool]:
    """Bit v % 32 of word v // 32, least significant first."""
    return [bool(int(row[v // 32]) >> (v % 32) & 1) for v in range(size)]


def test_a_token_is_banned_exactly_where_it_completes_a_word() -> None:
    """Random texts over two letters and a character of two bytes; the oracle joins the bytes and looks."""
    source = random.Random(5)
    letters = [b"a", b"b", "é".encode()[:1], "é".encode()[1:]]
    vocabulary = sorted({b"".join(source.choices(letters, k=source.randint(1, 4))) for _ in range(90)})
    index = index_of(vocabulary)
    texts = [b"", *vocabulary]
    banned = 0
    for _ in range(25):
        words = ["".join(source.choices("abé", k=source.randint(1, 4))) for _ in range(source.randint(1, 3))]
        rules, output = BadWords(index, words), list[int]()
        for _ in range(12):  # an output that obeys, with drafts behind it that need not
            drafts = source.choices(range(len(texts)), k=3)
            rows = rules.masks(output, drafts, 4)
            for row in range(4):
                before = b"".join(texts[t] for t in [*output, *drafts[:row]])
                for token, may in enumerate(allowed(rows[row], len(texts))):
                    # A word that ends inside this token's bytes, wherever it begins.
                    after = before + texts[token]
                    ends = (after[:end].endswith(word.encode()) for word in words
                            for end in range(len(before) + 1, len(after) + 1))  # fmt: skip
                    assert may == (not any(ends)), (words, before, texts[token])
                    banned += not may
            free = [token for token, may in enumerate(allowed(rows[0], len(texts))) if may]
            output.append(source.choice(free))
        assert not any(word.encode() in b"".join(texts[t] for t in output) for word in words)
    assert banned > 2000


def test_ids_behind_the_tokenizer_s_own_stay_free() -> None:
    rules = BadWords(index_of([b"a"]), ["a"])
    row = rules.masks([999], [], 1)[0]  # a padding row of the embedding adds no text
    assert allowed(row, 32) == [True, False, *[True] * 30]


@pytest.fixture(scope="module")
def plain(tiny: Path) -> LLM:
    return engine(tiny, {})


@pytest.mark.parametrize("name", [pytest.param("plain", marks=pytest.mark.slow), "rejection-overlap"])
def test_words_across_token_borders_never_appear(tiny: Path, plain: LLM, name: str) -> None:
    """Words are taken from what would be written, across the borders of its tokens, and again from what is then."""
    llm = plain if name == "plain" else engine(tiny, {**REJECTION, **OVERLAP})
    words, prompts = list[str](), ["Once upon", "The cat"]
    for _ in range(2):
        params = SamplingParams(temperature=0.8, seed=4, max_tokens=10, ignore_eos=True, bad_words=tuple(words))
        for output in llm.generate(prompts, params):
            assert output.error is None and len(output.token_ids) == 10
            assert not any(word in output.text for word in params.bad_words)
            for at in range(1, 9, 2):
                two = llm.tokenizer.decode(output.token_ids[at : at + 2])
                middle = two[len(two) // 2 - 1 : len(two) // 2 + 1]
                if middle.strip() and "\ufffd" not in middle:
                    words.append(middle)
    assert len(words) > 4


def test_everything_banned_ends_in_an_error_of_that_request(plain: LLM) -> None:
    """Bad words take all of ASCII, a bias the rest."""
    every = tuple(chr(code) for code in range(128))
    bias = {token: float("-inf") for token in range(512) if not plain.tokenizer.decode([token]).isascii()}
    bias |= {token: float("-inf") for token in range(512) if plain.tokenizer.decode([token]) == ""}
    params = SamplingParams(max_tokens=4, bad_words=every, logit_bias=bias)
    bad, good = plain.generate(["x", "x"], [params, SamplingParams(max_tokens=4, ignore_eos=True)])
    assert bad.error is not None and "every token is banned" in bad.error.why and bad.token_ids == ()
    assert good.error is None and len(good.token_ids) == 4
