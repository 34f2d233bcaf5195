"""What the draft module learns from: rows of text and what the frozen backbone makes of them, computed once.

Drafts are judged against the model's own text, which differs from the book, so most rows are of
`tools.train_nano.continuations`; the others are of the book and of conversations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from tools.train_nano.dataset import Batches, Dataset
from tools.train_nano.graph import NanoGraph

Tensor = torch.Tensor

_ROWS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Lesson:
    """Rows and the backbone's view of them.

    Args:
        tokens: int64 [B, L + 1].
        share: weight of each target, f32 [B, L].
        final: the backbone's normalised final hidden [B, L, H].
        taps: layer -> input of the draft module [B, L, H].
    """

    tokens: Tensor
    share: Tensor
    final: Tensor
    taps: Mapping[int, Tensor]


@torch.no_grad()
def observe(graph: NanoGraph, weights: Mapping[str, Tensor], tokens: Tensor, share: Tensor) -> Lesson:
    """The backbone's view of tokens [B, L + 1] with target weights [B, L]; `weights` from `NanoGraph.stored`."""
    final, seen = graph.hidden(weights, tokens[:, :-1])
    return Lesson(tokens, share, final, seen.taps)


def own_rows(data: Path, length: int, part: str = "text") -> Tensor:
    """The model's own text, int64 [N, length + 1]; `part` is that of the file.

    Raises:
        SystemExit: there is none, or its rows are shorter.
    """
    path = data / "continuations.safetensors"
    if not path.exists():
        raise SystemExit(f"{path} does not exist: run python -m tools.train_nano.continuations, or use no own rows")
    text = load_file(path)[part]
    if text.shape[1] <= length:
        raise SystemExit(f"{path} has rows of {text.shape[1]} tokens; {length + 1} are needed")
    return text[:, : length + 1].long()


def book_rows(dataset: Dataset, count: int, length: int, chat_share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of the book and of conversations: tokens int64 [count, length + 1] and weights f32 [count, length]."""
    return Batches(dataset, count, length, seed, chat_share).batch(0)


class Lessons:
    """Fixed rows in a new order each epoch; a batch is a pure function of seed and step.

    The backbone's activations are bf16 values already, so keeping them as bf16 loses nothing.

    Args:
        path: file that keeps them; made if it does not exist.
    """

    def __init__(
        self, path: Path, graph: NanoGraph, weights: Mapping[str, Tensor], rows: tuple[Tensor, Tensor], seed: int
    ) -> None:
        if not path.exists():
            _write(path, graph, weights, *rows)
        self._layers, self._seed = graph.text.dspark_target_layer_ids, seed
        with safe_open(path, framework="pt") as file:
            self._kept = {name: file.get_tensor(name) for name in ("tokens", "share", "final", "taps")}
        if not torch.equal(self._kept["tokens"], rows[0].int()):
            raise SystemExit(f"{path} holds other rows: remove it")

    def batch(self, step: int, size: int) -> Lesson:
        """`size` rows of a step."""
        count = len(self._kept["tokens"])
        places = range(step * size, (step + 1) * size)
        chosen = [int(self._order(place // count)[place % count]) for place in places]
        kept = {name: value[chosen] for name, value in self._kept.items()}
        taps = kept["taps"].float().unbind(2)
        return Lesson(
            kept["tokens"].long(), kept["share"].float(), kept["final"].float(),
            dict(zip(self._layers, taps, strict=True)),
        )  # fmt: skip

    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        return torch.randperm(len(self._kept["tokens"]), generator=generator)


def _write(path: Path, graph: NanoGraph, weights: Mapping[str, Tensor], tokens: Tensor, share: Tensor) -> None:
    """Run the backbone over all rows."""
    parts: dict[str, list[Tensor]] = {"final": [], "taps": []}
    chunks = list(zip(tokens.split(_ROWS_AT_ONCE), share.split(_ROWS_AT_ONCE), strict=True))
    for some, weight in tqdm(chunks, desc="lessons", unit="batch", disable=None):
        seen = observe(graph, weights, some, weight)
        parts["final"].append(seen.final.bfloat16())
        taps = [seen.taps[layer] for layer in graph.text.dspark_target_layer_ids]
        parts["taps"].append(torch.stack(taps, dim=2).bfloat16())
    kept = {name: torch.cat(part) for name, part in parts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    save_file(kept | {"tokens": tokens.int(), "share": share.bfloat16()}, partial)
    partial.replace(path)
