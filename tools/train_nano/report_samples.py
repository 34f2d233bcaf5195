"""What the model says: texts and conversations from the engine, ``python -m tools.train_nano.report_samples``."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem import LLM, SamplingParams
from tandem.engine.outputs import RequestOutput
from tandem.tokenizer.chat import render_chat
from tools.train_nano.dataset import DEFAULT_DIR
from tools.train_nano.reports import MODEL, REPORTS, Report, write_report

TEMPERATURE = 0.7
PROMPTS = (
    "In the beginning",
    "Blessed is the man who",
    "The word of Yahweh came to me, saying,",
    "Jesus answered them,",
    "The king of Israel said to his servants,",
    "Therefore, brothers,",
)
_TEXT_TOKENS = 96
_TURN_TOKENS = 96
_CHATS = 60
_SHOWN = 4


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` items, evenly spread."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def holds(answer: str, word: str) -> bool:
    """Whether a text holds a word by itself, in any case."""
    return re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) is not None


def judge(asked: Sequence[dict[str, str]], answers: Sequence[RequestOutput]) -> dict[str, Any]:
    """Shares of turns that ended by themselves and of topic answers with their word.

    ``topic_word_elsewhere`` is the same for answers to the topic asked next: what chance would give.
    """
    topics = [(a["expected"], o.text) for a, o in zip(asked, answers, strict=True) if a["kind"] == "topic"]
    words, texts = [word for word, _ in topics], [text for _, text in topics]
    return {
        "chats_asked": len(asked),
        "ended": sum(o.finish_reason == "stop" for o in answers) / len(answers),
        "mean_tokens": sum(len(o.token_ids) for o in answers) / len(answers),
        "topics": len(topics),
        "topic_word": _share(words, texts),
        "topic_word_elsewhere": _share(words, texts[1:] + texts[:1]),
    }


def _share(words: Sequence[str], texts: Sequence[str]) -> float | None:
    if not words:
        return None
    return sum(holds(text, word) for word, text in zip(words, texts, strict=True)) / len(words)


def measure_samples(data: Path, model: Path, backend: str = "cpu") -> dict[str, Any]:
    """The whole report; seeds are the places in the lists."""
    held_out: list[dict[str, str]] = json.loads((data / "heldout.json").read_text(encoding="utf-8"))
    asked = evenly(held_out, _CHATS)
    llm = LLM(model, backend=backend)
    try:
        texts = llm.generate(list(PROMPTS), [_params(seed, _TEXT_TOKENS) for seed in range(len(PROMPTS))])
        turns = [render_chat([{"role": "user", "content": a["prompt"]}], llm.tokenizer) for a in asked]
        answers = llm.generate(turns, [_params(seed, _TURN_TOKENS) for seed in range(len(turns))])
    finally:
        llm.close()
    for output in (*texts, *answers):
        if output.error is not None:
            raise SystemExit(f"the model could not answer: {output.error}")
    return {
        "temperature": TEMPERATURE,
        "turn_tokens": _TURN_TOKENS,
        "texts": [{"prompt": p, "text": o.text} for p, o in zip(PROMPTS, texts, strict=True)],
        "chats": [
            {"prompt": a["prompt"], "expected": a["expected"], "kind": a["kind"], "answer": o.text}
            for a, o in evenly(list(zip(asked, answers, strict=True)), _SHOWN)
        ],
        **judge(asked, answers),
    }


def _params(seed: int, tokens: int) -> SamplingParams:
    return SamplingParams(temperature=TEMPERATURE, max_tokens=tokens, seed=seed)


def readable(report: Report) -> str:
    """The report as text."""
    blocks = [f"[{t['prompt']}]{t['text']}" for t in report["texts"]]
    blocks += [f"> {c['prompt']}\n{c['answer']}" for c in report["chats"]]
    word, chance = (report[k] for k in ("topic_word", "topic_word_elsewhere"))
    blocks.append(
        f"{report['chats_asked']} chats: {report['ended']:.1%} ended within {report['turn_tokens']} tokens"
        + ("" if word is None else f"; {word:.1%} of {report['topics']} hold the topic ({chance:.1%} by chance)")
    )
    return "\n\n".join(blocks)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Texts and conversations of the small model.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="of tools.train_nano.dataset")
    parser.add_argument("--model", type=Path, default=MODEL, help="checkpoint directory (%(default)s)")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="where the report goes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    report = measure_samples(arguments.data, arguments.model)
    write_report("samples", report, arguments.reports, None)
    print(json.dumps(report) if arguments.json else readable(report))


if __name__ == "__main__":
    main()
