"""With drafts taken by rejection the engine's tokens have the target's law, and a perfect drafter is always right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.engines import Job
from support.lossless import Bench, Forger

from tandem.sampling.params import SamplingParams

Text = tuple[int, ...]
Law = Mapping[Text, float]
Logits = Mapping[Text, npt.NDArray[np.float32]]
DEPTH = 3  # tokens whose joint law is enumerated; the second and third are drafted


def most_likely(logits: npt.NDArray[np.float32], kept: int) -> list[int]:
    order: list[int] = np.argsort(-logits, kind="stable")[:kept].tolist()
    return order


def tree(bench: Bench, prompt: Text, kept: int) -> Logits:
    """Plain logits after every text that top-k leaves, by output so far, fewer than `DEPTH` tokens."""
    found: dict[Text, npt.NDArray[np.float32]] = {}
    texts: list[Text] = [()]
    for depth in range(DEPTH):
        params = SamplingParams(max_tokens=depth + 1, temperature=0.0, ignore_eos=True)
        seen = bench.run([Job(prompt, replace(params, forced_token_ids=text)) for text in texts])
        for text, one in zip(texts, seen, strict=True):
            found[text] = one.values(len(prompt) + depth)
        texts = [(*text, token) for text in texts for token in most_likely(found[text], kept)]
    return found


def enumerated(logits: Logits, kept: int) -> Law:
    """The law of the first `DEPTH` tokens at temperature 1, in float64."""
    law: dict[Text, float] = {(): 1.0}
    for _ in range(DEPTH):
        longer: dict[Text, float] = {}
        for text, mass in law.items():
            tokens = most_likely(logits[text], kept)
            shares = np.exp(logits[text][tokens].astype(np.float64) - float(logits[text].max()))
            for token, share in zip(tokens, shares / shares.sum(), strict=True):
                longer[(*text, token)] = mass * float(share)
        law = longer
    return law


def draw(bench: Bench, prompt: Text, kept: int, count: int) -> Counter[Text]:
    """The first tokens of so many requests, which differ in their seeds."""
    params = {"temperature": 1.0, "top_k": kept, "max_tokens": DEPTH + 1, "ignore_eos": True}
    found: Counter[Text] = Counter()
    for first in range(0, count, 64):
        jobs = [Job(prompt, SamplingParams(seed=seed, **params)) for seed in range(first, min(count, first + 64))]
        found.update(one.tokens[:DEPTH] for one in bench.run(jobs))
        bench.seen.clear()
    return found


def distance(found: Counter[Text], law: Law) -> tuple[float, float]:
    """Chi-square of counts against a law, cells of fewer than 5 expected together, and its 1 - 1e-4 quantile."""
    assert set(found) <= set(law)
    total = sum(found.values())
    cells = [(found[text], mass * total) for text, mass in law.items()]
    large = [cell for cell in cells if cell[1] >= 5]
    rest = [cell for cell in cells if cell[1] < 5]
    if sum(expected for _, expected in rest) >= 5:
        large.append((sum(seen for seen, _ in rest), sum(expected for _, expected in rest)))
    freedom = len(large) - 1
    scale = 2 / (9 * freedom)  # Wilson and Hilferty
    quantile = freedom * (1 - scale + 3.719 * scale**0.5) ** 3
    return sum((seen - expected) ** 2 / expected for seen, expected in large), quantile


def others(logits: Logits) -> Logits:
    """What a drafter believes that is near the target and not it: some of its likeliest tokens are others."""
    noise = np.random.default_rng(5)
    return {text: (row + noise.normal(0, 0.7, len(row))).astype(np.float32) for text, row in logits.items()}


def forge(bench: Bench, prompt: Text, believed: Logits) -> None:
    unknown = np.zeros(bench.parts.vocab_size, dtype=np.float32)
    Forger(bench, lambda tokens, slot: believed.get(tokens[len(prompt) :], unknown))


WIDE = {"scheduler.max_slots": 64, "scheduler.max_tokens_per_step": 256, "model.max_model_len": 64}


PROMPT, KEPT = (7,), 3


@pytest.fixture(scope="module")
def branches(tiny: Path) -> Logits:
    """Plain logits of the tiny model after everything that it can write."""
    return tree(Bench(tiny, WIDE), PROMPT, KEPT)


@pytest.mark.parametrize("count", [64, pytest.param(2560, marks=pytest.mark.slow)])
def test_the_law_of_the_tiny_model(tiny: Path, branches: Logits, count: int) -> None:
    prompt, kept = PROMPT, KEPT
    logits = branches
    law = enumerated(logits, kept)
    assert len(law) == kept**DEPTH and abs(sum(law.values()) - 1) < 1e-12
    bench = Bench(tiny, WIDE | {"speculation.draft_tokens": 3})
    believed = others(logits)
    forge(bench, prompt, believed)
    found = draw(bench, prompt, kept, count)
    statistic, quantile = distance(found, law)
    assert statistic < quantile
    # The drafts did take part, and were wrong often enough.
    assert bench.parts.book is not None and 0.2 < bench.accepted / bench.parts.book.stats.tested < 0.9


def test_a_drafter_that_is_the_target_is_always_right(tiny: Path, branches: Logits) -> None:
    """Proposal and target are the same weights: every draft is taken at temperature 1 too, so texts are the drafts."""
    prompt, kept = PROMPT, KEPT
    bench = Bench(tiny, WIDE | {"speculation.draft_tokens": 2})
    forge(bench, prompt, branches)
    draw(bench, prompt, kept, 32)
    assert bench.parts.book is not None
    stats = bench.parts.book.stats
    # One token after the prompt; two drafts and a fresh token end the request.
    assert (stats.steps, stats.tested, stats.accepted) == (32, 64, 64)


@pytest.mark.slow
def test_the_law_of_the_shipped_model() -> None:
    """The trained model with the drafts of its own module."""
    from support.shipped import text_ids

    prompt, kept = tuple(text_ids(24)), 4
    options = {"scheduler.max_slots": 64, "scheduler.max_tokens_per_step": 512, "model.max_model_len": 64}
    logits = tree(Bench(None, options), prompt, kept)
    law = enumerated(logits, kept)
    bench = Bench(None, options | {"speculation.draft_tokens": 5, "cache.prefix": "on"})
    found = draw(bench, prompt, kept, 1280)
    statistic, quantile = distance(found, law)
    assert statistic < quantile
    assert bench.parts.book is not None and bench.accepted > 0.3 * bench.parts.book.stats.tested


def test_the_distance_finds_a_wrong_law() -> None:
    """The statistic itself: counts drawn from a law pass it, and fail one that is off by a twentieth in two cells."""
    law = {(n,): 1 / 8 for n in range(8)}
    counts = Counter({(n,): 400 + (-1) ** n * 5 for n in range(8)})
    assert distance(counts, law)[0] == pytest.approx(8 * 25 / 400)
    wrong = law | {(0,): 1 / 8 + 1 / 20, (1,): 1 / 8 - 1 / 20}
    assert distance(counts, law)[0] < distance(counts, law)[1] < distance(counts, wrong)[0]
