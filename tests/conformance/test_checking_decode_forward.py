"""A decode step can be captured: nothing in it reads the device, and replaying it equals running it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checking import CaptureViolation, CheckingBackend, Recording, watch
from support.tiny import TinyModel, memory

from tandem.contract.types import Rows

Tensor = torch.Tensor
X = torch.ones(3, 4)
PROMPTS = [(0, 0, 7), (1, 0, 30), (3, 0, 16)]


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: Path) -> TinyModel:
    return TinyModel(CheckingBackend(), tiny_checkpoint)


@pytest.fixture
def decoder(tiny: TinyModel) -> Decoder:
    return Decoder(tiny)


class Decoder:
    """A closed decode loop over four rows on fixed buffers: inputs, forward, logits, draw, commit."""

    def __init__(self, tiny: TinyModel) -> None:
        self.tiny, bind, put = tiny, tiny.plan.bind, tiny.backend.from_host
        tiny.poison(0xFF)
        prompt = tiny.logits(PROMPTS)
        self.inputs, self.sample, self.commit = (bind(op, "step") for op in ("aux.step_inputs", "sample", "aux.commit"))
        self.slot = put(np.array([0, 1, -1, 3], dtype=np.int32))
        self.host = put(np.zeros(4, dtype=np.int32))
        self.from_device = put(np.ones(4, dtype=np.int32))
        self.starts, self.ends = (put(np.arange(i, 4 + i, dtype=np.int32)) for i in (0, 1))
        first = prompt.argmax(-1)[[6, 36, 52]].tolist()
        self.last_token = put(np.array([first[0], first[1], -1, first[2], -1], dtype=np.int32))
        self.length = put(np.array([7, 30, 0, 16, 0], dtype=np.int32))
        self.limit = put(np.array([128, 32, 0, 128, 0], dtype=np.int32))
        self.temperature, self.top_p = put(np.full(4, 0.8, np.float32)), put(np.full(4, 0.9, np.float32))
        self.top_k, self.seed = put(np.full(4, 50, np.int32)), put(np.arange(4, dtype=np.int64))
        self.position = put(np.array([8, 31, 0, 17], dtype=np.int64))

    def run(self) -> tuple[Tensor, Tensor]:
        """One step: logits [4, V] and tokens [4].  The second request reaches its limit after two steps."""
        ids, positions, slot = self.inputs(
            self.host, self.host, self.from_device, self.slot, self.last_token, self.length, self.limit
        )
        rows = Rows(ids, positions, slot, self.starts, self.ends, self.host)
        hidden = self.tiny.model.forward(self.tiny.step(rows, "decode"))
        logits = self.tiny.model.logits(hidden, self.starts)
        token, _, _ = self.sample(
            logits, self.temperature, self.top_p, self.top_k, self.seed, self.position, True
        )
        self.commit(token, slot, positions, self.last_token, self.length)
        return logits, token

    def memory(self) -> list[Tensor]:
        return [*memory(self.tiny.model.caches), self.last_token, self.length]

    def snapshot(self) -> list[Tensor]:
        return [tensor.clone() for tensor in self.memory()]

    def restore(self, saved: list[Tensor]) -> None:
        for tensor, old in zip(self.memory(), saved, strict=True):
            tensor.copy_(old)

    def advance(self, replay: Callable[[], object], logits: Tensor, token: Tensor, steps: int) -> list[list[Tensor]]:
        """Logits, tokens and all memory after each of some replays."""
        seen = []
        with torch.no_grad():
            for _ in range(steps):
                self.position += 1
                replay()
                seen.append([logits.clone(), token.clone(), *self.snapshot()])
        return seen


@pytest.mark.parametrize("replay", [Recording.replay_ops, Recording.replay_operators], ids=("ops", "operators"))
def test_replaying_a_recorded_decode_step_equals_running_it(
    decoder: Decoder, replay: Callable[[Recording], None]
) -> None:
    with watch(decoder.tiny.backend) as recording:
        logits, token = decoder.run()
    assert torch.isfinite(logits[[0, 1, 3]]).all()
    start, position = decoder.snapshot(), decoder.position.clone()
    replayed = decoder.advance(lambda: replay(recording), logits, token, 4)
    decoder.restore(start)
    decoder.position.copy_(position)
    fresh_logits, fresh_token = torch.empty_like(logits), torch.empty_like(token)

    def run() -> None:
        new_logits, new_token = decoder.run()
        fresh_logits.copy_(new_logits)
        fresh_token.copy_(new_token)

    expected = decoder.advance(run, fresh_logits, fresh_token, 4)
    assert len({tuple(step[1].tolist()) for step in expected}) > 1, "every step drew the same"
    for i, (have, want) in enumerate(zip(replayed, expected, strict=True)):
        live = [0, 1, 3] if i < 1 else [0, 3]  # the second request stopped at its limit
        assert torch.equal(have[0][live], want[0][live]), f"logits of step {i}"
        assert torch.equal(have[1][live], want[1][live]), f"tokens of step {i}"
        for a, b in zip(have[2:], want[2:], strict=True):
            assert torch.equal(a[:-1].view(torch.uint8), b[:-1].view(torch.uint8)), f"memory after step {i}"
    assert int(decoder.length[1]) == 32 and int(decoder.length[0]) == 12


def test_prefill_is_checked_too(tiny: TinyModel) -> None:
    """A mixed step of prefill chunks, a decode row and padding runs under the same rules."""
    rows = tiny.rows([(0, 0, 9), (-1, 0, 2), (2, 0, 1)])
    step = tiny.step(rows, "prefill")
    index = tiny.backend.from_host(np.array([8, -1, 11], dtype=np.int32))
    with watch(tiny.backend) as recording:
        logits = tiny.model.logits(tiny.model.forward(step), index)
    assert logits.shape[0] == 3 and len(recording.ops) > 50


def test_only_the_watched_part_is_checked(tiny: TinyModel) -> None:
    assert tiny.logits([(2, 0, 1)]).sum().item() != 0


def _item(x: Tensor) -> Tensor:
    return x * float(x.view(-1)[0].item())


def _tolist(x: Tensor) -> Tensor:
    return x + len(x.tolist())


def _numpy(x: Tensor) -> Tensor:
    return x + float(x.float().numpy()[0, 0])


def _branch(x: Tensor) -> Tensor:
    return x if x.view(-1)[0] > 0 else -x


def _mask(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0]


def _nonzero(x: Tensor) -> Tensor:
    return x.index_select(0, torch.nonzero(x[:, 0]).view(-1))


def _host_data(x: Tensor) -> Tensor:
    return x * torch.tensor([2.0])


def _from_numpy(x: Tensor) -> Tensor:
    return x * torch.from_numpy(np.ones(1, dtype=np.float32))


def _list_index(x: Tensor) -> Tensor:
    return x[[0, 0]]


def _repeat(x: Tensor) -> Tensor:
    return torch.repeat_interleave(x, torch.ones_like(x[:, 0], dtype=torch.int64), dim=0)


def _twice(x: Tensor) -> Tensor:
    place = torch.ones_like(x[:, 0], dtype=torch.int64)
    return x.clone().index_put_((place,), x)


PLANTED = {
    _twice: "two writes to one place",
    _item: "host read",
    _tolist: "host read",
    _numpy: "host read",
    _branch: "host read",
    _mask: "shape depends on data",
    _nonzero: "shape depends on data",
    _host_data: "host data",
    _from_numpy: "host data",
    _list_index: "host data",
    _repeat: "shape depends on data",
}


@pytest.mark.parametrize(("planted", "message"), PLANTED.items(), ids=[f.__name__[1:] for f in PLANTED])
def test_a_planted_violation_inside_an_op_is_caught(
    planted: Callable[[Tensor], Tensor], message: str
) -> None:
    backend = CheckingBackend()
    function = backend.wrap_op("hc_mean", planted)
    with pytest.raises(CaptureViolation, match=f"{message}.*op hc_mean"), watch(backend):
        function(X)


def test_a_torch_operator_in_model_code_is_caught(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original = tiny.model._embed
    monkeypatch.setattr(tiny.model, "_embed", lambda *args: original(*args) * 1.0)
    step = tiny.step(tiny.rows([(0, 0, 1)]), "decode")
    with pytest.raises(CaptureViolation, match="aten::mul outside a bound op"), watch(tiny.backend):
        tiny.model.forward(step)


def test_a_host_read_in_model_code_is_caught(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original = tiny.model._embed
    monkeypatch.setattr(tiny.model, "_embed", lambda ids, *args: original(ids, *args) if int(ids[0]) else None)
    step = tiny.step(tiny.rows([(0, 0, 1)]), "decode")
    with pytest.raises(CaptureViolation, match="host read by aten::_local_scalar_dense in model code"):
        with watch(tiny.backend):
            tiny.model.forward(step)


def test_views_in_model_code_are_allowed() -> None:
    backend = CheckingBackend()
    with watch(backend) as recording:
        backend.wrap_op("hc_mean", lambda x: x * 1)(X)[1:].view(-1).unsqueeze(0)
    assert [call.name for call in recording.operators] == ["aten::mul"]


def test_fresh_memory_is_poisoned() -> None:
    backend = CheckingBackend()
    with watch(backend):
        fresh = backend.wrap_op("hc_mean", lambda x: torch.empty_like(x))(X)
    assert torch.isnan(fresh).all()


def test_a_stale_host_value_shows_in_replay() -> None:
    """What the rules might miss, a value that the host kept, the replay of operators finds."""
    backend, kept = CheckingBackend(), {"scale": 2.0}
    function = backend.wrap_op("hc_mean", lambda x: x * kept["scale"])
    x = torch.ones(2)
    with watch(backend) as recording:
        y = function(x)
    kept["scale"] = 3.0
    recording.replay_operators()
    assert y.tolist() == [2.0, 2.0]
    recording.replay_ops()
    assert y.tolist() == [3.0, 3.0]
