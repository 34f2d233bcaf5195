"""A request is judged when it is given, also while every slot is taken; it never reaches a step of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem import LLM, SamplingParams
from tandem.errors import RequestError

PARAMS = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
ROW = np.zeros((1, 128), dtype=np.float32)
BAD: list[dict[str, Any]] = [
    {"roles": [0, [1], 0]},
    {"roles": [0, 1]},
    {"roles": ["a", 0, 0]},
    {"media_digest": None},
    {"media_digest": "a" * 32},
    {"media_digest": b"short"},
    {"embed_rows": ROW},
    {"embed_rows": ROW.tolist(), "embed_positions": [0]},
    {"embed_rows": ROW, "embed_positions": ["a"]},
    {"embed_rows": ROW, "embed_positions": [2**40]},
    {"embed_rows": ROW, "embed_positions": [2**70]},
    {"embed_rows": ROW, "embed_positions": [0.7]},
    {"embed_rows": ROW, "embed_positions": [3]},
    {"embed_rows": np.zeros((2, 128), dtype=np.float32), "embed_positions": [1, 1]},
]


@pytest.fixture(scope="module")
def one_slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    from tandem.checkpoint.tiny import make_tiny

    path: Path = tmp_path_factory.mktemp("queued") / "tiny"
    make_tiny(path, 0)
    llm = LLM(path, backend="cpu", options={"scheduler.max_slots": 1})
    yield llm
    llm.close()


@pytest.mark.parametrize("queued", [False, True], ids=["free-slot", "queued"])
@pytest.mark.parametrize("extra", BAD, ids=[f"{i}-{list(extra)[-1]}" for i, extra in enumerate(BAD)])
def test_a_bad_request_is_refused_at_once(one_slot: LLM, extra: dict[str, Any], queued: bool) -> None:
    engine = one_slot.engine
    wanted = {engine.add_request([3, 4], PARAMS)} if queued else set()
    with pytest.raises(RequestError):
        engine.add_request([3, 4, 5], PARAMS, **extra)
    finished = set()
    while not engine.idle:
        finished |= {piece.request_id for piece in engine.step() if piece.output is not None}
    assert finished == wanted
