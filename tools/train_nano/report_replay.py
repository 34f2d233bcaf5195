"""What bounded replay costs in quality: ``python -m tools.train_nano.report_replay``.

Documents of the test stream, cut into a prompt and its true continuation, in the engine with bounded replay and
without: how far the distributions of next tokens are apart after the prompt and while the continuation is forced.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tandem.checkpoint.shipped import shipped_model
from tools.train_nano.dataset import DEFAULT_DIR, load_dataset
from tools.train_nano.engine_path import LONGEST, EngineScorer
from tools.train_nano.evaluate import documents
from tools.train_nano.plots import replay_plot
from tools.train_nano.reports import REPORTS, Report, table, write_report

Tensor = torch.Tensor
LENGTHS = (64, 128, 256, 512, 1024, 2048)
KEEPS = (44, 64, 128)  # the least with five drafts, twice the window, and enough to be exact
CONTINUATION = 64
DOCUMENTS = 16


class Divergence:
    """Means over positions of how far a distribution is from the one that it should be."""

    def __init__(self) -> None:
        self.kl: list[Tensor] = []
        self.same: list[Tensor] = []
        self.lost: list[Tensor] = []

    def add(self, wanted: Tensor, found: Tensor, targets: Tensor) -> None:
        """Logits f32 [N, V] each, and the tokens int64 [N] that did follow."""
        want, got = (torch.log_softmax(logits.double(), dim=-1) for logits in (wanted, found))
        self.kl.append((want.exp() * (want - got)).sum(-1))
        self.same.append(want.argmax(-1) == got.argmax(-1))
        self.lost.append((want - got).gather(-1, targets.unsqueeze(-1)).squeeze(-1))

    def report(self) -> dict[str, float]:
        """kl in nats and its maximum, share of equal likeliest tokens, nats more for the true token."""
        kl = torch.cat(self.kl)
        return {
            "tokens": len(kl),
            "kl": float(kl.mean()),
            "kl_max": float(kl.max()),
            "top1": float(torch.cat(self.same).double().mean()),
            "nats": float(torch.cat(self.lost).mean()),
        }


def measure_replay(
    model: Path, texts: Sequence[Tensor], lengths: Sequence[int], keeps: Sequence[int], continuation: int, most: int
) -> dict[str, Any]:
    """The whole report.

    Args:
        texts: int64 [n] each; a length uses those with room for its continuation, at most ``most``.
    """
    long_enough = {n: [text for text in texts if len(text) >= n + continuation][:most] for n in lengths}
    plain = EngineScorer(model)
    wanted = {id(text): plain.logits(text[: LONGEST - 1].tolist()) for text in _all(long_enough, "without replay")}
    plain.close()
    rows = []
    for keep in keeps:
        scorer = EngineScorer(model, more={"model.swa_replay": "compact", "model.swa_keep": keep})
        for length in tqdm([n for n in lengths if long_enough[n]], desc=f"keep {keep}", disable=None):
            first, rest = Divergence(), Divergence()
            for text in long_enough[length]:
                end = length + continuation
                found = scorer.continued(text[:end].tolist(), length)
                want, targets = wanted[id(text)], text[length:end]
                first.add(want[length - 1 : length], found[length - 1 : length], targets[:1])
                rest.add(want[length : end - 1], found[length : end - 1], targets[1:])
            rows.append({"length": length, "keep": keep, "first": first.report(), "rest": rest.report()})
        scorer.close()
    return {"continuation": continuation, "rows": rows}


def _all(groups: dict[int, list[Tensor]], what: str) -> list[Tensor]:
    distinct = {id(text): text for group in groups.values() for text in group}
    return list(tqdm(distinct.values(), desc=what, disable=None))


def readable(report: Report) -> str:
    """The report as a table."""
    heads = ("prompt", "keep", "texts", "KL first", "top-1 first", "KL rest", "top-1 rest", "nats/token rest")
    rows = [
        (
            str(row["length"]), row["keep"], row["first"]["tokens"], row["first"]["kl"], row["first"]["top1"],
            row["rest"]["kl"], row["rest"]["top1"], row["rest"]["nats"],
        )
        for row in report["rows"]
    ]  # fmt: skip
    share, small = "{:.2%}", "{:.2e}"
    formats = {"KL first": small, "KL rest": small, "top-1 first": share, "top-1 rest": share}
    return f"continuations of {report['continuation']} tokens\n\n" + table(heads, rows, formats)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="What bounded replay costs the small model.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="of tools.train_nano.dataset")
    parser.add_argument("--model", type=Path, help="default: the small model that comes with Tandem")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--keeps", type=int, nargs="+", default=list(KEEPS))
    parser.add_argument("--documents", type=int, default=DOCUMENTS, help="most texts of a length (%(default)s)")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="where the report goes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    texts = documents(load_dataset(arguments.data).test)
    report = measure_replay(
        arguments.model or shipped_model(), texts, arguments.lengths, arguments.keeps, CONTINUATION, arguments.documents
    )
    write_report("replay", report, arguments.reports, replay_plot)
    print(json.dumps(report) if arguments.json else readable(report))


if __name__ == "__main__":
    main()
