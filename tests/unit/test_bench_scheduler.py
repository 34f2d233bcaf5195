"""`tandem bench scheduler`: the engine under measurement is the real one, and the figures belong together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tandem.checkpoint.shipped import shipped_model
from tandem.cli.bench_scheduler import ENGINE_PARTS, Steady
from tandem.cli.main import main
from tandem.tokenizer.tokenizer import Tokenizer


def test_steady_requests_decode_and_their_text_is_made() -> None:
    steady = Steady(running=5, drafts=3, prefix=True, steps=12)
    table, live = steady._parts.table, steady._engine._live
    before = table.num_tokens.copy()
    steps = steady.measure(12)
    grown = table.num_tokens - before
    assert grown.min() >= 12 and grown.max() <= 12 * 4 and grown.sum() > 5 * 12  # 1 to 4 tokens a step
    assert len(steps) == 12
    for step in steps:
        assert all(step[part] > 0 for part in (*ENGINE_PARTS, "text"))
        assert sum(step[part] for part in ENGINE_PARTS) == pytest.approx(step["step"])
    steady._engine.step()  # takes up what the last step wrote
    decode = Tokenizer.load(shipped_model()).decode
    for slot, request in live.items():
        written = table.tokens[slot, table.prompt_len[slot] :][: len(request.token_ids)].tolist()
        assert request.token_ids == written and len(written) >= grown[slot]
        assert decode(written).startswith(request.text) and request.text
    cached = steady._parts.prefix
    assert cached is not None and cached.stats().entries >= np.sum(before // 128 > 0)
    steady.close()


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = "bench scheduler --running 1 3 --drafts 0 2 --prefix off --steps 3 --rounds 2".split()
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(row["running"], row["drafts"]) for row in result["rows"]] == [(1, 0), (3, 0), (1, 2), (3, 2)]
    for row in result["rows"]:
        for part in (*ENGINE_PARTS, "step", "wall", "text"):
            figures = row["seconds"][part]
            assert 0 < figures["p10"] <= figures["median"] <= figures["p90"]
    pytest.importorskip("matplotlib")
    assert main([*words, "--plot", str(tmp_path / "cost.png")]) == 0
    assert "us/request" in capsys.readouterr().out
    assert (tmp_path / "cost.png").read_bytes()[:4] == b"\x89PNG"
