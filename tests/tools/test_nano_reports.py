"""The measurements of the small model: baselines by hand, accounting, what is put into the graph and taken out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.nano_small import SMALL, WINDOW, write_small_data

pytest.importorskip("matplotlib", reason="the plots need matplotlib: pip install -e '.[train]'")

from tandem.engine.outputs import RequestOutput
from tools.train_nano import attention, moe
from tools.train_nano.ablate import VARIANTS, summarise
from tools.train_nano.dataset import load_dataset, load_tokenizer
from tools.train_nano.engine_path import EngineScorer
from tools.train_nano.evaluate import documents, stream_bits, windows
from tools.train_nano.export import export
from tools.train_nano.fakequant import FULL, STORED, Precision
from tools.train_nano.graph import NanoGraph
from tools.train_nano.hooks import PARTS, only, watching
from tools.train_nano.kneser_ney import windows as ngrams
from tools.train_nano.measure import bits_per_byte, compare, engine_source, full_rows, graph_source
from tools.train_nano.parameters import initial_parameters
from tools.train_nano.report_experts import Loads, routed
from tools.train_nano.report_quality import position_bits
from tools.train_nano.report_samples import evenly, holds, judge
from tools.train_nano.report_selection import Recall, observe
from tools.train_nano.selection_rules import (
    at_random,
    block_mass,
    covered,
    last_entries,
    most_recent,
    none_at_all,
    oracle,
    random_share,
    recent,
    selecting,
)
from tools.train_nano.settings import nano_config
from tools.train_nano.stored_kinds import Tally, family_of, kind, stored_family, weight_kinds

Tensor = torch.Tensor
PAD = 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_small_data(directory)
    return directory


@pytest.fixture(scope="module")
def graph(data: Path) -> NanoGraph:
    tokenizer_json = data / "tokenizer.json"
    return NanoGraph(nano_config(tokenizer_json, SMALL), tokenizer_json, FULL)


@pytest.fixture(scope="module")
def parameters(graph: NanoGraph) -> dict[str, Tensor]:
    return initial_parameters(graph.config, 5)


@pytest.fixture(scope="module")
def rows(data: Path) -> tuple[Tensor, Tensor]:
    return full_rows(*windows(load_dataset(data).test, WINDOW), 8)


# Selection


def test_baselines_on_a_mass_worked_out_by_hand() -> None:
    mass = torch.tensor([[0.1, 0.4, 0.2, 0.3, 0.0], [0.5, 0.5, 0.0, 0.0, 0.0]])
    visible = torch.tensor([[True, True, True, True, False], [True, True, False, False, False]])
    assert oracle(mass, 2).tolist() == pytest.approx([0.7, 1.0])
    assert recent(mass, visible, 2).tolist() == pytest.approx([0.5, 1.0])
    assert random_share(mass, visible, 3).tolist() == pytest.approx([0.75, 1.0])  # 3 of 4 entries; all of 2
    assert covered(mass, torch.tensor([[True, False, False, True, False]] * 2)).tolist() == pytest.approx([0.4, 0.5])
    assert block_mass(mass, 2).tolist() == [pytest.approx([0.5, 0.5, 0.0]), pytest.approx([1.0, 0.0, 0.0])]


def test_random_share_is_the_mean_over_all_choices() -> None:
    mass = torch.tensor([0.05, 0.45, 0.2, 0.3])
    pairs = [float(mass[i] + mass[j]) for i in range(4) for j in range(i)]
    visible = torch.ones((1, 4), dtype=torch.bool)
    assert float(random_share(mass, visible, 2)) == pytest.approx(sum(pairs) / len(pairs))


def test_oracle_covers_everything_where_k_reaches() -> None:
    mass = torch.softmax(torch.randn((3, 5, 7), generator=torch.Generator().manual_seed(0)), -1)
    assert torch.allclose(oracle(mass, 7), torch.ones(3, 5))
    assert torch.allclose(oracle(mass, 99), torch.ones(3, 5))


def test_rules_choose_k_visible_entries() -> None:
    visible = torch.arange(6)[None, :] < torch.tensor([0, 2, 6])[:, None]
    assert last_entries(visible, 2).tolist() == [[False] * 6, [True, True] + [False] * 4, [False] * 4 + [True, True]]
    drawn = at_random(5, visible, 3)
    assert drawn.sum(-1).tolist() == [[0, 2, 3]] * 5 and not (drawn & ~visible).any()
    assert len({tuple(row) for row in drawn[:, 2].tolist()}) > 1
    assert most_recent(2, visible, 2).shape == (2, 3, 6) and not none_at_all(2, visible, 2).any()


def test_recall_of_a_graph(graph: NanoGraph, parameters: dict[str, Tensor], rows: tuple[Tensor, Tensor]) -> None:
    report = observe(graph, parameters, *rows).report()
    for source in ("1", "3", "4", "6"):
        found = report["sources"][source]
        # No choice of k covers more than the best, and a random one less than the whole.
        assert 0 < found["selected"] <= found["oracle"] <= 1 + 1e-6 and found["recent"] <= found["oracle"]
        ratio, length, k = graph.text.ratio(int(source)), 48, 4
        choosing = torch.arange(1, length + 1) // ratio > k
        assert found["positions"] == int(rows[1][:, choosing].sum())
        assert found["all_positions"] == int(rows[1].sum())
    assert report["pool"]["selected"] <= report["pool"]["oracle"] + 1e-6
    # Entries seen at a distance, summed over distances, are all that is visible where there is a choice.
    shares = [part["share"] for part in report["hits"]["4"]]
    assert all(0 <= share <= 1 for share in shares) and max(shares) > 0


def test_recall_is_one_where_everything_is_selected(
    data: Path, parameters: dict[str, Tensor], rows: tuple[Tensor, Tensor]
) -> None:
    tokenizer_json = data / "tokenizer.json"
    wide = SMALL | {"index_topk": 4, "candidate_topk_blocks": 12, "candidate_block_size": 4}
    graph = NanoGraph(nano_config(tokenizer_json, wide), tokenizer_json, FULL)
    recall = observe(graph, parameters, *rows)
    assert recall.report()["pool"] is None  # 12 blocks of 4 hold all 48 entries: nothing to choose
    mass, visible = torch.full((1, 6, 6), 1 / 6), torch.ones((6, 6), dtype=torch.bool)
    counted = torch.ones((1, 6), dtype=torch.bool)
    toy = Recall(graph, 6)
    toy._add_source(4, mass, visible, torch.ones((1, 6, 6), dtype=torch.bool), counted)
    found = toy.report()["sources"]["4"]
    assert found["selected"] == pytest.approx(1.0) and found["oracle"] == pytest.approx(4 / 6)


def test_another_selection_is_put_in_place_and_taken_out(
    graph: NanoGraph, parameters: dict[str, Tensor], rows: tuple[Tensor, Tensor]
) -> None:
    weights, tokens = graph.stored(parameters), rows[0][:2, :-1]
    with torch.no_grad():
        before = graph.hidden(weights, tokens)[1].chosen[4]
        with selecting(most_recent):
            inside = graph.hidden(weights, tokens)[1].chosen[4]
        after = graph.hidden(weights, tokens)[1].chosen[4]
    visible = torch.arange(48)[None, :] <= torch.arange(48)[:, None]
    assert torch.equal(inside, last_entries(visible, 4).expand(2, -1, -1))
    assert torch.equal(before, after) and not torch.equal(before, inside)


# Comparisons


def test_compare_counts_each_target_once_and_against_the_reference() -> None:
    tokens = torch.tensor([[0, 3, 4, PAD]] * 8)
    counted = torch.zeros((8, 3), dtype=torch.bool)
    counted[0, :2] = counted[1, 0] = True
    even = torch.zeros((8, 3, 6))
    sharp = even.clone()
    sharp[0, 1, 4] = 2.0  # right about the second target of the first row
    sharp[5:] = 99.0  # rows that do not count
    found = compare({"even": lambda r: even, "sharp": lambda r: sharp}, "even", tokens, counted)
    assert found.tokens == 3 and found.nats["even"] == pytest.approx(3 * math.log(6))
    assert found.nats["sharp"] == pytest.approx(2 * math.log(6) + math.log(math.exp(2) + 5) - 2)
    assert found.agreement["sharp"] == pytest.approx(2 / 3)  # zeros mean token 0; once it is token 4
    assert found.max_difference["sharp"] == 2.0 and found.mean_difference["sharp"] == pytest.approx(2 / 18)


def test_one_denominator(data: Path, graph: NanoGraph, parameters: dict[str, Tensor]) -> None:
    """Model and Kneser-Ney models predict the same tokens, and are divided by the same bytes."""
    dataset = load_dataset(data)
    tokens, counted = windows(dataset.test, 48)
    targets = tokens[:, 1:][counted].sort().values
    assert torch.equal(targets, torch.from_numpy(ngrams(dataset.test.numpy(), 3)[:, -1]).sort().values)
    tokenizer = load_tokenizer(data)
    size = sum(len(tokenizer.decode(d[1:-1].tolist()).encode()) for d in documents(dataset.test))
    assert size == dataset.test_bytes
    nats = compare({"full": graph_source(graph, parameters)}, "full", tokens, counted).nats["full"]
    assert nats / math.log(2) == pytest.approx(stream_bits(graph, parameters, dataset.test, 48), rel=1e-5)
    assert bits_per_byte(math.log(2) * 8 * size, size) == pytest.approx(8.0)


def test_positions_are_split_at_their_bounds() -> None:
    nats = [np.full(7, math.log(2)), np.full(3, 2 * math.log(2))]  # positions 1..7 and 1..3
    sizes = [np.array([1, 1, 2, 2, 2, 2, 0]), np.array([1, 1, 1])]
    first, second = position_bits(nats, sizes, (0, 3, 6, 6))[:2]
    # Positions 1, 2: tokens 2 and 2, bits 2 and 4, bytes 2 and 2.  Positions 3..5: bits 3 and 2, bytes 6 and 1.
    assert (first["tokens"], second["tokens"]) == (4, 4)
    assert first["bits_per_byte"] == pytest.approx(6 / 4) and second["bits_per_byte"] == pytest.approx(5 / 7)


def test_full_rows_hold_no_padding() -> None:
    tokens = torch.full((20, 5), 7)
    tokens[::2, 3:] = PAD
    chosen, counted = full_rows(tokens, torch.arange(20)[:, None].expand(20, 4) > 0, 8)
    assert len(chosen) == len(counted) == 8 and not (chosen[:, :-1] == PAD).any()
    with pytest.raises(SystemExit, match="no window"):
        full_rows(torch.full((8, 5), PAD), torch.zeros((8, 4), dtype=torch.bool), 8)


@pytest.fixture(scope="module")
def model(
    data: Path, graph: NanoGraph, parameters: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    directory = tmp_path_factory.mktemp("model")
    export(graph.config, parameters, data / "tokenizer.json", directory)
    return directory


def test_engine_scores_every_position(model: Path, data: Path) -> None:
    tokens = documents(load_dataset(data).test)[0][:60].tolist()
    scorer = EngineScorer(model)
    logits = scorer.logits(tokens)
    assert logits.shape == (60, 512)
    # Later tokens change nothing before them, and nothing is left of a text asked before.
    assert torch.equal(scorer.logits(tokens[:20]), logits[:20])
    scorer.close()


def test_engine_and_graph_agree_as_sources(
    model: Path, data: Path, graph: NanoGraph, parameters: dict[str, Tensor], rows: tuple[Tensor, Tensor]
) -> None:
    stored = NanoGraph(graph.config, data / "tokenizer.json", STORED)
    sources = {"stored": graph_source(stored, parameters), "engine": engine_source(model)}
    found = compare(sources, "stored", *rows)
    # Random weights make near ties of everything; the likelihoods still have to be those of one model.
    assert found.nats["engine"] == pytest.approx(found.nats["stored"], rel=5e-3)


def test_engine_source_leaves_padding_alone(model: Path) -> None:
    row = torch.tensor([0, 50, 60, PAD, PAD])
    logits = engine_source(model)(torch.stack((row, torch.full_like(row, PAD))))
    assert logits.shape == (2, 5, 512) and not logits[0, 3:].any() and logits[0, :3].any()


# Quantisation


def test_tally_by_hand() -> None:
    tally = Tally()
    tally.add(torch.tensor([[3.0, -4.0], [0.0, 0.0]]), torch.tensor([[3.0, -2.0], [0.0, 0.0]]))
    tally.add(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]))
    found = tally.report()
    assert found["values"] == 4  # the row of zeros is padding
    assert found["relative_rms_error"] == pytest.approx(math.sqrt((4 + 1) / (25 + 1)))
    assert found["zeros"] == pytest.approx(2 / 4)
    assert found["largest_over_rms"] == pytest.approx(1 / math.sqrt(0.5))  # beats 4 over sqrt(12.5)
    assert found["largest_code"] is None


def test_codes_at_the_largest() -> None:
    tally = Tally()
    tally.add_codes(torch.tensor([0x17, -0x01, 0x2F], dtype=torch.int8), "I8")  # nibbles 7 1, 15 15, 15 2
    tally.add_codes(torch.tensor([448.0, -448.0, 416.0]).to(torch.float8_e4m3fn), "F8_E4M3")
    assert (tally.full, tally.coded) == (4 + 2, 6 + 3)


def test_kinds_and_families(graph: NanoGraph, parameters: dict[str, Tensor]) -> None:
    assert kind("layers.11.attn.wq_a") == kind("mtp.0.attn.wq_a") == "attn.wq_a"
    kinds = weight_kinds(parameters, graph.dtypes)
    fours = kinds["ffn.experts.w1"]
    # Of fp4 in groups of 32 a normal value keeps about a tenth of its size as error; f32 keeps all.
    assert 0.05 < fours["relative_rms_error"] < 0.2 and fours["dtype"] == "I8"
    assert kinds["hc_attn_fn"]["relative_rms_error"] == 0.0 and kinds["hc_attn_fn"]["largest_code"] is None
    assert 0 < kinds["attn.wkv"]["relative_rms_error"] < 0.04 < fours["relative_rms_error"]
    changed = stored_family(parameters, graph.dtypes, "experts (fp4)")
    differs = {kind(name) for name in parameters if not torch.equal(parameters[name], changed[name])}
    assert differs == {"ffn.experts.w1", "ffn.experts.w2", "ffn.experts.w3"}
    assert family_of("layers.1.engram.embed", "F8_E4M3") == "engram tables (fp8)"
    assert family_of("layers.1.hc_attn_fn", "F32") is None


def test_parts_of_the_precision_make_up_the_whole(
    data: Path, graph: NanoGraph, parameters: dict[str, Tensor], rows: tuple[Tensor, Tensor]
) -> None:
    tokens = rows[0][:2, :-1]
    whole = NanoGraph(graph.config, data / "tokenizer.json", Precision(False, True))
    run, full = graph_source(whole, parameters), graph_source(graph, parameters)
    with torch.no_grad():
        plain, everything = full(tokens), run(tokens)
        with only(()):
            assert torch.equal(run(tokens), plain)
        with only(PARTS):
            assert torch.equal(run(tokens), everything)
        for part in PARTS:
            with only((part,)):
                assert not torch.equal(run(tokens), plain), part
        assert torch.equal(run(tokens), everything)


def test_watching_names_every_activation(
    data: Path, graph: NanoGraph, parameters: dict[str, Tensor], rows: tuple[Tensor, Tensor]
) -> None:
    stored = NanoGraph(graph.config, data / "tokenizer.json", STORED)
    widths: dict[str, set[int]] = {}
    counts: dict[str, int] = {}

    def see(name: str, x: Tensor, y: Tensor) -> None:
        assert x.shape == y.shape
        widths.setdefault(name, set()).add(x.shape[-1])
        counts[name] = counts.get(name, 0) + 1

    before = (attention.quantised, moe.quantised, attention.straight_through)
    with watching(see), torch.no_grad():
        graph_source(stored, parameters)(rows[0][:2, :-1])
    assert before == (attention.quantised, moe.quantised, attention.straight_through)
    everywhere = ("attn.input", "attn.q_latent", "attn.output", "attn.low_rank", "window keys")
    assert {counts[name] for name in (*everywhere, "ffn.input", "ffn.experts.inner", "ffn.shared.inner")} == {8}
    assert (counts["compressed keys"], counts["index keys"], counts["index queries"]) == (2, 2, 4)
    expected = {"attn.input": 64, "attn.q_latent": 32, "attn.output": 64, "attn.low_rank": 128, "window keys": 32}
    expected |= {"compressed keys": 32, "index keys": 32, "index queries": 32, "ffn.experts.inner": 32}
    assert all(widths[name] == {width} for name, width in expected.items())


# Experts


def test_loads_by_hand() -> None:
    loads = Loads(1, 3)
    scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [9.0, 9.0, 9.0]])
    counted = torch.tensor([True, True, False])
    loads.add(scores, torch.tensor([0.0, -1.5, 0.0]), 2, counted)
    # With the bias: {0, 2} instead of {0, 1}; {2, 0} instead of {2, 1}.
    found = loads.report()
    assert loads.counts.tolist() == [[2, 0, 2]] and found["tokens"] == 2
    assert found["changed_by_bias"] == [1.0] and found["dead_experts"] == 1
    assert found["load_over_mean"][0] == pytest.approx([1.5, 0.0, 1.5])


def test_watched_routing_is_that_of_the_graph(
    graph: NanoGraph, parameters: dict[str, Tensor], rows: tuple[Tensor, Tensor]
) -> None:
    loads = Loads(8, 4)
    tokens = rows[0][:2, :-1]
    with torch.no_grad(), routed(loads, lambda: torch.ones(tokens.numel(), dtype=torch.bool)):
        _, seen = graph.hidden(graph.stored(parameters), tokens)
    assert loads.counts.tolist() == [seen.loads[layer].tolist() for layer in range(8)]
    assert loads.tokens == tokens.numel()


# Samples


def test_topic_words_stand_by_themselves() -> None:
    assert holds("The Ark was large.", "ark") and not holds("The market of sparks", "ark")


def test_judging_chats() -> None:
    asked = [{"kind": k, "expected": e} for k, e in (("topic", "ark"), ("topic", "vine"), ("continue", "x"))]
    answers = [
        RequestOutput(i, (), (1,) * n, text, finish_reason=reason)
        for i, (n, text, reason) in enumerate(((3, "An ark.", "stop"), (5, "An ark.", "stop"), (4, "x", "length")))
    ]
    found = judge(asked, answers)
    assert found["ended"] == pytest.approx(2 / 3) and found["mean_tokens"] == 4 and found["topics"] == 2
    assert found["topic_word"] == 0.5 and found["topic_word_elsewhere"] == 0.5
    assert evenly(list(range(10)), 3) == [0, 3, 6] and evenly([1, 2], 9) == [1, 2]


# Ablations


def test_summary_of_ablations() -> None:
    runs = [("base", 0, 2.0), ("base", 1, 2.2), ("no-engram", 0, 2.31)]
    results = [
        {"variant": v, "seed": s, "steps": 9, "parameters": 5, "bits_per_byte": b, "seconds": 1.0} for v, s, b in runs
    ]
    found = summarise(results)["variants"]
    assert found["base"]["mean"] == pytest.approx(2.1) and found["base"]["worse_than_base"] == pytest.approx(0.0)
    assert found["no-engram"]["worse_than_base"] == pytest.approx(0.1)
    with pytest.raises(SystemExit, match="cannot be compared"):
        summarise([*results, results[0] | {"steps": 8}])


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_variants_are_legal_models(variant: str, data: Path, rows: tuple[Tensor, Tensor]) -> None:
    tokenizer_json = data / "tokenizer.json"
    config = nano_config(tokenizer_json, SMALL | VARIANTS[variant])
    graph = NanoGraph(config, tokenizer_json)
    with torch.no_grad():
        hidden, seen = graph.hidden(graph.stored(initial_parameters(config, 0)), rows[0][:1, :-1])
    assert hidden.isfinite().all()
    assert bool(seen.pools) == (variant != "window-only")
    assert bool(seen.masses) == (variant != "window-only")
