"""The draft module against the graph it was trained in, in stored precision: each part from the same inputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.drafting import DraftModel

from tandem.checkpoint.shipped import shipped_model
from tandem.checkpoint.tiny import make_tiny

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the training tools are the package ``tools`` there
from tools.train_nano.draft_graph import DraftGraph  # noqa: E402
from tools.train_nano.fakequant import STORED  # noqa: E402
from tools.train_nano.graph import NanoGraph  # noqa: E402
from tools.train_nano.read_back import read_parameters  # noqa: E402

Tensor = torch.Tensor
LENGTH = 60
# Taps of an Engram layer, of the first decoder layer and of the last layer.
TAPS = {"text_config": {"dspark_target_layer_ids": [1, 4, 7]}}


@dataclass
class Pair:
    """A model that has read `LENGTH` tokens of each slot, and its graph."""

    model: DraftModel
    graph: DraftGraph
    weights: dict[str, Tensor]

    @property
    def window(self) -> int:
        return self.model.text.sliding_window

    def features(self, slot: int) -> dict[int, Tensor]:
        """Taps [1, T, H] by layer, as the model had them."""
        rows = [self.model.taps[slot, p] for p in range(LENGTH)]
        layers = self.model.text.dspark_target_layer_ids
        return {layer: torch.stack([row[i] for row in rows]).float()[None] for i, layer in enumerate(layers)}


@pytest.fixture(scope="module", params=["tiny", "shipped"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    path = shipped_model()
    if request.param == "tiny":
        path = tmp_path_factory.mktemp("taps")
        make_tiny(path, 3, TAPS)
    # Weights of the native attention are within 2^-17.  On the trained model that turns a code of a draft block, which
    # moves a row by 0.026 of its length and is no fault of the drafter: there composites run, which round as the graph.
    model = DraftModel(path, native=request.param == "tiny")
    model.read(LENGTH)
    config, parameters = read_parameters(path)
    nano = NanoGraph(config, path / "tokenizer.json", STORED)
    with torch.no_grad():
        yield Pair(model, DraftGraph(nano), nano.stored(parameters))


def apart(got: Tensor, want: Tensor) -> Tensor:
    """Distance of rows over their length, [...]."""
    return (got - want).norm(dim=-1) / want.norm(dim=-1)


def test_taps_are_the_inputs_of_their_layers(pair: Pair) -> None:
    """Rounding that differs grows through the layers, but another layer's input is farther away."""
    _, seen = pair.graph.graph.hidden(pair.weights, pair.model.tokens[:1, :LENGTH].long())
    for layer, tap in pair.features(0).items():
        near = apart(tap, seen.taps[layer])
        others = torch.stack([apart(tap, other) for key, other in seen.taps.items() if key != layer])
        assert float(near.median()) < 0.06
        assert bool((near < others.amin(0)).all())


def test_context_keys_from_the_taps(pair: Pair) -> None:
    """No more than one code in a hundred may round the other way."""
    for slot in range(2):
        want = pair.graph.context(pair.weights, pair.features(slot))
        got = pair.model.keys(slot, range(LENGTH))
        for stage, keys in enumerate(want):
            assert float((got[stage] != keys[0]).float().mean()) < 0.01
            assert float(apart(got[stage], keys[0]).max()) < 0.02


def blocks(pair: Pair, context: list[Tensor], places: list[int], anchors: list[int]) -> Tensor:
    """Hidden of the graph's blocks [4, B, H]."""
    at, tokens = torch.tensor(places).unsqueeze(-1), torch.tensor(anchors).unsqueeze(-1)
    return pair.graph.block(pair.weights, context, at, tokens)[0].squeeze(1)


def places(window: int) -> list[list[int]]:
    """Anchors with one key before them, with a window that is not full, just full and passed, and the newest."""
    return [[1, 2, window - 1, window], [window + 1, window + 2, LENGTH - 1, LENGTH]]


def test_blocks_from_the_context_keys(pair: Pair) -> None:
    """Hidden rows before and after the window is full; a context that is one position off is told apart."""
    keys = [pair.model.keys(slot, range(LENGTH)) for slot in range(4)]
    context = [torch.stack(stage) for stage in zip(*keys, strict=True)]
    for at, anchors in zip(places(pair.window), ([11, 205, 77, 300], [5, 9, 401, 33]), strict=True):
        hidden, _ = pair.model.block(anchors, at, range(4))
        assert float(apart(hidden.float(), blocks(pair, context, at, anchors)).max()) < 0.01
        shifted = [stage.roll(1, dims=1) for stage in context]
        assert float(apart(hidden.float(), blocks(pair, shifted, at, anchors)).amax(-1).min()) > 0.02


def test_heads_from_the_hidden_rows(pair: Pair) -> None:
    """Base logits, Markov head and confidence; the token before each draft is another."""
    anchors = [11, 205, 77, 300]
    hidden, base = pair.model.block(anchors, [9, 30, 44, LENGTH], range(4))
    want = pair.graph.base_logits(pair.weights, hidden.float())
    torch.testing.assert_close(base, want, rtol=0, atol=1e-4)
    previous = torch.tensor(anchors)
    for i in range(pair.model.model.drafts):
        logits, belief = pair.model.model.draft_head(base[:, i], hidden[:, i], previous.int(), i)
        embedded, shift = pair.graph.markov(pair.weights, previous)
        torch.testing.assert_close(logits, base[:, i] + shift, rtol=0, atol=1e-4)
        rate = torch.sigmoid(pair.graph.confidence(pair.weights, hidden[:, i].float(), embedded))
        torch.testing.assert_close(belief, rate, rtol=0, atol=1e-5)
        assert float((shift - shift[:1]).abs().max()) > 0.01  # it does depend on the token before
        previous = logits.argmax(-1)
