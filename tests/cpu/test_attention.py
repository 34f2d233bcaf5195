"""Attention on the CPU: values in float64, and the bits of a row wherever and whatever it is computed with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from support.cpu_sets import SETS, using

from tandem.backends.cpu import native
from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.kernels import _attention, attn_block, quantize, rope, sparse_attn
from tandem.contract.cases import Draw, materialise
from tandem.contract.types import KVCache, QFormat, QTensor
from tandem.errors import TandemError
from tandem.ops.numerics import decode_rows

Tensor = torch.Tensor
ROWS = (1, 2, 3, 15, 16, 17, 64)
PER_ROW = ("q", "cos_sin", "window_slots", "main_slots")
OPS: dict[str, Callable[..., Any]] = {"sparse_attn": sparse_attn.sparse_attn, "attn_block": attn_block.attn_block}


@pytest.fixture(scope="module")
def cpu() -> CpuBackend:
    return CpuBackend(True)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads; what it was comes back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def arguments(
    cpu: CpuBackend,
    rows: int,
    heads: int = 12,
    dim: int = 64,
    window: int = 70,
    main: int = 130,
    formats: tuple[QFormat, QFormat] = (QFormat.MXFP8, QFormat.NVFP4),
) -> dict[str, Any]:
    """About one slot in forty is absent."""
    draw = Draw(heads + dim + rows + main)
    given = {
        "q": draw.bf16(rows, heads, dim),
        "window": draw.cache(formats[0], dim, 64, 2),
        "window_slots": draw.i32(-3, 128, rows, window),
        "main": draw.cache(formats[1], dim, 64, 3) if main else None,
        "main_slots": draw.i32(-5, 192, rows, main) if main else None,
        "sink": draw.f32(heads),
        "scale": dim**-0.5,
        "hint": "decode",
    }
    return materialise(given, cpu, 0xFF)


def with_angles(given: dict[str, Any], turned: int = 16) -> dict[str, Any]:
    return given | {"cos_sin": Draw(7).cos_sin(given["q"].shape[0], turned)}


def taken(given: dict[str, Any], index: Tensor) -> dict[str, Any]:
    """The arguments of some rows."""
    rows = {name: given[name][index] for name in PER_ROW if given.get(name) is not None}
    return given | rows


def bits(result: Tensor | QTensor) -> Tensor:
    """uint8, row by row."""
    if isinstance(result, QTensor):
        return torch.cat((result.data, result.scale), 1)
    return result.contiguous().view(torch.uint8).flatten(1)


def entries(cache: KVCache, slots: Tensor) -> Tensor:
    held, codes = cache.data[slots.clamp_min(0).long()], cache.layout.data_bytes
    values = decode_rows(held[..., :codes].contiguous(), held[..., codes:].contiguous(), cache.layout.fmt)
    return torch.where((slots >= 0).unsqueeze(-1), values, torch.zeros_like(values))


def exact(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The output of sparse_attn, and what its terms add up to without their signs, f64."""
    keys, slots = entries(given["window"], given["window_slots"]), given["window_slots"]
    if given["main"] is not None:
        keys = torch.cat((keys, entries(given["main"], given["main_slots"])), 1)
        slots = torch.cat((slots, given["main_slots"]), 1)
    q, keys, sink = given["q"].double(), keys.double(), given["sink"].double()[:, None]
    scores = torch.einsum("thd,tsd->ths", q, keys) * given["scale"]
    scores = torch.where((slots >= 0)[:, None], scores, float("-inf"))
    peak = torch.maximum(scores.amax(-1, keepdim=True), sink) if scores.shape[-1] else sink
    weights = torch.exp(scores - peak)
    weights /= weights.sum(-1, keepdim=True) + torch.exp(sink - peak)
    return weights @ keys, weights @ keys.abs()


def check_values(given: dict[str, Any], rows: Sequence[int] | None = None) -> None:
    """Weights and outputs are rounded to bf16 once each."""
    wanted, size = exact(given)
    error = (sparse_attn.sparse_attn(**given).double() - wanted).abs()
    chosen = torch.tensor(range(len(error)) if rows is None else rows)
    assert (error <= 2.0**-7 * size + 1e-35)[chosen].all()


MXFP8, MXFP4, NVFP4 = QFormat.MXFP8, QFormat.MXFP4, QFormat.NVFP4


