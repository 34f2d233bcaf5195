"""The draft module's graph against a slow form of it, its training, speculation with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tandem.model.config import TextConfig
from tools.train_nano.acceptance import Speculation
from tools.train_nano.draft import DraftRecipe, DraftTrainer, compare
from tools.train_nano.draft_graph import DraftGraph
from tools.train_nano.fakequant import FULL, STORED, round_bf16
from tools.train_nano.graph import NanoGraph, backbone_names
from tools.train_nano.lessons import observe
from tools.train_nano.parameters import initial_parameters
from tools.train_nano.settings import nano_config
from tools.train_nano.state import load_state, read_log, save_state
from tools.train_nano.tokenizer import BOS_TOKEN_ID, EOS_TOKEN_ID, train_tokenizer

Tensor = torch.Tensor
LENGTH, K, WINDOW = 40, 3, 8
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 32,
    "sliding_window": WINDOW,
    "compress_ratios": [0, 2, 1, 0, 0],
    "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2],
    "candidate_source_layer_id": 2,
    "candidate_topk_blocks": 4,
    "index_n_heads": 2,
    "index_topk": 16,
    "moe_intermediate_size": 32,
    "engram_layer_ids": [1],
    "dspark_block_size": K,
    "dspark_target_layer_ids": [1, 2],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with texts of twenty tokens that follow one another with some regularity."""
    path = tmp_path_factory.mktemp("data")
    train_tokenizer(["the water was near the bread when the lion saw it"]).save(str(path / "tokenizer.json"))
    generator = torch.Generator().manual_seed(0)

    def stream(count: int) -> Tensor:
        bodies = 300 + torch.randint(1, 3, (count, 50), generator=generator).cumsum(1) % 20
        bos, eos = torch.full((count, 1), BOS_TOKEN_ID), torch.full((count, 1), EOS_TOKEN_ID)
        return torch.cat((bos, bodies, eos), dim=1).flatten().int()

    chat = stream(10)
    starts = torch.arange(0, len(chat) + 1, 52, dtype=torch.int32)
    conversations = {"chat": chat, "chat_mask": torch.ones(len(chat), dtype=torch.uint8), "chat_start": starts}
    save_file({"text": stream(60)} | conversations, path / "train.safetensors")
    for part in ("valid", "test"):
        save_file({"text": stream(4)}, path / f"{part}.safetensors")
    (path / "meta.json").write_text('{"valid_bytes": 1, "test_bytes": 1}')
    return path


@pytest.fixture(scope="module")
def nano(data: Path) -> NanoGraph:
    return NanoGraph(nano_config(data / "tokenizer.json", SMALL), data / "tokenizer.json", FULL)


@pytest.fixture(scope="module")
def weights(nano: NanoGraph) -> dict[str, Tensor]:
    """Start values with noise on everything that starts as a constant."""
    generator = torch.Generator().manual_seed(1)
    noise = {"attn_sink": 1.0, "gate.bias": 0.2, "_norm": 0.3, "norm": 0.3, "_base": 0.5, "_scale": 0.3, "gate": 0.3}
    result = initial_parameters(nano.config, 0)
    for name, value in result.items():
        size = next((size for end, size in noise.items() if name.endswith(end)), 0.0)
        value += size * torch.randn(value.shape, generator=generator)
    return result


@pytest.fixture(scope="module")
def taps(nano: NanoGraph) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {i: torch.randn((2, LENGTH, 64), generator=generator) for i in nano.text.dspark_target_layer_ids}


ANCHORS = torch.tensor([[1, 5, 30], [8, 9, 37]])
TOKENS = torch.tensor([[300, 301, 302], [303, 304, 305]])


def blocks(nano: NanoGraph, weights: dict[str, Tensor], taps: dict[int, Tensor]) -> Tensor:
    graph = DraftGraph(nano)
    return graph.block(weights, graph.context(weights, taps), ANCHORS, TOKENS)[0]


