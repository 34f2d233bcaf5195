"""Pictures and README of the small model: what they hold comes from the reports, and nothing else does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.nano_small import SMALL, write_small_data

pytest.importorskip("matplotlib", reason="the plots need matplotlib: pip install -e '.[train]'")

from tools.train_nano import plots, report_quantisation, report_selection
from tools.train_nano.hooks import PARTS
from tools.train_nano.model_card import Facts, card, write_card
from tools.train_nano.reports import read_report, table, write_report
from tools.train_nano.settings import nano_config


def fake_reports() -> dict[str, Any]:
    """Reports with figures that look like nothing else."""
    figures = (n / 9973 for n in range(137, 10**6, 61))

    def some(*names: str) -> dict[str, float]:
        return {name: next(figures) for name in names}

    def kinds(*names: str) -> dict[str, Any]:
        fields = ("relative_rms_error", "zeros", "largest_code", "largest_over_rms")
        return {name: {"dtype": "I8", "values": 3, **some(*fields)} for name in names}

    recalls = ("selected", "oracle", "recent", "random")
    parts = ("engine", "stored", "weights", "activations", *PARTS)
    side = ("top1_agreement", "mean_logit_difference", "max_logit_difference")
    return {
        "quality": {
            "step": 4711, "test_bytes": 204817, "test_tokens": 58057, "window": 517,
            "bits_per_byte": some("engine", "stored", "full"), "kneser_ney": some(*"12345"),
            "kneser_ney_order": 5, "below_kneser_ney": next(figures), "engine_over_full": next(figures),
            "against_full": {"engine": some(*side), "stored": some(*side)}, "kneser_ney_valid": next(figures),
            "positions": {"documents": 43, "least_tokens": 1031, "ranges": [
                {"first": 7, "last": 71, "tokens": 2713, **some("bits_per_byte", "kneser_ney")},
            ]},
            "curve": {"steps": 2803, "done": 2789, "minutes": next(figures) * 97, "phases": {"sparse": 900.0},
                      "loss": [[0, next(figures)], [20, next(figures)]], "valid": [[199, next(figures)]]},
        },
        "samples": {
            "temperature": 0.7, "turn_tokens": 97, "texts": [{"prompt": "In the", "text": " house."}],
            "chats": [{"prompt": "Tell", "expected": "ark", "kind": "topic", "answer": "An ark."}],
            "chats_asked": 61, "topics": 41, "mean_tokens": next(figures),
            **some("ended", "topic_word", "topic_word_elsewhere"),
        },
        "quantisation": {
            "step": 4711, "windows": 33, "window": 517, "tokens": 8209, "cost": some(*parts),
            "against_full": {part: some(*side) for part in parts}, "weights": kinds("embed", "ffn.experts.w1"),
            "activations": kinds("window keys"),
            "before_pull": {"step": 2203, "cost": some("stored"), "kinds": kinds("head")},
        },
        "selection": {
            "step": 4711, "window": 517, "tokens": 8219, "index_topk": 31, "pool_blocks": 9, "pool_block_size": 6,
            "pool_source": 4, "sources": {"1": some(*recalls) | {"positions": 1013, "all_positions": 1019}, "3": None},
            "pool": some(*recalls) | {"positions": 1021, "all_positions": 1031}, "bits": some("random"),
            "hits": {"1": [{"from": 0, "to": 1, "share": next(figures)}, {"from": 1, "to": 2, "share": 0.3}]},
        },
        "experts": {
            "step": 4711, "experts_per_token": 2, "tokens": 8221, "dead_experts": 13, "experts": 32,
            "load_over_mean": [[0.5, 1.5]] * 2, "max_over_mean": [next(figures)] * 2,
            "min_over_mean": [next(figures)] * 2, "changed_by_bias": [next(figures)] * 2,
        },
        "ablations": {"steps": 131, "variants": {
            "base": {"bits_per_byte": [2.113, 2.127], "parameters": 14516497, "seconds": 3.0,
                     **some("mean", "lowest", "highest", "worse_than_base")},
        }},
        "acceptance": [{
            "temperature": 0.0, "markov": True, "steps": 401, "accepted": next(figures),
            "survival": [next(figures)] * 5, "acceptance": [0.5] * 5, "confidence": [0.5] * 5,
            "calibration_error": next(figures),
            "bins": [{"low": 0.0, "events": 3, "confidence": 0.05, "accepted": 0.1}],
        }],
    }  # fmt: skip


DRAW = {
    "quality": plots.quality_plot,
    "quantisation": plots.quantisation_plot,
    "selection": plots.selection_plot,
    "experts": plots.experts_plot,
    "ablations": plots.ablation_plot,
    "acceptance": plots.acceptance_plot,
}


@pytest.mark.parametrize("name", list(DRAW))
def test_pictures_are_small_and_wide(name: str, tmp_path: Path) -> None:
    write_report(name, fake_reports()[name], tmp_path, DRAW[name])
    picture = (tmp_path / f"{name}.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and len(picture) <= 60_000
    assert int.from_bytes(picture[16:20], "big") == 900
    assert read_report(name, tmp_path) == json.loads(json.dumps(fake_reports()[name]))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_small_data(directory)
    return directory


@pytest.fixture()
def facts(data: Path) -> Facts:
    meta = json.loads((data / "meta.json").read_text())
    config = nano_config(data / "tokenizer.json", SMALL).to_dict()
    return Facts(meta, {"steps": 2803, "rate": 0.003}, config, fake_reports())


def figures_of(text: str) -> list[str]:
    """Numbers of the text, those in code, names of formats and links left out."""
    names = r"\b(?:fp8|fp4|bf16|f32|V4\.1|SHA-256)\b"
    plain = re.sub(rf"```.*?```|`[^`]*`|!\[[^\]]*\]\([^)]*\)|{names}", "", text, flags=re.S)
    return re.findall(r"\d[\d,]*(?:\.\d+)?", plain)


def leaves(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner)
            yield from (float(n) for n in re.findall(r"\d+(?:\.\d+)?", str(key)))
    elif isinstance(value, list):
        yield float(len(value))
        for inner in value:
            yield from leaves(inner)
    elif isinstance(value, str):
        yield from (float(n) for n in re.findall(r"\d+(?:\.\d+)?", value))
    elif isinstance(value, int | float):
        yield float(value)


def test_every_figure_of_the_card_comes_from_json(facts: Facts) -> None:
    known = list(leaves([facts.meta, facts.recipe, facts.config, dict(facts.reports)]))
    rows = {"0", "1"}  # layers in the table of experts
    for figure in set(figures_of(card(facts, frozenset(DRAW)))) - rows:
        shown = float(figure.replace(",", "").rstrip("."))
        digits = len(figure.partition(".")[2])
        near = 0.5 * 10.0**-digits + 1e-9
        assert any(abs(shown - value) <= near or abs(shown - 100 * abs(value)) <= near for value in known), figure


def test_what_has_no_report_is_not_measured(facts: Facts) -> None:
    empty = card(Facts(None, None, None, dict.fromkeys(facts.reports)), frozenset())
    assert empty.count("Not measured.") == 3 + len(facts.reports)
    assert figures_of(empty) == []
    without = card(Facts(facts.meta, facts.recipe, facts.config, facts.reports | {"experts": None}), frozenset(DRAW))
    section = without.partition("## Experts")[2].partition("##")[0]
    assert "Not measured." in section and "experts.png" not in without and figures_of(section) == []


def test_writing_the_card_copies_the_pictures(facts: Facts, tmp_path: Path) -> None:
    reports, out = tmp_path / "reports", tmp_path / "model"
    for name in ("quality", "experts"):
        write_report(name, facts.reports[name], reports, DRAW[name])
    write_card(facts, reports, out)
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "experts.png", "quality.png"]
    text = (out / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+\.png)\)", text)) == {"experts.png", "quality.png"}


def test_tables_line_up() -> None:
    assert table(("a", "share"), [("x", 0.5), ("yy", None)], {"share": "{:.0%}"}) == "a   share\nx     50%\nyy      -"


def test_readable_reports_show_their_figures() -> None:
    reports = fake_reports()
    shown = report_quantisation.readable(reports["quantisation"]) + report_selection.readable(reports["selection"])
    for value in (*reports["quantisation"]["cost"].values(), *reports["selection"]["bits"].values()):
        assert f"{100 * value:+.3f}%" in shown
