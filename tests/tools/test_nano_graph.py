"""The differentiable graph: parts against the ops of the engine, the whole against the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.shipped import text_ids
from support.tiny import TinyModel

from tandem.backends.cpu.backend import CpuBackend
from tandem.checkpoint.shipped import shipped_model
from tandem.checkpoint.tiny import make_tiny
from tandem.contract.types import HcWeights
from tandem.ops.hc_mix import coefficients
from tandem.ops.topk_index import topk_index
from tools.train_nano.attention import NEVER, Segment, attend, candidate_pool, top_entries
from tools.train_nano.engine_path import EngineScorer
from tools.train_nano.fakequant import FULL, STORED, Precision
from tools.train_nano.graph import NanoGraph
from tools.train_nano.moe import moe
from tools.train_nano.primitives import mixing, rotate, write_back
from tools.train_nano.read_back import read_parameters

Tensor = torch.Tensor


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_chosen_entries_are_those_of_the_engines_op() -> None:
    scores = draw(0, 2, 40, 50).round()  # many ties
    scores[:, torch.arange(40)[:, None] < torch.arange(50)[None, :]] = NEVER
    mask = top_entries(scores, 7)
    for row, got in zip(scores.flatten(0, 1), mask.flatten(0, 1), strict=True):
        wanted = topk_index(row.unsqueeze(0), 7)[0]
        assert got.nonzero().flatten().tolist() == [int(i) for i in wanted if i >= 0]


def test_the_pool_holds_the_best_blocks_and_the_last(tmp_path: Path) -> None:
    text = make_tiny(tmp_path, 0, {"text_config": {"candidate_topk_blocks": 2, "index_topk": 16}}).text
    scores = torch.zeros((1, 1, 40))
    scores[0, 0, 3], scores[0, 0, 17], scores[0, 0, 30] = 5.0, 4.0, 3.0
    visible = torch.arange(40)[None, :] < 36
    pool = candidate_pool(scores.masked_fill(~visible, NEVER), visible, text)
    # Blocks of 8: the best is block 0; block 4 (entries 32 to 35 are visible) is forced.
    assert pool[0, 0].nonzero().flatten().tolist() == [*range(8), *range(32, 36)]


def test_mixing_is_that_of_the_engine_and_its_gradient_that_of_all_iterations() -> None:
    trunk, fn, base = draw(1, 2, 5, 4, 32), draw(2, 24, 128) / 4, draw(3, 24)
    scale = torch.tensor([0.7, 1.3, 0.9])
    pre, post, comb = mixing(trunk, fn, base, scale, (1e-20, 1e-6, 20))
    flat = trunk.reshape(10, 128)
    mixes = flat @ fn.t() * torch.rsqrt(flat.square().mean(-1, keepdim=True))
    weights = HcWeights(None, base, scale, 1e-20, 1e-6, 20)  # type: ignore[arg-type]  fn is applied already
    wanted = coefficients(mixes, weights, 4)
    torch.testing.assert_close(pre.flatten(0, 1), wanted.pre, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(post.flatten(0, 1), wanted.post, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(comb.flatten(0, 1), wanted.comb, rtol=1e-4, atol=1e-6)
    upstream, variable = draw(4, 2, 5, 4, 4), base.clone().requires_grad_(True)
    early = mixing(trunk, fn, variable, scale, (1e-20, 1e-6, 20))[2]
    (truncated,) = torch.autograd.grad((early * upstream).sum(), variable)
    other = HcWeights(None, variable, scale, 1e-20, 1e-6, 20)  # type: ignore[arg-type]
    (whole,) = torch.autograd.grad((coefficients(mixes, other, 4).comb.view(2, 5, 4, 4) * upstream).sum(), variable)
    # The first iterations count as constants, so the direction is that of the whole gradient, not every digit.
    assert torch.nn.functional.cosine_similarity(truncated, whole, dim=0) > 0.97


def test_streams_are_mixed_from_row_to_column() -> None:
    trunk, y = draw(5, 1, 1, 2, 3), draw(6, 1, 1, 3)
    comb = torch.tensor([[[[0.0, 1.0], [0.25, 0.0]]]])
    new = write_back(trunk, y, torch.tensor([[[1.0, 0.0]]]), comb)
    torch.testing.assert_close(new[0, 0, 0], 0.25 * trunk[0, 0, 1] + y[0, 0])
    torch.testing.assert_close(new[0, 0, 1], trunk[0, 0, 0])


def test_rotation_turns_pairs_and_back() -> None:
    x, angle = draw(7, 1, 3, 2, 6), draw(8, 3, 2)
    turned = rotate(x, angle.cos(), angle.sin())
    assert torch.equal(turned[..., :2], x[..., :2])
    first = torch.view_as_complex(x[..., 2:4].contiguous()) * torch.exp(1j * angle[None, :, None, 0])
    torch.testing.assert_close(torch.view_as_complex(turned[..., 2:4].contiguous()), first)
    torch.testing.assert_close(rotate(turned, angle.cos(), angle.sin(), inverse=True), x)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 21])
def test_attention_is_the_sum_over_window_and_entries(length: int) -> None:
    """Against one loop a row, in float64."""
    heads, dim, window, ratio = 2, 8, 4, 2
    q, keys, sink = draw(9, 1, length, heads, dim), draw(10, 1, length, dim), draw(11, heads)
    entries = length // ratio
    visible = torch.arange(entries)[None, :] < (torch.arange(length)[:, None] + 1) // ratio
    far, chosen = draw(12, 1, entries, dim), visible & (draw(13, length, entries) > 0)
    segment = Segment(far, far, visible, None, chosen.unsqueeze(0))
    got, mass = attend(q, keys, sink, window, segment, fast=False)
    for t in range(length):
        near = keys[0, max(0, t - window + 1) : t + 1]
        for h in range(heads):
            row = torch.cat((near, far[0][chosen[t]])).double()
            scores = row @ q[0, t, h].double() * dim**-0.5
            weights = torch.softmax(torch.cat((scores, sink[h : h + 1].double())), 0)[:-1]
            torch.testing.assert_close(got[0, t, h].double(), weights @ row, rtol=1e-5, atol=1e-6)
        if visible[t].any():
            scores = torch.stack([far[0][visible[t]].double() @ q[0, t, h].double() * dim**-0.5 for h in range(heads)])
            wanted = torch.softmax(scores, -1).mean(0)
            assert mass is not None
            torch.testing.assert_close(mass[0, t][visible[t]].double(), wanted, rtol=1e-5, atol=1e-6)


def test_experts_are_applied_to_the_rows_that_chose_them(tmp_path: Path) -> None:
    """Against one loop a row, with a bias that changes choices and not weights."""
    text = make_tiny(tmp_path, 0).text
    hidden, inner, experts = 16, 8, 5
    w = {"gate": draw(14, experts, hidden), "gate.bias": draw(15, experts) * 3}
    for name, shape in (("w1", (inner, hidden)), ("w3", (inner, hidden)), ("w2", (hidden, inner))):
        w[f"experts.{name}"] = draw(16, experts, *shape)
        w[f"shared_experts.{name}"] = draw(17, *shape)
    x = draw(18, 9, hidden)
    got, load = moe(x, w, 2, text, FULL)
    counts = torch.zeros(experts)

    def expert(row: Tensor, prefix: str, index: int | None) -> Tensor:
        w1, w3, w2 = ((w[f"{prefix}.{m}"] if index is None else w[f"{prefix}.{m}"][index]) for m in ("w1", "w3", "w2"))
        gate, up = (w1 @ row).clamp(max=10.0), (w3 @ row).clamp(-10.0, 10.0)
        return w2 @ (gate / (1 + torch.exp(-gate)) * up)

    for row, result in zip(x, got, strict=True):
        s = torch.log1p(torch.exp(w["gate"] @ row)).sqrt()
        best = sorted(range(experts), key=lambda e: (-float(s[e] + w["gate.bias"][e]), e))[:2]
        counts[best] += 1
        total = expert(row, "shared_experts", None)
        for e in best:
            total = total + expert(row, "experts", e) * s[e] / s[best].sum() * 1.5
        torch.testing.assert_close(result, total, rtol=1e-4, atol=1e-4)
    assert load.tolist() == counts.tolist()


def test_the_graph_is_the_engines(tmp_path: Path) -> None:
    """Stored precision against the engine on the tiny model.

    Sums in another order can fall on the other side of a rounding, and with random weights one moved code moves
    logits at all later positions; before the first such code the two agree to the last bits.
    """
    make_tiny(tmp_path, 3)
    engine = TinyModel(CpuBackend(True), tmp_path)
    wanted = torch.cat([engine.logits([(1, start, 32)]) for start in range(0, 96, 32)])
    config, parameters = read_parameters(tmp_path)

    def distance(precision: Precision) -> Tensor:
        graph = NanoGraph(config, tmp_path / "tokenizer.json", precision)
        with torch.no_grad():
            weights = graph.stored(parameters)
            hidden, _ = graph.hidden(weights, engine.tokens[1:2, :96].long())
            return (graph.logits(weights, hidden)[0] - wanted).abs().mean(-1) / wanted.std()

    assert float(distance(STORED)[:4].max()) < 1e-4
    assert float(distance(FULL)[:4].min()) > 0.01  # the comparison sees what quantisation does


def test_the_graph_is_the_engines_with_trained_weights() -> None:
    """The model that comes with the package on text that it has not seen.

    At most early positions nothing differs but the last bits; later ones inherit the codes that rounding moved.
    """
    ids = text_ids(150)
    wanted = EngineScorer(shipped_model()).logits(ids)
    config, parameters = read_parameters(shipped_model())

    def scored(precision: Precision) -> Tensor:
        graph = NanoGraph(config, shipped_model() / "tokenizer.json", precision)
        with torch.no_grad():
            weights = graph.stored(parameters)
            hidden, _ = graph.hidden(weights, torch.tensor([ids]))
            return graph.logits(weights, hidden)[0]

    def distance(precision: Precision) -> Tensor:
        return (scored(precision) - wanted).abs().mean(-1) / wanted.std()

    stored, full = distance(STORED), distance(FULL)
    assert float(stored[:12].median()) < 1e-3 < float(full[:12].median())
    assert float(stored.median()) < 0.03
    assert (scored(STORED).argmax(-1) == wanted.argmax(-1)).float().mean() > 0.9