class Slow:
    """The draft module for one anchor, row by row in f64, from its description.

    Args:
        weights: as stored, if `quantised`.
        quantised: activations are rounded to bf16 between operations and to fp8 before quantised products.
    """

    def __init__(self, text: TextConfig, weights: dict[str, Tensor], quantised: bool) -> None:
        self.text, self.quantised = text, quantised
        self.w = {name: value.double() for name, value in weights.items()}

    def bf16(self, x: Tensor) -> Tensor:
        return x.to(torch.bfloat16).double() if self.quantised else x

    def fp8(self, x: Tensor) -> Tensor:
        if not self.quantised:
            return x
        parts = []
        for group in x.split(32):
            scale = 2.0 ** math.ceil(math.log2(max(float(group.abs().max()), 1e-4) / 448))
            parts.append((group / scale).to(torch.float8_e4m3fn).double() * scale)
        return torch.cat(parts)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return self.bf16(self.w[name] @ self.fp8(x))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return self.bf16(x / torch.sqrt((x * x).mean() + self.text.rms_norm_eps) * self.w[name])

    def turn(self, x: Tensor, position: int, sign: float = 1.0) -> Tensor:
        out, rd = x.clone(), self.text.qk_rope_head_dim
        for pair in range(rd // 2):
            i = len(x) - rd + 2 * pair
            angle = sign * position * self.text.rope_theta ** (-2 * pair / rd)
            number = complex(float(x[i]), float(x[i + 1])) * complex(math.cos(angle), math.sin(angle))
            out[i], out[i + 1] = number.real, number.imag
        return self.bf16(out)

    def key(self, x: Tensor, stage: int, position: int) -> Tensor:
        latent = self.norm(self.linear(f"mtp.{stage}.attn.wkv", x), f"mtp.{stage}.attn.kv_norm")
        return self.fp8(self.turn(latent, position))

    def mixes(self, streams: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        m, w = self.text.hc_mult, self.w
        flat = streams.flatten()
        raw = w[f"{name}_fn"] @ flat / torch.sqrt((flat * flat).mean() + self.text.rms_norm_eps)
        base, scale, eps = w[f"{name}_base"], w[f"{name}_scale"], self.text.hc_eps
        pre = torch.sigmoid(raw[:m] * scale[0] + base[:m]) + eps
        post = 2 * torch.sigmoid(raw[m : 2 * m] * scale[1] + base[m : 2 * m])
        comb = torch.softmax((raw[2 * m :] * scale[2] + base[2 * m :]).view(m, m), dim=1) + eps
        comb = comb / (comb.sum(0, keepdim=True) + eps)
        for _ in range(self.text.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(1, keepdim=True) + eps)
            comb = comb / (comb.sum(0, keepdim=True) + eps)
        return pre, post, comb

    def attention(self, x: list[Tensor], stage: int, first: int, context: list[Tensor]) -> list[Tensor]:
        text, w, prefix = self.text, self.w, f"mtp.{stage}.attn."
        keys = context + [self.key(row, stage, first + i) for i, row in enumerate(x)]
        outputs = []
        for i, row in enumerate(x):
            latent = self.norm(self.linear(prefix + "wq_a", row), prefix + "q_norm")
            queries = self.linear(prefix + "wq_b", latent).view(text.num_attention_heads, -1)
            parts = []
            for head, query in enumerate(queries):
                query = self.turn(query, first + i)
                shares = [math.exp(float(query @ key) * text.head_dim**-0.5) for key in keys]
                total = sum(shares) + math.exp(float(w[prefix + "attn_sink"][head]))
                mixed = sum((share / total * key for share, key in zip(shares, keys, strict=True)), query * 0)
                parts.append(self.turn(self.bf16(mixed), first + i, -1.0))
            groups = self.fp8(torch.cat(parts)).view(text.o_groups, -1)
            low = [w[prefix + "wo_a"].view(text.o_groups, text.o_lora_rank, -1)[g] @ z for g, z in enumerate(groups)]
            outputs.append(self.linear(prefix + "wo_b", self.bf16(torch.cat(low))))
        return outputs

    def expert(self, x: Tensor, share: float, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
        limit, x = self.text.swiglu_limit, self.fp8(x)
        gate, up = self.bf16(w1 @ x).clamp(max=limit), self.bf16(w3 @ x).clamp(-limit, limit)
        return self.bf16(w2 @ self.fp8(gate * torch.sigmoid(gate) * up * share))

    def experts(self, x: Tensor, stage: int) -> Tensor:
        w, prefix = self.w, f"mtp.{stage}.ffn."
        scores = torch.sqrt(torch.log1p(torch.exp(w[prefix + "gate"] @ x)))
        ranked = sorted(range(len(scores)), key=lambda e: -float(scores[e] + w[prefix + "gate.bias"][e]))
        best = ranked[: self.text.dspark_num_experts_per_tok]
        total = sum(float(scores[e]) for e in best)
        y = self.expert(x, 1.0, *(w[f"{prefix}shared_experts.{name}"] for name in ("w1", "w2", "w3")))
        for e in best:
            share = float(scores[e]) / total * self.text.routed_scaling_factor
            y = y + self.expert(x, share, *(w[f"{prefix}experts.{name}"][e] for name in ("w1", "w2", "w3")))
        return self.bf16(y)

    def hidden(self, features: Tensor, anchor: int, token: int) -> Tensor:
        """Features [T, taps * H] of one sequence -> the block's hidden [K, H]."""
        text, m = self.text, self.text.hc_mult
        seen = range(max(0, anchor - text.sliding_window), anchor)
        main = {j: self.norm(self.linear("mtp.0.main_proj", features[j].double()), "mtp.0.main_norm") for j in seen}
        ids = [token] + [text.dspark_noise_token_id] * (text.dspark_block_size - 1)
        streams = [self.w["embed"][i].expand(m, -1) for i in ids]
        pre = [torch.tensor([1.0] + [0.0] * (m - 1)).double() for _ in ids]
        for stage in range(text.num_nextn_predict_layers):
            for sub in ("attn", "ffn"):
                mixes = [self.mixes(s, f"mtp.{stage}.hc_{sub}") for s in streams]
                x = [self.bf16(p @ s) for p, s in zip(pre, streams, strict=True)]
                x = [self.norm(row, f"mtp.{stage}.{sub}_norm") for row in x]
                if sub == "attn":
                    y = self.attention(x, stage, anchor, [self.key(c, stage, j) for j, c in main.items()])
                else:
                    y = [self.experts(row, stage) for row in x]
                pre = [mix[0] for mix in mixes]
                streams = [
                    torch.stack([mix[1][j] * out + sum(mix[2][i, j] * old[i] for i in range(m)) for j in range(m)])
                    for mix, out, old in zip(mixes, y, streams, strict=True)
                ]
                streams = [self.bf16(s) for s in streams]
        return torch.stack([self.bf16(p @ s) for p, s in zip(pre, streams, strict=True)])

    def blocks(self, taps: dict[int, Tensor]) -> Tensor:
        features = torch.cat([taps[layer] for layer in self.text.dspark_target_layer_ids], dim=-1)
        rows = zip(features, ANCHORS.tolist(), TOKENS.tolist(), strict=True)
        return torch.stack([torch.stack([self.hidden(f, *one) for one in zip(a, t, strict=True)]) for f, a, t in rows])


def test_blocks_equal_the_slow_form(nano: NanoGraph, weights: dict[str, Tensor], taps: dict[int, Tensor]) -> None:
    wanted = Slow(nano.text, weights, quantised=False).blocks(taps)
    torch.testing.assert_close(blocks(nano, weights, taps).double(), wanted, rtol=1e-4, atol=1e-5)


def test_logits_and_confidence(nano: NanoGraph, weights: dict[str, Tensor]) -> None:
    graph = DraftGraph(nano)
    hidden, previous = torch.randn((5, 64), generator=torch.Generator().manual_seed(3)), torch.arange(300, 305)
    embedded, shift = graph.markov(weights, previous)
    base, belief = graph.base_logits(weights, hidden), graph.confidence(weights, hidden, embedded)
    w = {name: value.double() for name, value in weights.items()}
    for i in range(5):
        d, e = hidden[i].double(), w["mtp.1.markov_head.embed"][300 + i]
        normed = d / torch.sqrt((d * d).mean()) * w["mtp.1.norm"]
        torch.testing.assert_close(base[i].double(), w["head"] @ normed, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(shift[i].double(), w["mtp.1.markov_head.head"] @ e, rtol=1e-4, atol=1e-5)
        wanted = w["mtp.1.confidence_head.proj"][0] @ torch.cat((d, e))
        torch.testing.assert_close(belief[i].double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("distance", "matters"), [(0, False), (1, True), (WINDOW, True), (WINDOW + 1, False)])
def test_block_sees_the_window_before_its_anchor(
    nano: NanoGraph, weights: dict[str, Tensor], taps: dict[int, Tensor], distance: int, matters: bool
) -> None:
    changed = taps | {1: taps[1].clone()}
    changed[1][0, 30 - distance] += 1.0  # anchor 30 of row 0
    same = (blocks(nano, weights, taps) == blocks(nano, weights, changed))[0, 2].all(-1)
    assert bool(same.any()) != matters  # all rows of the block alike
    assert bool(same.all()) != matters


def test_every_row_of_a_block_sees_every_other(
    nano: NanoGraph, weights: dict[str, Tensor], taps: dict[int, Tensor]
) -> None:
    before = blocks(nano, weights, taps)
    noise = weights["embed"].clone()
    noise[nano.text.dspark_noise_token_id] += 1.0  # not what the first row reads
    assert (before != blocks(nano, weights | {"embed": noise}, taps))[:, :, 0].any(-1).all()
    anchor = weights["embed"].clone()
    anchor[300] += 1.0  # what the first row of one block reads
    differs = (before != blocks(nano, weights | {"embed": anchor}, taps)).any(-1)
    assert differs[0, 0].all() and int(differs.sum()) == K


def test_quantised_blocks_equal_the_slow_form(
    data: Path, nano: NanoGraph, weights: dict[str, Tensor], taps: dict[int, Tensor]
) -> None:
    """Up to the few values that round the other way: they move far less than the quantisation as a whole."""
    graph = NanoGraph(nano.config, data / "tokenizer.json", STORED)
    stored, rounded = graph.stored(weights), {layer: tap.bfloat16().float() for layer, tap in taps.items()}
    wanted = Slow(nano.text, stored, quantised=True).blocks(rounded)
    unquantised = Slow(nano.text, stored, quantised=False).blocks(rounded)
    distance = (blocks(graph, stored, rounded) - wanted).norm() / (unquantised - wanted).norm()
    assert distance < 0.05


def test_loss_moves_the_drafts_only(nano: NanoGraph, weights: dict[str, Tensor]) -> None:
    tokens = torch.randint(260, 500, (2, LENGTH + 1), generator=torch.Generator().manual_seed(4))
    names = [name for name in weights if not name.endswith("gate.bias")]
    leaves = {name: weights[name].clone().requires_grad_(name in names) for name in weights}
    lesson = observe(nano, leaves, tokens, torch.ones((2, LENGTH)))
    found = compare(DraftGraph(nano), leaves, lesson, ANCHORS[:, :2])
    assert found.loss.shape == (2, 2, K) and found.features.shape == (2, 2, K, 64 + 32)
    assert not any(part.requires_grad for part in (found.overlap, found.passed, found.features))
    gradients = torch.autograd.grad(found.loss.sum(), [leaves[name] for name in names], allow_unused=True)
    moved = {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
    own = set(names) - set(backbone_names(nano.config))
    assert moved == own - {"mtp.1.confidence_head.proj"} | {"embed", "head"}


def test_targets_and_markov_inputs_are_those_of_their_row(nano: NanoGraph, weights: dict[str, Tensor]) -> None:
    """Row i of anchor a: the backbone's distribution after a + i, the token at a + i as Markov input."""
    tokens = torch.randint(260, 500, (1, LENGTH + 1), generator=torch.Generator().manual_seed(5))
    graph, anchor = DraftGraph(nano), torch.tensor([[11]])
    found = compare(graph, weights, observe(nano, weights, tokens, torch.ones((1, LENGTH))), anchor)
    final, seen = nano.hidden(weights, tokens[:, :-1])
    hidden, _ = graph.block(weights, graph.context(weights, seen.taps), anchor, tokens[:, 11:12])
    for i in range(K):
        q = torch.softmax(final[0, 11 + i] @ weights["head"].t(), -1)
        embedded, shift = graph.markov(weights, tokens[0, 11 + i])
        p = torch.softmax(graph.base_logits(weights, hidden[0, 0, i]) + shift, -1)
        said = tokens[0, 12 + i]
        wanted = (-(q * p.log()).sum(), 1 - (q - p).abs().sum() / 2, (p[said] / q[said]).clamp_max(1.0))
        for value, right in zip((found.loss, found.overlap, found.passed), wanted, strict=True):
            torch.testing.assert_close(value[0, 0, i], right, rtol=1e-4, atol=1e-5)
        belief = found.features[0, 0, i] @ weights["mtp.1.confidence_head.proj"][0]
        torch.testing.assert_close(graph.confidence(weights, hidden[0, 0, i], embedded), belief)


RECIPE = DraftRecipe(steps=4, batch=2, length=LENGTH, stride=4, own_text=False, book_rows=6, text=SMALL)


@pytest.fixture(scope="module")
def backbone(data: Path, nano: NanoGraph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    start = initial_parameters(nano.config, 0)
    save_state(run / "state.safetensors", 0, {name: start[name] for name in backbone_names(nano.config)}, {})
    return run


def test_training_resumes_exactly(data: Path, backbone: Path, tmp_path: Path) -> None:
    DraftTrainer(RECIPE, data, backbone, tmp_path / "whole").run(4)
    DraftTrainer(RECIPE, data, backbone, tmp_path / "parts").run(2)
    DraftTrainer(RECIPE, data, backbone, tmp_path / "parts").run(4)
    (step, *whole), (other, *parts) = (load_state(tmp_path / name / "state.safetensors") for name in ("whole", "parts"))
    assert step == other == 4
    for a, b in zip(whole, parts, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert [line["step"] for line in read_log(tmp_path / "parts" / "log.jsonl")] == [0, 1, 2, 3]


def test_training_lowers_the_loss_and_ends_on_the_grid(data: Path, backbone: Path, tmp_path: Path) -> None:
    recipe = DraftRecipe(steps=12, batch=2, length=LENGTH, stride=4, rate=3e-2, own_text=False, book_rows=6, text=SMALL)
    trainer = DraftTrainer(recipe, data, backbone, tmp_path)
    before = trainer.validate()["valid_loss"]
    trainer.run(12)
    assert read_log(tmp_path / "log.jsonl")[-1]["valid_loss"] < before
    with torch.no_grad():
        stored = trainer.exact.stored(trainer.parameters)
    assert all(torch.equal(stored[name], value) for name, value in trainer.parameters.items())
    name = "mtp.1.confidence_head.proj"
    assert not torch.equal(trainer.parameters[name], round_bf16(initial_parameters(trainer.config, 0)[name]))


def test_another_backbone_is_refused(data: Path, backbone: Path, nano: NanoGraph, tmp_path: Path) -> None:
    DraftTrainer(RECIPE, data, backbone, tmp_path / "draft")
    start = initial_parameters(nano.config, 1)
    other = tmp_path / "run" / "state.safetensors"
    save_state(other, 0, {name: start[name] for name in backbone_names(nano.config)}, {})
    with pytest.raises(SystemExit, match="another recipe or backbone"):
        DraftTrainer(RECIPE, data, other.parent, tmp_path / "draft")


def two_tokens(weights: dict[str, Tensor], one: int, other: int) -> dict[str, Tensor]:
    """A head that always prefers one of two tokens, so that a random draft module is often right."""
    head = torch.zeros_like(weights["head"])
    head[one] = weights["head"][300]
    head[other] = -weights["head"][300]
    markov = torch.zeros_like(weights["mtp.1.markov_head.head"])
    return weights | {"head": head, "mtp.1.markov_head.head": markov}


def greedy(nano: NanoGraph, weights: dict[str, Tensor], tokens: Tensor, count: int) -> Tensor:
    for _ in range(count):
        final, _ = nano.hidden(weights, tokens)
        tokens = torch.cat((tokens, nano.logits(weights, final[:, -1:]).argmax(-1)), dim=1)
    return tokens


@torch.no_grad()
def test_greedy_speculation_emits_the_greedy_text(nano: NanoGraph, weights: dict[str, Tensor]) -> None:
    chosen = two_tokens(weights, 300, 301)
    prompts = torch.randint(260, 500, (4, 12), generator=torch.Generator().manual_seed(6))
    steps, tokens = Speculation(DraftGraph(nano), chosen, 0.0, markov=True).run(prompts, 10, seed=0)
    assert torch.equal(tokens, greedy(nano, chosen, prompts, 10))
    assert 0 < int(steps.accepted.sum()) < K * len(steps.accepted)
    assert torch.equal(steps.reached.sum(1), torch.clamp(steps.accepted + 1, max=K))


@torch.no_grad()
def test_speculation_ends_with_the_text(nano: NanoGraph, weights: dict[str, Tensor]) -> None:
    chosen = two_tokens(weights, 300, EOS_TOKEN_ID)
    for seed in range(7, 12):
        prompt = torch.randint(260, 500, (1, 12), generator=torch.Generator().manual_seed(seed))
        plain = greedy(nano, chosen, prompt, 10)[0, 12:].tolist()
        length = plain.index(EOS_TOKEN_ID) + 1 if EOS_TOKEN_ID in plain else 10
        steps, tokens = Speculation(DraftGraph(nano), chosen, 0.0, markov=True).run(prompt, 10, seed=0)
        assert tokens[0, 12 : 12 + length].tolist() == plain[:length]
        emitted = 1 + int(steps.accepted.sum()) + len(steps.accepted)
        # A text that ends with a draft has no token after it; one that does not end may run past the tenth.
        assert length <= emitted <= (length + 1 if length < 10 else 10 + K)
