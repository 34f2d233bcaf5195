"""Writes the checkpoints of the synthetic sizes, once: random weights of the scale of `tandem.checkpoint.tiny`.

Codes come from a pool of encoded normal numbers, copied from a random place for each tensor, so that writing runs at
the speed of the disk.  What repeats in them changes no time.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import torch

from benchmarks.cpu import sizes
from tandem.checkpoint.inventory import TensorGroup, TensorSpec, tensor_inventory
from tandem.checkpoint.tiny_tokenizer import FIRST_MERGE_ID, byte_level_tokenizer, special_token_ids
from tandem.checkpoint.tiny_weights import random_rows
from tandem.checkpoint.writer import INDEX_NAME, TORCH_DTYPES, CheckpointWriter
from tandem.model.config import ModelConfig
from tandem.model.engram_tables import compressed_vocabulary
from tandem.ops.numerics import e2m1_encode, e4m3_encode, pack_nibbles
from tandem.tokenizer.detokenize import byte_alphabet

POOL = 1 << 22  # bytes of codes
E4M3_DEVIATION, E2M1_DEVIATION = 64.0, 2.0  # of the encoded numbers
_SPECIALS = 32  # ids kept for special tokens at the end of a vocabulary
_SAMPLE_ROWS = 32


def ensure(name: str) -> Path:
    """The checkpoint directory of a size, written if it is not there."""
    if name == "nano":
        return sizes.directory(name)
    vocab = int(sizes.raw_config(name, 1)["text_config"]["vocab_size"])
    tokenizer, compressed = write_tokenizer(vocab)
    folder = sizes.directory(name, compressed)
    if not (folder / INDEX_NAME).is_file():
        write(folder, ModelConfig.from_dict(sizes.raw_config(name, compressed)), tokenizer)
    return folder


def delete() -> None:
    """Remove all synthetic checkpoints and tokenizers; environments of peers stay."""
    for path in sizes.BUILD.glob("*"):
        if path.name.startswith(("mid-", "wide-")):
            shutil.rmtree(path)
        elif path.name.startswith("tokenizer-"):
            path.unlink()


def write_tokenizer(vocab: int) -> tuple[Path, int]:
    """A byte-level tokenizer of ``vocab`` tokens, nearly all merges, and its number of Engram classes."""
    path = sizes.BUILD / f"tokenizer-{vocab}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        alphabet = list(byte_alphabet())
        pairs = itertools.product(alphabet, alphabet)
        triples = ((a + b, c) for a, b, c in itertools.product(alphabet, repeat=3))
        count = vocab - _SPECIALS - FIRST_MERGE_ID
        merges = list(itertools.islice(itertools.chain(pairs, triples), count))
        added = special_token_ids(vocab - _SPECIALS, vocab - 2, vocab - 1)
        byte_level_tokenizer(merges, added, vocab).save(str(path))
    return path, compressed_vocabulary(path)[1]


def write(folder: Path, config: ModelConfig, tokenizer: Path) -> None:
    """Write configuration, tokenizer, shards and index."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8")
    pools, rng = _pools(), np.random.default_rng(0)
    specs = [spec for spec in tensor_inventory(config) if spec.group is not TensorGroup.VISION]
    scales = {spec.name: spec for spec in specs if spec.dtype == "F8_E8M0"}
    with CheckpointWriter(folder, specs) as writer:
        for spec in specs:
            if spec.dtype in pools:
                _write_codes(writer, spec, pools[spec.dtype], rng)
                _write_scale(writer, spec, scales[spec.name.removesuffix("weight") + "scale"])
            elif spec.dtype != "F8_E8M0":
                for rows in random_rows(spec, 0):
                    writer.write(spec.name, rows.to(TORCH_DTYPES[spec.dtype]))


def _pools() -> dict[str, torch.Tensor]:
    """uint8 codes by stored dtype, twice the pool long so that any start has a whole pool behind it."""
    normal = torch.randn(2 * POOL, generator=torch.Generator().manual_seed(0))
    fp8 = e4m3_encode(normal[:POOL] * E4M3_DEVIATION)
    fp4 = pack_nibbles(e2m1_encode(normal * E2M1_DEVIATION))
    return {"F8_E4M3": fp8.repeat(2), "I8": fp4.repeat(2)}


def _write_codes(writer: CheckpointWriter, spec: TensorSpec, pool: torch.Tensor, rng: np.random.Generator) -> None:
    width = spec.shape[1]
    step = max(1, POOL // width)
    for start in range(0, spec.shape[0], step):
        rows, begin = min(step, spec.shape[0] - start), int(rng.integers(POOL))
        piece = pool[begin : begin + rows * width].view(rows, width)
        writer.write(spec.name, piece.view(TORCH_DTYPES[spec.dtype]))


def _write_scale(writer: CheckpointWriter, weight: TensorSpec, scale: TensorSpec) -> None:
    """One power of two for the whole tensor, such that the weight has its usual deviation."""
    sample = TensorSpec(weight.name, (_SAMPLE_ROWS, weight.shape[1]), weight.dtype)
    wanted = float(torch.cat(list(random_rows(sample, 0))).std())
    coded = E2M1_DEVIATION if weight.dtype == "I8" else E4M3_DEVIATION
    exponent = 127 + round(math.log2(wanted / coded))
    codes = torch.full(scale.shape, exponent, dtype=torch.uint8)
    writer.write(scale.name, codes.view(TORCH_DTYPES[scale.dtype]))
