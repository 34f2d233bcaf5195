"""The request table and the portable request state."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest

from tandem.cache.pool import AccountingError
from tandem.contract.opspec import CONTRACT_VERSION
from tandem.engine.draw_rules import DrawRules
from tandem.engine.request_state import CONTRACT, RequestState, Sampling
from tandem.engine.requests import RequestExtras, RequestTable, Status
from tandem.errors import CapacityError, RequestError, VersionError
from tandem.structured import StructuredSpec

DIGEST = bytes(range(32))


RULES = DrawRules(1.5, -0.5, 0.25, ("bad", "wörd"), (7, -1, 8), 3, 2.5, StructuredSpec("choice", ("ä", "b"), (3,), 4))


def append(table: RequestTable, slot: int, token: int) -> None:
    table.append(np.array([slot], np.int32), np.array([[token]], np.int32), np.array([1], np.int32))


def full_state() -> RequestState:
    return RequestState(
        tokens=np.array([5, 6, 7, 8], dtype=np.int32),
        prompt_len=3,
        num_computed=4,
        rng_position=4,
        sampling=Sampling(
            max_tokens=9, min_tokens=2, seed=2**64 - 1, temperature=0.5, top_p=0.75, top_k=11, min_p=0.25,
            priority=-3,
        ),
        rules=RULES,
        roles=np.array([0, 1, 2, 0], dtype=np.uint8),
        media_digest=DIGEST,
        stop_strings=("\n\n", "Ende — 完"),
        stop_token_ids=(1, 2),
        logprobs=5,
        embed_rows=np.arange(8, dtype=np.float32).reshape(2, 4),
        embed_positions=np.array([1, 2], dtype=np.int32),
        device={
            "main.2": np.arange(12, dtype=np.uint8).reshape(2, 6),
            "index.2": np.zeros((0, 6), dtype=np.uint8),
            "window.0": np.full((1, 3), 255, dtype=np.uint8),
            "compressor.2": np.full((2, 2), -0.5, dtype=np.float32),
            "ngram": np.array([[-1, 5, 6]], dtype=np.int32),
            "draft": np.array([3], dtype=np.int64),
        },
        window_start=2,
    )


def seal(header: dict, payload: bytes) -> bytes:
    """State bytes with any header, laid out by the documented form."""
    text = json.dumps(header).encode()
    return b"TNDMREQ\n" + struct.pack("<II", len(text), zlib.crc32(text + payload)) + text + payload


def parts(data: bytes) -> tuple[dict, bytes]:
    (size,) = struct.unpack_from("<I", data, 8)
    return json.loads(data[16 : 16 + size]), data[16 + size :]


def test_a_slot_holds_what_was_given():
    table = RequestTable(max_slots=2, max_len=10)
    sampling = Sampling(
        max_tokens=4, min_tokens=1, seed=2**64 - 1, temperature=0.25, top_p=0.5, top_k=7, ignore_eos=True
    )
    slot = table.create([3, 1, 4], sampling)
    assert slot == 0 and table.status[0] == Status.NEW and table.num_free == 1
    assert table.prompt(0).tolist() == [3, 1, 4] and table.output(0).size == 0
    assert (table.limit[0], table.num_computed[0], table.num_pending[0]) == (7, 0, 0)
    assert table.seed[0] == -1  # the same 64 bits
    assert table.sampling(0) == sampling
    assert table.extras(0) == RequestExtras() and not table.has_roles[0]
    append(table, 0, 9)
    assert table.output(0).tolist() == [9] and table.num_tokens[0] == 4


def test_slots_are_reused_clean_and_epochs_move():
    table = RequestTable(max_slots=1, max_len=8)
    extras = RequestExtras(stop_strings=("x",))
    table.create([1, 2], Sampling(max_tokens=1), roles=[1, 1], media_digest=DIGEST, extras=extras)
    assert table.roles_array()[0, :3].tolist() == [1, 1, 0] and bytes(table.media_digest[0]) == DIGEST
    with pytest.raises(CapacityError, match="every request slot is in use"):
        table.create([1], Sampling(max_tokens=1))
    table.preemptions[0] = 3
    epoch, arrival = int(table.epoch[0]), int(table.arrival[0])
    table.free(0)
    with pytest.raises(AccountingError, match="freed twice"):
        table.free(0)
    assert table.create([4], Sampling(max_tokens=1)) == 0
    assert table.epoch[0] != epoch and table.arrival[0] == arrival + 1
    assert not table.roles_array()[0].any() and not table.has_roles[0] and table.extras(0) == RequestExtras()
    assert not table.media_digest[0].any() and table.preemptions[0] == 0


@pytest.mark.parametrize(
    ("prompt", "where"),
    [
        ([], "prompt"),
        ([[1]], "prompt"),
        ([1.5], "prompt"),
        ([-1], "prompt"),
        ([2**31], "prompt"),
        ([1] * 8, "max_tokens"),
    ],
)
def test_bad_prompts_are_refused_and_nothing_is_taken(prompt, where):
    table = RequestTable(max_slots=1, max_len=8)
    with pytest.raises(RequestError) as caught:
        table.create(prompt, Sampling(max_tokens=1))
    assert caught.value.where == where and table.num_free == 1


@pytest.mark.parametrize(
    "more",
    [
        {"roles": [1]},
        {"roles": [0, 256]},
        {"roles": [0, -1]},
        {"media_digest": b"short"},
        {"extras": RequestExtras(embed_rows=np.zeros((1, 4), np.float32))},
        {
            "extras": RequestExtras(
                embed_rows=np.zeros((1, 4), np.float32), embed_positions=np.array([2], np.int32)
            )
        },
        {
            "extras": RequestExtras(
                embed_rows=np.zeros((1, 4), np.float64), embed_positions=np.array([1], np.int32)
            )
        },
        {
            "extras": RequestExtras(
                embed_rows=np.zeros((2, 4), np.float32), embed_positions=np.array([1], np.int32)
            )
        },
    ],
)
def test_bad_media_parts_are_refused(more):
    table = RequestTable(max_slots=1, max_len=8)
    with pytest.raises(RequestError):
        table.create([1, 2], Sampling(max_tokens=1), **more)
    assert table.num_free == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1e39},  # infinite as float32
        {"temperature": -0.1},
        {"top_p": 0.0},
        {"top_p": 1e-50},  # zero as float32
        {"top_p": 1.5},
        {"top_p": float("nan")},
        {"max_tokens": 0},
        {"max_tokens": 2**31},
        {"min_tokens": 3},
        {"min_tokens": -1},
        {"top_k": -2},
        {"min_p": 1.01},
        {"min_p": float("nan")},
        {"priority": 2**31},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_bad_sampling_numbers_are_refused_by_name(bad):
    with pytest.raises(RequestError) as caught:
        Sampling(**({"max_tokens": 2} | bad))
    assert caught.value.where == next(iter(bad))


def test_table_of_no_size_is_refused():
    for size in [(0, 8), (1, 1)]:
        with pytest.raises(CapacityError):
            RequestTable(*size)


def test_contract_pair_is_the_contract_of_the_core():
    assert CONTRACT == CONTRACT_VERSION


def test_state_survives_bytes():
    state = full_state()
    again = RequestState.from_bytes(state.to_bytes())
    for name in ("tokens", "roles", "embed_rows", "embed_positions"):
        was, now = getattr(state, name), getattr(again, name)
        assert was.dtype == now.dtype and was.shape == now.shape and (was == now).all()
    assert list(again.device) == list(state.device)
    for name, array in state.device.items():
        assert again.device[name].dtype == array.dtype and again.device[name].shape == array.shape
        assert again.device[name].tobytes() == array.tobytes()
    plain = ("prompt_len", "num_computed", "rng_position", "sampling", "rules", "media_digest", "stop_strings")
    for name in (*plain, "stop_token_ids", "logprobs", "window_start", "version", "contract"):
        assert getattr(again, name) == getattr(state, name)
    assert again.to_bytes() == state.to_bytes()


def test_state_bytes_follow_the_documented_form():
    header, payload = parts(full_state().to_bytes())
    entry = next(item for item in header["arrays"] if item["name"] == "device/main.2")
    assert entry["dtype"] == "|u1" and entry["shape"] == [2, 6] and entry["offset"] % 64 == 0
    assert payload[entry["offset"] : entry["offset"] + 12] == bytes(range(12))
    assert payload[:16] == struct.pack("<4i", 5, 6, 7, 8)


@pytest.mark.parametrize("pair", [(3, [1, 0]), (0, [1, 0]), (True, [1, 0]), (1, [2, 0]), (1, [1, 99]), (1, [1])])
def test_other_versions_are_refused(pair):
    header, payload = parts(full_state().to_bytes())
    header["version"], header["contract"] = pair
    with pytest.raises(VersionError):
        RequestState.from_bytes(seal(header, payload))


def test_states_of_the_first_form_are_read_as_what_they_meant():
    """They have no min_p, priority or rules: nothing of that kind was asked for.  They are written in the new form."""
    header, payload = parts(full_state().to_bytes())
    del header["rules"], header["sampling"]["min_p"], header["sampling"]["priority"]
    state = RequestState.from_bytes(seal(header | {"version": 1, "contract": [1, 0]}, payload))
    assert (state.sampling.min_p, state.sampling.priority, state.rules) == (0.0, 0, DrawRules())
    assert state.sampling.top_k == 11 and state.version == 2
    with pytest.raises(RequestError):
        RequestState.from_bytes(seal(header, payload))  # the new form without its fields


@pytest.mark.parametrize(
    "rules", [{"unknown": 1}, {"frequency_penalty": 3}, {"bad_words": 5}, {"forced_token_ids": [-2]}]
)
def test_rules_of_a_state_are_checked(rules):
    header, payload = parts(full_state().to_bytes())
    with pytest.raises(RequestError):
        RequestState.from_bytes(seal(header | {"rules": header["rules"] | rules}, payload))


def test_every_damaged_byte_and_every_cut_is_noticed():
    data = full_state().to_bytes()
    for i in range(0, len(data), 7):
        with pytest.raises(RequestError):
            RequestState.from_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
    for cut in (0, 5, 12, 16, 100, len(data) - 1):
        with pytest.raises(RequestError):
            RequestState.from_bytes(data[:cut])
    with pytest.raises(RequestError):
        RequestState.from_bytes(data + b"\0")


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_len": 0},
        {"prompt_len": 5},
        {"num_computed": -1},
        {"num_computed": 5},
        {"num_computed": True},
        {"rng_position": 3},
        {"window_start": 5},
        {"media_digest": "zz"},
        {"media_digest": "00"},
        {"sampling": {}},
        {"sampling": None},
        {"arrays": []},
        {"arrays": [{"name": "tokens", "dtype": "|O", "shape": [4], "offset": 0}]},
        {"arrays": [{"name": "tokens", "dtype": "<i4", "shape": [-1], "offset": 0}]},
        {"arrays": [{"name": "tokens", "dtype": "<i4", "shape": [4], "offset": -4}]},
        {"arrays": [{"name": "tokens", "dtype": "<i4", "shape": [10**9], "offset": 0}]},
        {"arrays": [{"name": "tokens", "dtype": "<f4", "shape": [4], "offset": 0}]},
        {"arrays": None},
        {"stop_strings": None},
    ],
)
def test_headers_that_contradict_themselves_are_refused(change):
    header, payload = parts(full_state().to_bytes())
    with pytest.raises(RequestError):
        RequestState.from_bytes(seal(header | change, payload))


def test_sampling_numbers_of_a_state_are_checked():
    header, payload = parts(full_state().to_bytes())
    wrong = ({"top_p": 0.0}, {"min_p": 1.5}, {"priority": 2**31}, {"seed": 1.5}, {"ignore_eos": 1})
    for change in (*wrong, {"temperature": float("nan")}):
        with pytest.raises(RequestError):
            RequestState.from_bytes(seal(header | {"sampling": header["sampling"] | change}, payload))


def test_unknown_device_arrays_and_dtypes_are_refused():
    base = {"tokens": np.array([1, 2], np.int32), "prompt_len": 1, "num_computed": 0, "rng_position": 2}
    with pytest.raises(RequestError, match="secrets"):
        RequestState(**base, sampling=Sampling(max_tokens=3), device={"secrets": np.zeros(1, np.uint8)})
    state = RequestState(**base, sampling=Sampling(max_tokens=3), device={"draft": np.zeros(1, np.complex64)})
    with pytest.raises(RequestError, match="portable"):
        state.to_bytes()


def test_a_request_moves_between_tables():
    source, target = RequestTable(2, 16), RequestTable(3, 16)
    extras = RequestExtras(
        stop_strings=("stop",),
        stop_token_ids=(2,),
        logprobs=3,
        rules=RULES,
        embed_rows=np.ones((1, 4), np.uint16),
        embed_positions=np.array([1], np.int32),
    )
    sampling = Sampling(max_tokens=5, seed=12, temperature=0.7, top_p=0.9, min_p=0.125, priority=-4)
    slot = source.create([4, 5, 6], sampling, roles=[0, 1, 0], media_digest=DIGEST, extras=extras)
    append(source, slot, 7)
    source.num_computed[slot] = 3
    state = RequestState.from_bytes(source.export_state(slot).to_bytes())
    assert state.rng_position == 4 and state.num_computed == 3
    target.create([1], Sampling(max_tokens=1))
    new = target.import_state(state)
    assert new == 1 and target.status[new] == Status.NEW
    assert target.prompt(new).tolist() == [4, 5, 6] and target.output(new).tolist() == [7]
    assert target.sampling(new) == source.sampling(slot)
    assert (
        target.roles_array()[new, :4].tolist() == [0, 1, 0, 0] and bytes(target.media_digest[new]) == DIGEST
    )
    assert target.num_computed[new] == 0 and target.limit[new] == 8
    moved = target.extras(new)
    assert (moved.stop_strings, moved.stop_token_ids, moved.logprobs) == (("stop",), (2,), 3)
    assert moved.rules == RULES and target.priority[new] == -4 and target.min_p[new] == 0.125
    assert moved.embed_rows.tolist() == [[1, 1, 1, 1]] and moved.embed_positions.tolist() == [1]
    assert target.export_state(new).tokens.tolist() == [4, 5, 6, 7]


def test_export_and_import_refuse_what_cannot_go_on():
    table = RequestTable(2, 16)
    with pytest.raises(AccountingError):
        table.export_state(0)
    slot = table.create([1, 2], Sampling(max_tokens=1))
    table.num_pending[slot] = 1
    with pytest.raises(AccountingError, match="being drawn"):
        table.export_state(slot)
    table.num_pending[slot] = 0
    append(table, slot, 7)
    done = table.export_state(slot)
    with pytest.raises(RequestError, match="already has max_tokens"):
        table.import_state(done)
    assert table.num_free == 1
