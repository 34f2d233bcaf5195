"""Write the model's README from the reports: ``python -m tools.train_nano.model_card``.

Every figure in it comes from a JSON file: of the data, the run, the checkpoint or a report.  What has no report is
said to be not measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.train_nano.card_reports import SECTIONS, markdown_table
from tools.train_nano.card_text import CONFIGURATION, INTRODUCTION, LIMITS, TRAINING
from tools.train_nano.dataset import DEFAULT_DIR
from tools.train_nano.plots import acceptance_plot
from tools.train_nano.reports import MODEL, REPORTS, RUN, read_report

NOT_MEASURED = "Not measured."
_REPORTS = ("quality", "samples", "quantisation", "selection", "experts", "ablations", "acceptance")


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the card may quote, as parsed JSON; None where there is no file.

    Args:
        meta: of the data.
        recipe: of the run.
        config: of the checkpoint.
        reports: by name.
    """

    meta: dict[str, Any] | None
    recipe: dict[str, Any] | None
    config: dict[str, Any] | None
    reports: Mapping[str, Any]


def gather(data: Path, run: Path, model: Path, reports: Path) -> Facts:
    """Read what there is."""
    return Facts(
        meta=_read(data / "meta.json"),
        recipe=_read(run / "recipe.json"),
        config=_read(model / "config.json"),
        reports={name: read_report(name, reports) for name in _REPORTS},
    )


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def card(facts: Facts, pictures: frozenset[str]) -> str:
    """The README.

    Args:
        pictures: names of the reports that have one.
    """
    blocks = [INTRODUCTION, "## Text and licence", _or_not(facts.meta, _data)]
    blocks += ["## Configuration", _or_not(facts.config, _configuration)]
    blocks += ["## Training", _or_not(facts.recipe, _training), _minutes(facts.reports.get("quality"))]
    for name, title, describe in SECTIONS:
        blocks += [f"## {title}", _or_not(facts.reports.get(name), describe)]
        if name in pictures and facts.reports.get(name) is not None:
            blocks.append(f"![{title}]({name}.png)")
    return "\n\n".join([*(block for block in blocks if block), "## Limits", LIMITS]) + "\n"


def _or_not(found: Any, describe: Callable[[Any], str]) -> str:
    return NOT_MEASURED if found is None else describe(found)


def _data(meta: dict[str, Any]) -> str:
    parts = [
        (part, *(f"{meta[f'{part}_{unit}']:,}" for unit in ("documents", "tokens", "bytes")))
        for part in ("train", "valid", "test")
    ]
    chat = (
        f"Beside the text there are {meta['chat_conversations']:,} conversations made from the training part, "
        f"{meta['chat_tokens']:,} tokens, of which {meta['chat_learnt_tokens']:,} are learnt."
    )
    packages = ", ".join(f"`{name} {version}`" for name, version in meta["packages"].items())
    hashes = [("corpus", f"`{meta['corpus_sha256']}`"), *((n, f"`{h}`") for n, h in meta["sha256"].items())]
    return "\n\n".join(
        (
            f"{meta['licence']} A document is a chapter; parts do not share chapters.",
            markdown_table(("part", "chapters", "tokens", "bytes"), parts),
            chat,
            f"Made with {packages}.",
            markdown_table(("file", "SHA-256"), hashes),
        )
    )


def _configuration(config: dict[str, Any]) -> str:
    text = config["text_config"]
    rows = [(what, ", ".join(f"`{json.dumps(text[field])}`" for field in fields)) for what, fields in CONFIGURATION]
    return markdown_table(("what", "value"), rows)


def _training(recipe: dict[str, Any]) -> str:
    return f"{TRAINING}\n\n```json\n{json.dumps(recipe, indent=1)}\n```"


def _minutes(quality: dict[str, Any] | None) -> str:
    if quality is None:
        return ""
    curve = quality["curve"]
    return f"{curve['done']:,} of {curve['steps']:,} steps took {curve['minutes']:.0f} minutes."


def write_card(facts: Facts, reports: Path, out: Path) -> None:
    """Write ``README.md`` and copy the pictures beside it."""
    out.mkdir(parents=True, exist_ok=True)
    pictures = []
    for name in _REPORTS:
        picture = reports / f"{name}.png"
        if facts.reports.get(name) is not None and picture.exists():
            shutil.copyfile(picture, out / picture.name)
            pictures.append(name)
    (out / "README.md").write_text(card(facts, frozenset(pictures)), encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Write the small model's README from its reports.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="of tools.train_nano.dataset")
    parser.add_argument("--run", type=Path, default=RUN, help="of tools.train_nano.train (%(default)s)")
    parser.add_argument("--model", type=Path, default=MODEL, help="checkpoint directory (%(default)s)")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="of the reports (%(default)s)")
    parser.add_argument("--out", type=Path, help="where README.md goes; default: the checkpoint directory")
    parser.add_argument("--json", action="store_true", help="print which sections were measured as JSON")
    arguments = parser.parse_args()
    facts = gather(arguments.data, arguments.run, arguments.model, arguments.reports)
    acceptance = facts.reports["acceptance"]
    if acceptance is not None:
        acceptance_plot(acceptance, arguments.reports / "acceptance.png")
    out = arguments.out or arguments.model
    write_card(facts, arguments.reports, out)
    measured = {name: report is not None for name, report in facts.reports.items()}
    if arguments.json:
        print(json.dumps(measured))
        return
    missing = ", ".join(name for name, there in measured.items() if not there)
    print(f"{out / 'README.md'}" + (f"; not measured: {missing}" if missing else ""))


if __name__ == "__main__":
    main()
