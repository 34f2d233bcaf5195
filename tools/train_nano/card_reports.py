"""Sections of the model's README that tell a report: text in, text out, figures only from the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.train_nano.reports import Report


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; floats have three digits after the point."""

    def cell(value: Any) -> str:
        if value is None:
            return "-"
        text = f"{value:.3f}" if isinstance(value, float) else str(value)
        return text.replace("|", "\\|").replace("\n", " ")

    lines = [heads, ["---"] * len(heads), *([cell(v) for v in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(value: float | None, digits: int = 2, sign: bool = False) -> str | None:
    return None if value is None else f"{100 * value:{'+' if sign else ''}.{digits}f} %"


def _quality(report: Report) -> str:
    bits, order = report["bits_per_byte"], report["kneser_ney_order"]
    below, over = report["below_kneser_ney"], report["engine_over_full"]
    rows = [
        ("this checkpoint in the engine", bits["engine"]),
        ("training graph, quantised", bits["stored"]),
        ("training graph, f32", bits["full"]),
        *((f"modified Kneser-Ney, order {n}", value) for n, value in report["kneser_ney"].items()),
    ]
    text = (
        f"Bits per byte of the test part, {report['test_tokens']:,} tokens and {report['test_bytes']:,} bytes of "
        f"chapters that training never saw. The model reads windows of {report['window']} tokens, each token predicted "
        f"once; the Kneser-Ney models have the same tokens and bytes, and the same training text. The engine is "
        f"{_percent(abs(below))} {'below' if below >= 0 else 'above'} order {order}, and {_percent(over, sign=True)} "
        "over f32."
    )
    positions = report["positions"]
    ranges = [
        (f"{r['first']} to {r['last']}", f"{r['tokens']:,}", r["bits_per_byte"], r["kneser_ney"])
        for r in positions["ranges"]
    ]
    beyond = (
        f"In the {positions['documents']} chapters of at least {positions['least_tokens']:,} tokens, read whole by the "
        "engine, by position:"
    )
    return "\n\n".join(
        (
            text,
            markdown_table(("model", "bits per byte"), rows),
            beyond,
            markdown_table(("position", "tokens", "engine", f"Kneser-Ney {order}"), ranges),
        )
    )


def _samples(report: Report) -> str:
    lines = [f"At temperature {report['temperature']}, first attempts with fixed seeds:"]
    lines += [f"> **{t['prompt']}**{_quoted(t['text'])}" for t in report["texts"]]
    lines.append("Conversations about words and verses that no training conversation asks for:")
    lines += [f"> *{c['prompt']}*\n>\n> {_quoted(c['answer'])}" for c in report["chats"]]
    word = _percent(report["topic_word"], 0)
    lines.append(
        f"Of {report['chats_asked']} such conversations {_percent(report['ended'], 0)} ended by themselves within "
        f"{report['turn_tokens']} tokens."
        + (
            ""
            if word is None
            else f" Of {report['topics']} answers about a word {word} hold it; of answers to another question "
            f"{_percent(report['topic_word_elsewhere'], 0)} do."
        )
    )
    return "\n\n".join(lines)


def _quoted(text: str) -> str:
    return text.replace("\n", "\n> ").replace("*", "\\*").replace("<", "\\<")


_PARTS = {
    "engine": "everything, in the engine",
    "stored": "everything, in the training graph",
    "weights": "weights alone",
    "activations": "activations and caches alone",
    "fp8 inputs": "fp8 inputs of products alone",
    "window keys": "fp8 window keys alone",
    "compressed keys": "fp4 compressed keys alone",
    "index": "fp4 index vectors alone",
    "bf16": "bf16 between operations alone",
}


def _quantisation(report: Report) -> str:
    sides = report["against_full"]
    rows = [
        (
            _PARTS[name],
            _percent(report["cost"][name], 3, sign=True),
            _percent(side["top1_agreement"]),
            side["mean_logit_difference"],
            side["max_logit_difference"],
        )
        for name, side in sides.items()
    ]
    blocks = [
        f"On {report['tokens']:,} tokens of the test part, against the same weights in f32 with nothing quantised. The "
        "weights were trained until they lie on the stored grid, so storing them changes little or nothing.",
        markdown_table(("quantised", "bits", "same likeliest token", "mean logit difference", "largest"), rows),
        "By kind of tensor, then of activation: the relative root mean square error of storing, values stored as zero, "
        "values at the largest code, and the largest value relative to the root mean square of its tensor.",
        _kinds(report["weights"] | report["activations"]),
    ]
    early = report["before_pull"]
    if early is not None:
        alone = [(_PARTS.get(name, name), _percent(cost, 3, sign=True)) for name, cost in early["cost"].items()]
        errors = [
            (f"`{name}`", _FORMATS[kind["dtype"]], _percent(kind["relative_rms_error"]))
            for name, kind in early["kinds"].items()
            if kind["largest_code"] is not None
        ]
        blocks += [
            f"Before the weights were drawn onto the grid, at step {early['step']:,}, storing still changed them:",
            markdown_table(("stored", "bits"), alone),
            markdown_table(("kind", "stored as", "error"), errors),
        ]
    return "\n\n".join(blocks)


_FORMATS = {"I8": "fp4", "F8_E4M3": "fp8", "BF16": "bf16", "F32": "f32", None: "at run time"}


def _kinds(kinds: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (
            f"`{name}`",
            _FORMATS[kind.get("dtype")],
            _percent(kind["relative_rms_error"]),
            _percent(kind["zeros"]),
            _percent(kind["largest_code"]),
            f"{kind['largest_over_rms']:.1f}",
        )
        for name, kind in kinds.items()
    ]
    return markdown_table(("kind", "stored as", "error", "zeros", "at largest code", "largest / rms"), rows)


def _selection(report: Report) -> str:
    found = {f"layer {source}": values for source, values in report["sources"].items()} | {"pool": report["pool"]}
    choices = ("selected", "oracle", "recent", "random")
    rows = [(n, *(_percent(v[c], 1) for c in choices), f"{v['positions']:,}") for n, v in found.items() if v]
    changes = [(name, _percent(value, 3, sign=True)) for name, value in report["bits"].items()]
    return "\n\n".join(
        (
            f"How much of full attention's mass on compressed entries the {report['index_topk']} selected ones hold, "
            "where there are more to choose from, beside the best possible choice of as many, the most recent, and a "
            f"random one (its expectation). The pool holds {report['pool_blocks']} blocks of "
            f"{report['pool_block_size']} entries, and is held against as many blocks.",
            markdown_table(("chosen by", *choices, "positions"), rows),
            f"Bits of the same model, untrained for it, with another selection, on {report['tokens']:,} tokens:",
            markdown_table(("selection", "bits"), changes),
        )
    )


def _experts(report: Report) -> str:
    rows = [
        (layer, f"{largest:.2f}", f"{least:.2f}", _percent(changed, 1))
        for layer, (largest, least, changed) in enumerate(
            zip(report["max_over_mean"], report["min_over_mean"], report["changed_by_bias"], strict=True)
        )
    ]
    return "\n\n".join(
        (
            f"Over {report['tokens']:,} tokens of the test part, {report['experts_per_token']} experts each; "
            f"{report['dead_experts']} of {report['experts']} experts were never chosen.",
            markdown_table(("layer", "largest load / mean", "smallest", "choices the bias changed"), rows),
        )
    )


def _ablations(report: Report) -> str:
    rows = [
        (name, len(v["bits_per_byte"]), v["mean"], v["lowest"], v["highest"],
         _percent(v["worse_than_base"], 2, sign=True), f"{v['parameters']:,}")
        for name, v in report["variants"].items()
    ]  # fmt: skip
    heads = ("variant", "seeds", "bits per byte, mean", "lowest", "highest", "against base", "parameters")
    return "\n\n".join(
        (
            f"Trained again from the start with {report['steps']} steps each, a small part of the real run, without "
            "one feature at a time; bits per byte of the validation part. A feature whose difference is within the "
            "spread of the seeds has not shown its worth at this budget.",
            markdown_table(heads, rows),
        )
    )


def _acceptance(report: Sequence[Report]) -> str:
    rows = [
        (
            str(run["temperature"]),
            "with" if run["markov"] else "without",
            f"{run['accepted']:.2f}",
            ", ".join(f"{100 * share:.0f}" for share in run["survival"]),
            run["calibration_error"],
        )
        for run in report
    ]
    heads = ("temperature", "Markov head", "drafts accepted a step", "by position, %", "calibration error")
    return "\n\n".join(("Drafts accepted by the model on beginnings of test chapters:", markdown_table(heads, rows)))


# Report, title, text; in the order of the README.
SECTIONS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("quality", "Quality", _quality),
    ("samples", "What it says", _samples),
    ("quantisation", "Quantisation", _quantisation),
    ("selection", "Indexer and candidate pool", _selection),
    ("experts", "Experts", _experts),
    ("ablations", "Without a feature", _ablations),
    ("acceptance", "Drafts", _acceptance),
)