@pytest.mark.parametrize(
    ("heads", "dim", "window", "main", "formats"),
    [
        (64, 512, 128, 512, (MXFP8, NVFP4)),
        (12, 128, 128, 512, (MXFP8, NVFP4)),
        (130, 96, 8, 8, (MXFP8, MXFP8)),
        (33, 48, 5, 0, (NVFP4, NVFP4)),
        (1, 32, 70, 1, (MXFP4, MXFP4)),
        (17, 16, 0, 65, (NVFP4, NVFP4)),
        (3, 160, 200, 64, (MXFP8, MXFP4)),
    ],
)
def test_values(
    cpu: CpuBackend, heads: int, dim: int, window: int, main: int, formats: tuple[QFormat, QFormat]
) -> None:
    check_values(arguments(cpu, 2, heads, dim, window, main, formats))


@pytest.mark.parametrize("main", [*range(0, 1100, 61), 63, 64])
def test_values_of_any_number_of_chunks(cpu: CpuBackend, main: int) -> None:
    check_values(arguments(cpu, 5, 4, 32, 10, main))


def test_a_single_entry_is_what_comes_out(cpu: CpuBackend) -> None:
    """By hand: score 3 against a sink of 1, of which e^3 / (e^3 + e) = 0.8808 is left."""
    given = arguments(cpu, 1, 1, 32, 1, 0)
    window = given["window"]
    window.data[5] = torch.tensor([0x38] * 32 + [127], dtype=torch.uint8)  # ones
    given |= {"q": torch.full((1, 1, 32), 0.5, dtype=torch.bfloat16), "scale": 3 / 16, "sink": torch.ones(1)}
    given["window_slots"] = torch.tensor([[5]], dtype=torch.int32)
    assert sparse_attn.sparse_attn(**given).float().unique().item() == pytest.approx(0.8808, rel=2**-7)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("heads", "dim"), [(12, 64), (64, 128)])
def test_a_rows_bits_depend_on_it_alone(
    cpu: CpuBackend, threads: Callable[[int], None], op: str, heads: int, dim: int
) -> None:
    """Alone and among others, in another order, with one thread and with two."""
    given = arguments(cpu, 64, heads, dim)
    given = with_angles(given) if op == "attn_block" else given
    threads(1)
    whole = bits(OPS[op](**given))
    for count in ROWS:
        index = torch.arange(64).flip(0)[:count] if count != 1 else torch.tensor([17])
        for number in (1, 2):
            threads(number)
            assert torch.equal(bits(OPS[op](**taken(given, index))), whole[index])


def special(cpu: CpuBackend) -> dict[str, Any]:
    """Rows with NaN, infinity, nothing to read, one entry, huge scores; sinks far above and below."""
    given = arguments(cpu, 9, 6, 64, 70, 70)
    q, slots, main_slots = given["q"], given["window_slots"], given["main_slots"]
    q[0, 2, 5], q[1, 1, 9], q[2] = float("nan"), float("inf"), 3e4
    slots[3], main_slots[3] = -1, -1
    slots[4], main_slots[4], main_slots[4, 69] = -7, -1, 3
    given["window"].data[100, 3] = 0x7F
    slots[slots == 100] = 99
    slots[5, 69] = 100
    main_slots[6, 3:] = -1
    q[7], q[8] = 1e-30, -0.0
    given["sink"] = torch.tensor([1.0, -1e4, 60.0, 200.0, float("-inf"), -3.0])
    return given


def test_special_values(cpu: CpuBackend) -> None:
    given = special(cpu)
    got = sparse_attn.sparse_attn(**given)
    assert got[0].isnan().all(1).tolist() == [False, False, True, False, False, False]
    assert got[1].isnan().all(1).tolist() == [False, True, False, False, False, False]
    assert (got[3] == 0).all()
    assert got[5].isnan().all()
    check_values(given, [2, 4, 6, 7, 8])


@pytest.mark.parametrize("op", OPS)
def test_bits_of_other_instruction_sets(cpu: CpuBackend, op: str) -> None:
    for given in (special(cpu), arguments(cpu, 3, 64, 512, 128, 200), arguments(cpu, 2, 20, 96, 3, 5, (MXFP8, MXFP4))):
        given = with_angles(given) if op == "attn_block" else given
        own = bits(OPS[op](**given))
        for name in SETS:
            with using(name):
                assert torch.equal(bits(OPS[op](**given)), own)


@pytest.mark.parametrize(("heads", "dim", "turned"), [(64, 512, 64), (5, 96, 6), (3, 32, 32), (33, 64, 2), (2, 64, 40)])
def test_a_block_gives_the_bytes_of_its_parts(cpu: CpuBackend, heads: int, dim: int, turned: int) -> None:
    given = with_angles(arguments(cpu, 3, heads, dim), turned)
    got = attn_block.attn_block(**given)
    angles = given.pop("cos_sin")
    outputs = sparse_attn.sparse_attn(**(given | {"q": rope.rope(given["q"], angles)}))
    wanted = quantize.quantize(rope.rope(outputs, angles, True).flatten(1), QFormat.MXFP8)
    assert torch.equal(bits(got), bits(wanted))


