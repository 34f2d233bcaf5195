"""Request traces through the block manager: the hit rate is that of an LRU cache simulated apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.lru import Lru

from tandem.cache.trace import TraceRequest, read_trace, replay
from tandem.cli.main import main
from tandem.errors import ConfigError

SAMPLE = "tests/data/traces/conversation_200.jsonl"


@pytest.fixture(scope="module")
def sample(repo_root: Path) -> list[TraceRequest]:
    return read_trace(repo_root / SAMPLE)


def agree(trace: list[TraceRequest], blocks: int, ends: int | None) -> Lru:
    """Every request takes as much from both; at the end all totals are equal."""
    simulated, before, last = Lru(blocks, ends), 0, None
    for request, last in zip(trace, replay(trace, blocks, ends), strict=True):
        assert last.hit_tokens - before == simulated.serve(request.input_length, request.hash_ids)
        before = last.hit_tokens
    assert last is not None
    assert (last.tokens, last.hit_tokens, last.hits) == (simulated.tokens, simulated.hit_tokens, simulated.hits)
    assert (last.too_long, last.evicted_blocks) == (simulated.too_long, simulated.evicted)
    assert last.hit_rate == simulated.hit_tokens / simulated.tokens
    return simulated


@pytest.mark.parametrize(("blocks", "ends"), [(300, None), (3000, 50)])
def test_hit_rates_on_the_sample(sample: list[TraceRequest], blocks: int, ends: int | None):
    simulated = agree(sample, blocks, ends)
    assert simulated.hits > 100 and simulated.evicted > 0


def test_hit_rates_on_random_trees():
    """Prompts that share stems, in caches so small that everything is given up again and again."""
    rng = np.random.default_rng(2)
    for _ in range(12):
        names: dict[tuple[int, ...], int] = {}
        trace = []
        for _ in range(60):
            path = tuple(int(x) for x in rng.integers(0, 2, int(rng.integers(1, 7))))
            last = int(rng.integers(1, 3)) * 256  # the last block is half or whole
            full = [names.setdefault((*path[: i + 1], 512 if i + 1 < len(path) else last), len(names))
                    for i in range(len(path))]  # fmt: skip
            trace.append(TraceRequest(512 * (len(path) - 1) + last, tuple(full)))
        agree(trace, int(rng.integers(4, 14)), [None, 1, 2, 5][int(rng.integers(4))])


def test_the_best_cache_hits_all_that_repeats(sample: list[TraceRequest]):
    """Without any limit: the blocks of a prompt that an earlier one began with, but for its last token."""
    seen: set[int] = set()
    expected = 0
    for request in sample:
        usable = request.hash_ids[: (request.input_length - 1) // 512]
        expected += 512 * next((i for i, x in enumerate(usable) if x not in seen), len(usable))
        seen.update(request.hash_ids[: request.input_length // 512])
    *_, last = replay(sample, 6000)
    assert last.hit_tokens == expected and last.requests == 200 and last.evicted_blocks == 0


def test_the_command(repo_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small = tmp_path / "small.jsonl"
    small.write_text("".join((repo_root / SAMPLE).read_text().splitlines(keepends=True)[:20]))
    assert main(["bench", "prefix-trace", str(small), "--blocks", "50", "400", "--ends", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["blocks"], row["ends"]) for row in rows] == [(50, 3), (400, 3)]
    for row in rows:
        simulated = Lru(row["blocks"], 3)
        for request in read_trace(small):
            simulated.serve(request.input_length, request.hash_ids)
        assert row["hit_rate"] == simulated.hit_tokens / simulated.tokens > 0
    assert main(["bench", "prefix-trace", str(small), "--blocks", "400"]) == 0
    shown = capsys.readouterr().out
    assert "hit rate" in shown and "all" in shown and f"{rows[1]['tokens']}" in shown


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"input_length": 600}', "KeyError: 'hash_ids'"),
        ('{"input_length": 600, "hash_ids": [1]}', "600 with 1 hash_ids"),
        ('{"input_length": 0, "hash_ids": []}', "0 with 0"),
        ('{"input_length": true, "hash_ids": [1]}', "True"),
        ('{"input_length": 9, "hash_ids": 4}', "with 4 hash_ids"),
        ('{"input_length": 9, "hash_ids": [-1]}', "with 1 hash_ids"),
        ('{"input_length": 9, "hash_ids": [2147483648]}', "with 1 hash_ids"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, why: str):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"input_length": 9, "hash_ids": [1]}\n\n' + line + "\n")
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    assert caught.value.where == f"{path}, line 3" and why in caught.value.why


def test_files_that_are_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    assert main(["bench", "prefix-trace", str(tmp_path / "empty.jsonl")]) == 2
    assert "a request trace is empty" in capsys.readouterr().err
