"""Routing, sampling and bookkeeping on the CPU: what they give, derived in other ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tandem.backends.cpu.backend import CpuBackend
from tandem.contract.types import CanonicalWeight, MoEBatch, PackedWeight, QFormat, QTensor, WeightKind
from tandem.errors import LayoutError
from tandem.ops._fixed_cdf import draw, kept_tokens, uniform53
from tandem.ops._residual import DRAFT_STREAM, draw_proposal, normalised, reject_or_take

Tensor = torch.Tensor
BACKEND = CpuBackend(True)
COUNT = 9
SHAPES = {"smooth": 131, "integers": 37, "eighths": 17_000, "a-third-banned": 5000, "flat": 20_003, "bf16": 129_280}


def op(name: str) -> Callable[..., Any]:
    found = BACKEND.implementation(name)
    assert found is not None, name
    return found


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def rows_of(shape: str, generator: torch.Generator) -> Tensor:
    """Logits with as many ties as the shape says, of a vocabulary of its own."""
    x = torch.randn((COUNT, SHAPES[shape]), generator=generator) * 3
    if shape == "a-third-banned":
        x[:, ::3] = float("-inf")
    edits = {"integers": x.round(), "eighths": (x * 8).round() / 8, "flat": x * 0, "bf16": x.bfloat16().float()}
    return edits.get(shape, x)


def numbers_of(vocab: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Of random rows; the first is greedy, and every filter is off in some."""

    def uniform() -> Tensor:
        return torch.rand(COUNT, generator=generator)

    temperature, top_p, min_p = uniform() * 2 + 0.05, uniform() * 0.98 + 0.02, uniform() ** 4
    temperature[0], top_p[::4], min_p[::2] = 0.0, 1.0, 0.0
    top_k = torch.randint(1, vocab // 2 + 2, (COUNT,), generator=generator).to(torch.int32)
    top_k[::3] = -1
    return {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}


@pytest.mark.parametrize("shape", SHAPES)
def test_drawn_exactly_given_the_weights(shape: str) -> None:
    generator = torch.Generator().manual_seed(11)
    logits = rows_of(shape, generator)
    n = numbers_of(logits.shape[1], generator)
    seed = torch.randint(-(2**62), 2**62, (COUNT,), generator=generator)
    at = torch.randint(0, 100_000, (COUNT,), generator=generator)
    off = (torch.ones(COUNT), torch.full((COUNT,), -1, dtype=torch.int32), torch.zeros(COUNT))
    filters = (n["top_p"], n["top_k"], n["min_p"])
    plain = op("draft_sample")(logits, n["temperature"], *off, seed, at, True, False)[1].long()
    kept = torch.where(kept_tokens(logits, plain, *filters), plain, 0)
    kept[0] = plain[0]  # a greedy row has one token, whatever the filters say
    token, weight = op("draft_sample")(logits, n["temperature"], *filters, seed, at, False, True)
    assert torch.equal(weight.long(), kept)
    assert torch.equal(token.long(), draw_proposal(normalised(kept), uniform53(seed + DRAFT_STREAM, at)))
    drawn = op("sample")(logits, n["temperature"], n["top_p"], n["top_k"], seed, at, True, n["min_p"])[0].long()
    assert torch.equal(drawn, draw(kept, uniform53(seed, at)))

    other = logits + torch.randn(logits.shape, generator=generator)
    drafts, offers = op("draft_sample")(other, n["temperature"], *off, seed, at, False, False)
    judged = torch.randperm(COUNT, generator=generator).to(torch.int32)
    judged[2::7] = -1
    forced = torch.full((COUNT,), -1, dtype=torch.int32)
    forced[1::5] = 3
    rest = (*filters, seed, at, forced, drafts, offers, judged, False, True)
    told, accepted, _, _ = op("spec_verify")(logits, n["temperature"], *rest)
    row = judged.clamp_min(0).long()
    draft = torch.where(judged >= 0, drafts[row], -1).long()
    law = (normalised(kept), normalised(offers[row].long()))
    wanted = torch.where(draft >= 0, reject_or_take(*law, draft.clamp_min(0), seed, at), drawn)
    wanted = torch.where(forced >= 0, forced.long(), wanted)
    assert torch.equal(told.long(), wanted)
    assert torch.equal(accepted.bool(), (draft >= 0) & (wanted == draft))


def near(got: Tensor, wanted: Any, ulps: float = 4) -> None:
    value = np.asarray(wanted, dtype=np.float32)
    assert (np.abs(got.double().numpy() - wanted) <= ulps * np.spacing(np.abs(value))).all()


@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 1023, 16_385, 129_280])
def test_log_probabilities_and_weights(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = torch.from_numpy(rng.standard_normal((3, vocab), dtype=np.float32) * 4)
    logits[2, vocab // 2] += 40  # what the others hold is below 2^-24
    heat = torch.tensor([1.0, 0.5, 2.0])
    raw = (logits - logits.amax(1, keepdim=True)).double().numpy()
    scaled = (logits - logits.amax(1, keepdim=True)).mul(heat.reciprocal()[:, None]).double().numpy()

    def logs(d: Any) -> Any:
        others = np.array([np.exp(np.delete(row, row.argmax())).sum() for row in d])
        return d - np.log1p(others)[:, None]

    off = (torch.ones(3), ints(-1, -1, -1))
    near(op("process_logits")(logits, heat, *off, False), logs(scaled))
    seed = torch.arange(3)
    token, of_raw, of_scaled = op("sample")(logits, heat, *off, seed, seed, False)
    at = (np.arange(3), token.numpy())
    near(of_raw, logs(raw)[at])
    near(of_scaled, logs(scaled)[at])
    weight = op("draft_sample")(logits, heat, *off, torch.zeros(3), seed, seed, True, False)[1]
    exact = np.exp(scaled) * 2.0**30
    assert (np.abs(weight.numpy() - exact) <= 1 + exact * 2.0**-21).all()
    greedy = op("sample")(logits, torch.zeros(3), *off, seed, seed, False)
    assert torch.equal(greedy[0].long(), logits.argmax(1)) and bool((greedy[2] == 0).all())
    near(greedy[1], logs(raw).max(1))


def test_rows_that_cannot_be_drawn_from() -> None:
    logits = torch.randn(6, 2000)
    logits[0, 1999], logits[1] = float("nan"), float("-inf")
    logits[2, 3], logits[3, 0] = float("inf"), float("nan")
    heat = torch.tensor([1.0, 1.0, 0.0, 0.7, 1.0, float("nan")])
    seed, filters = torch.arange(6), (torch.full((6,), 0.9), torch.full((6,), 7, dtype=torch.int32))
    token, raw, logprob = op("sample")(logits, heat, *filters, seed, seed, True)
    unusable = [True] * 4 + [False, True]
    assert (token == -1).tolist() == raw.isnan().tolist() == logprob.isnan().tolist() == unusable
    assert op("process_logits")(logits, heat, *filters, True).isnan().all(1).tolist() == unusable
    token, weight = op("draft_sample")(logits, heat, *filters, torch.zeros(6), seed, seed, True, True)
    assert (token == -1).tolist() == (weight == 0).all(1).tolist() == unusable


@pytest.mark.parametrize("n", [1, 20, 1500])
def test_the_largest_in_order(n: int) -> None:
    rng = np.random.default_rng(n)
    values = np.round(rng.standard_normal((9, 16_400)) * 50).astype(np.float32) / 8
    values[1, :16_000], values[2, ::3], values[3] = -np.inf, np.nan, np.sort(values[3])
    ids, best = op("top_logprobs")(torch.from_numpy(values), n)
    for row, own_ids, own in zip(values, ids.numpy(), best.numpy(), strict=True):
        usable = np.flatnonzero(row > -np.inf)
        order = usable[np.lexsort((usable, -row[usable]))][:n]
        assert own_ids.tolist() == order.tolist() + [-1] * (n - len(order))
        assert own[: len(order)].tolist() == row[order].tolist() and (own[len(order) :] == -np.inf).all()


def packed(matrix: Tensor, fmt: QFormat = QFormat.BF16, kind: WeightKind = WeightKind.LINEAR) -> PackedWeight:
    return BACKEND.pack_weight(kind, CanonicalWeight(matrix, None, fmt), tuple(matrix.shape))


@pytest.mark.parametrize("fmt", [QFormat.BF16, QFormat.F32])
@pytest.mark.parametrize("rows", [1, 2, 3, 15, 16, 17, 64])
def test_routing(rows: int, fmt: QFormat) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 1000, generator=generator).bfloat16()
    gate = torch.randn(390, 1000, generator=generator) / 16
    gate = gate if fmt is QFormat.F32 else gate.bfloat16()
    bias, bias_vl = torch.randn(2, 390, generator=generator)
    roles = torch.arange(rows, dtype=torch.int32) % 3
    experts, weights = op("moe_route")(x, packed(gate, fmt), bias, bias_vl, roles, 8, 1.5)
    score = np.sqrt(np.log1p(np.exp(x.double().numpy() @ gate.double().numpy().T)))
    choice = score + np.where(roles.numpy()[:, None] != 0, bias_vl.numpy(), bias.numpy())
    order = np.argsort(-choice, axis=1, kind="stable")[:, :8]
    taken = np.take_along_axis(choice, experts.numpy().astype(np.int64), 1)
    assert np.abs(taken - np.take_along_axis(choice, order, 1)).max() < 1e-4
    assert (np.sort(experts.numpy(), 1) == np.sort(order, 1)).mean() > 0.99
    share = np.take_along_axis(score, experts.numpy().astype(np.int64), 1)
    np.testing.assert_allclose(weights.numpy(), share / share.sum(1, keepdims=True) * 1.5, rtol=2e-5)


def test_nan_and_ties_in_routing() -> None:
    x = torch.zeros(3, 64).bfloat16()
    x[1, 5] = float("nan")
    experts, weights = op("moe_route")(
        x, packed(torch.ones(20, 64).bfloat16()), *torch.zeros(2, 20), ints(0, 0, 0), 4, 1.0
    )
    assert experts.tolist() == [[0, 1, 2, 3]] * 3
    assert weights[::2].tolist() == [[0.25] * 4] * 2 and bool(weights[1].isnan().all())


@pytest.mark.parametrize("rows", [1, 2, 3, 15, 16, 17, 64])
def test_there_and_back(rows: int) -> None:
    """Each served row is its token's; combined, they are the sum over experts that are here."""
    rng = np.random.default_rng(rows)
    codes = torch.from_numpy(rng.integers(0, 120, (rows, 1088), dtype=np.uint8))
    scales = torch.from_numpy(rng.integers(100, 140, (rows, 34), dtype=np.uint8))
    xq = QTensor(codes, scales, QFormat.MXFP8, (rows, 1088))
    experts = torch.from_numpy(np.stack([rng.permutation(12)[:5] for _ in range(rows)]).astype(np.int32))
    slot = torch.from_numpy(rng.integers(-1, 3, rows).astype(np.int32))
    weights = torch.from_numpy(rng.standard_normal((rows, 5)).astype(np.float32))
    batch = op("moe_dispatch")(xq, experts, weights, slot, (2, 10))
    pairs = [(int(e) - 2, t, i) for t in range(rows) for i, e in enumerate(experts[t]) if slot[t] >= 0 and 2 <= e < 10]
    order = sorted(pairs)
    assert batch.ends.tolist() == [sum(e <= last for e, _, _ in order) for last in range(8)]
    source = np.full((rows, 5), -1)
    for place, (_, t, i) in enumerate(order):
        source[t, i] = place
        assert torch.equal(batch.x.data[place], codes[t]) and torch.equal(batch.x.scale[place], scales[t])
        assert batch.weight[place] == weights[t, i]
    assert batch.source.tolist() == source.tolist()
    y = torch.randn(rows * 5, 1091).bfloat16()
    y[len(order) :] = float("nan")
    shared = torch.randn(rows, 1091).bfloat16()
    total = np.zeros((rows, 1091), dtype=np.float32)
    for i in range(5):
        total += np.where(source[:, i : i + 1] >= 0, y.float().numpy()[source[:, i]], np.float32(0))
    for beside in (None, shared):
        wanted = torch.from_numpy(total if beside is None else total + beside.float().numpy()).bfloat16()
        assert torch.equal(op("moe_combine")(y, batch, beside), wanted)


@pytest.mark.parametrize("rows", [1, 5, 17])
def test_heads_of_drafts(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    matrix = torch.randn(2, 4003, 72, generator=generator).bfloat16()
    base, hidden = torch.randn(rows, 4003, generator=generator), torch.randn(rows, 264, generator=generator).bfloat16()
    proj, previous = torch.randn(336, generator=generator) / 8, torch.arange(rows, dtype=torch.int32) * 100
    previous[3::4] = -1
    weights = packed(matrix[0], kind=WeightKind.EMBED), packed(matrix[1])
    logits, trust = op("draft_heads")(base, hidden, previous, *weights, proj, 1.25)
    known = previous.numpy() >= 0
    embedded = matrix[0].double().numpy()[previous.clamp_min(0).numpy()]
    wanted = base.double().numpy() + embedded @ matrix[1].double().numpy().T
    assert np.abs(logits.numpy() - wanted)[known].max() < 1e-4 and bool((logits[~known] == float("-inf")).all())
    score = (np.concatenate((hidden.double().numpy(), embedded), 1) * proj.double().numpy()).sum(1) / 1.25
    np.testing.assert_allclose(trust.numpy(), np.where(known, 1 / (1 + np.exp(-score)), 0), rtol=1e-5)


def test_rows_beside_those_written_stay() -> None:
    x = torch.full((2000, 40_001), 7, dtype=torch.uint8)
    values = torch.randint(0, 255, (3, 40_001), dtype=torch.uint8)
    op("scatter_rows")(x, ints(5, -1, 9), values)
    assert torch.equal(x[[5, 9]], values[::2]) and torch.equal(x[-1], values[1])
    x[[5, 9, 1999]] = 7
    assert bool((x == 7).all())
    taken = op("gather_rows")(values, ints(2, -1, 0, 2))
    assert torch.equal(taken, torch.stack((values[2], torch.zeros_like(values[0]), values[0], values[2])))
    logits = torch.zeros(2, 70)
    op("mask_logits")(logits[:, :67], torch.tensor([[0, -1, 1], [-1, 0, 0]], dtype=torch.int32))
    banned = (logits == float("-inf")).nonzero().tolist()
    assert banned == [[0, i] for i in (*range(32), 65, 66)] + [[1, i] for i in range(32, 67)]


BAD: dict[str, Callable[[], Any]] = {
    "gather_rows": lambda: op("gather_rows")(torch.zeros(3, 2), ints(3)),
    "scatter_rows": lambda: op("scatter_rows")(torch.zeros(3, 2), ints(3), torch.ones(1, 2)),
    "another type": lambda: op("scatter_rows")(torch.zeros(3, 2), ints(0), torch.ones(1, 2, dtype=torch.int32)),
    "aux.take": lambda: op("aux.take")(torch.zeros(1, 2, dtype=torch.int32), torch.full((1, 1), 2, dtype=torch.int32)),
    "aux.commit": lambda: op("aux.commit")(ints(1), ints(4), ints(1), *torch.zeros(2, 4, dtype=torch.int32)),
    "adjust_logits": lambda: op("adjust_logits")(torch.zeros(2, 3), ints(1), ints(3), torch.ones(1)),
    "penalize_logits": lambda: op("penalize_logits")(torch.zeros(2, 3), ints(2), ints(0), torch.ones(1), torch.ones(1)),
    "moe_combine": lambda: op("moe_combine")(
        torch.zeros(2, 8).bfloat16(),
        MoEBatch(QTensor(ints(), ints(), QFormat.MXFP8, (2, 0)), torch.ones(2), ints(2), ints(0, 2).view(1, 2)),
        None,
    ),
    "fewer rows": lambda: op("mask_logits")(torch.zeros(2, 33), torch.zeros(1, 2, dtype=torch.int32)),
    "a gate of codes": lambda: op("moe_route")(
        torch.zeros(1, 32).bfloat16(),
        PackedWeight(WeightKind.LINEAR, QFormat.MXFP8, (4, 32), "cpu.stored", packed(torch.zeros(4, 32)).token, 0),
        *torch.zeros(2, 4),
        ints(0),
        2,
        1.0,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_would_touch_foreign_memory_is_refused(name: str) -> None:
    with pytest.raises(LayoutError) as found:
        BAD[name]()
    assert all(found.value.to_dict().values())