def test_a_hint_changes_nothing(cpu: CpuBackend) -> None:
    given = arguments(cpu, 3)
    assert torch.equal(sparse_attn.sparse_attn(**given), sparse_attn.sparse_attn(**(given | {"hint": "prefill"})))


def test_no_rows(cpu: CpuBackend) -> None:
    given = taken(with_angles(arguments(cpu, 2)), torch.arange(0))
    assert attn_block.attn_block(**given).shape == (0, 12 * 64)
    given.pop("cos_sin")
    assert sparse_attn.sparse_attn(**given).shape == (0, 12, 64)


@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x7B])
def test_memory_around_outputs_and_in_between(cpu: CpuBackend, fill: int) -> None:
    """Scratch memory may hold anything; around it and around the output nothing is written."""
    given = arguments(cpu, 6)
    wanted = sparse_attn.sparse_attn(**given)
    arrays, sizes = _attention.caches(
        "test", *(given[n] for n in ("q", "window", "window_slots", "main", "main_slots"))
    )
    rows, words = _attention.scratch(given["q"], *sizes[:2]).shape
    scratch = torch.full(((rows + 2) * words,), fill * 0x01010101 - (fill > 127) * 2**32, dtype=torch.int32)
    out = torch.full((8, *wanted.shape[1:]), float("nan"), dtype=torch.bfloat16)
    around = scratch.clone()
    inner = scratch[words:-words].view(rows, words)
    for alike in (0, 1):
        last = (*given["q"].shape, *sizes, rows, words, alike, given["scale"])
        native.run("sparse_attn", given["q"], *arrays, given["sink"], out[1:7], inner, *last)
        assert torch.equal(out[1:7], wanted)
        out[1:7] = float("nan")
    assert out[0].isnan().all() and out[7].isnan().all()
    assert torch.equal(scratch[:words], around[:words]) and torch.equal(scratch[-words:], around[-words:])


@pytest.mark.parametrize("dim", [64, 512, 160])
@pytest.mark.parametrize("name", SETS)
def test_entries_that_were_decoded_for_other_rows(
    cpu: CpuBackend, name: str, dim: int, threads: Callable[[int], None]
) -> None:
    """Rows of a prompt share entries: more than are kept at a time, and others in the next call of either op."""
    given = with_angles(arguments(cpu, 21, dim=dim, window=140, main=200))
    held = given["window"].data
    with using(name):
        for count in (1, 2):
            threads(count)
            for op in (*OPS, *OPS):
                wanted, found = (OPS[op](**_of(op, given | {"hint": hint})) for hint in ("decode", "prefill"))
                assert torch.equal(bits(found), bits(wanted))
                held.copy_(held.flip(0).clone())  # the same slots of the same caches, with other entries


def _of(op: str, given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if op == "attn_block" or name != "cos_sin"}


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(TandemError) as caught:
        call()
    assert all(caught.value.to_dict().values())


def test_bad_arguments_are_refused(cpu: CpuBackend) -> None:
    good = with_angles(arguments(cpu, 2))
    beyond = good["window_slots"].clone()
    beyond[1, 3] = 129  # 128 entries and the one that nobody reads
    other = arguments(cpu, 2, dim=32)
    bad: list[dict[str, Any]] = [
        {"window_slots": beyond},
        {"main_slots": good["main_slots"] + 100},
        {"window_slots": good["window_slots"][:1]},
        {"main_slots": good["main_slots"].long()},
        {"sink": good["sink"][:5]},
        {"cos_sin": good["cos_sin"][:1]},
        {"cos_sin": good["cos_sin"][:, :15].contiguous()},
        {"window": other["window"]},
        {"main": other["main"]},
        {"q": good["q"].float()},
        {"q": good["q"].to("meta")},
    ]
    for changed in bad:
        refused(lambda changed=changed: attn_block.attn_block(**(good | changed)))
    narrow = with_angles(arguments(cpu, 2, dim=48, formats=(NVFP4, NVFP4)))
    refused(lambda: attn_block.attn_block(**narrow))


def test_a_captured_call_gives_the_same_bits(cpu: CpuBackend) -> None:
    """With what arrays hold when it is replayed."""
    for op, given in (("sparse_attn", arguments(cpu, 3)), ("attn_block", with_angles(arguments(cpu, 3)))):
        results: list[Any] = []
        with torch.inference_mode():
            graph = cpu.capture(lambda op=op, given=given, results=results: results.append(OPS[op](**given)))
            given["q"] += 1.0
            given["main_slots"][:, ::3] = -1
            graph.replay()
            assert torch.equal(bits(results[0]), bits(OPS[op](**given)))
