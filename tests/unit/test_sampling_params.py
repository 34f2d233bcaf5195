"""Sampling parameters: what is refused, and how it is said."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tandem.errors import RequestError
from tandem.sampling.params import SamplingParams
from tandem.structured import StructuredSpec

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temperature", value) for value in (NAN, INF, -0.1, -INF, True, "1", None, 1e39, 10**400)],
        *[("top_p", value) for value in (0, 0.0, -0.5, 1.0001, 2, NAN, INF, True, "0.9", None, 1e-60)],
        *[("top_k", value) for value in (0, -2, 2**31, 1.0, True, None, NAN)],
        *[("max_tokens", value) for value in (0, -1, 2**31, 10**30, 16.0, True, None, "16")],
        *[("min_tokens", value) for value in (-1, 257, 1.0, False, None)],
        *[("seed", value) for value in (-1, 2**64, 1.5, True, "7")],
        *[("logprobs", value) for value in (-1, 1001, 1.0, True)],
        *[("min_p", value) for value in (-0.1, 1.01, NAN, INF, True, "0.1", None)],
        *[("repetition_penalty", value) for value in (0, -1.0, NAN, INF, 1e-60, 1e39, True, "1", None)],
        *[(f"{kind}_penalty", value) for kind in ("presence", "frequency") for value in (-2.1, 2.5, NAN, True, None)],
        *[("n", value) for value in (0, 65, 1.0, True, None)],
        *[("prompt_logprobs", value) for value in (-1, 1001, 1.0, True)],
        *[("priority", value) for value in (2**31, -(2**31) - 1, 1.0, True, None)],
        *[("deadline_s", value) for value in (0, -1.0, NAN, INF, True, "5")],
        *[("structured", value) for value in ("json", 5, ["regex", "a"], True)],
        *[("bad_words", value) for value in ("", ("a", ""), (1,), 5, None)],
        *[("forced_token_ids", value) for value in ((-2,), (2**31,), (1.0,), (True,), "12", 7, None)],
        *[("ignore_eos", value) for value in (1, 0, None, "yes")],
        *[("processed_logprobs", value) for value in (1, None)],
        *[("stop", value) for value in ("", ("a", ""), (1,), 5, None, {"a": 1}, b"a")],
        *[("stop_token_ids", value) for value in ((-1,), (2**31,), (1.0,), (True,), "12", 7, None)],
        *[("logit_bias", value) for value in ([1], None, {-1: 1.0}, {"5": 1.0}, {True: 1.0}, {2**31: 0.0})],
    ],
)
def test_bad_values_are_refused_by_name_and_value(name, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.where == f"SamplingParams.{name}"
    assert caught.value.why.startswith("it is ") and caught.value.fix.startswith("give ")
    if isinstance(value, (int, float)) and abs(value) < 1e40:
        assert repr(value) in caught.value.why


@pytest.mark.parametrize("value", [NAN, INF, "1", None, True, 1e39, -1e39])
def test_bad_bias_values_name_the_token(value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(logit_bias={3: 1.0, 17: value})
    assert caught.value.where == "SamplingParams.logit_bias[17]" and repr(value) in caught.value.why


def test_huge_integers_are_named_by_size():
    with pytest.raises(RequestError, match="an integer of 33220 bits"):
        SamplingParams(max_tokens=10**10000)


def test_limits_are_allowed():
    params = SamplingParams(
        temperature=0,
        top_p=1,
        top_k=2**31 - 1,
        max_tokens=2**31 - 1,
        min_tokens=2**31 - 1,
        seed=2**64 - 1,
        logprobs=1000,
        logit_bias={0: -INF, 2**31 - 1: 100},
        stop_token_ids=[0, 2**31 - 1],
        forced_token_ids=[-1, 2**31 - 1],
        min_p=1,
        presence_penalty=-2,
        frequency_penalty=2,
        n=64,
        priority=-(2**31),
    )
    assert params.is_greedy and params.stop_token_ids == (0, 2**31 - 1)
    assert params.logit_bias[0] == -math.inf and params.forced_token_ids == (-1, 2**31 - 1)


def test_defaults_draw_from_the_whole_distribution():
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, -1)
    assert not params.is_greedy and not params.is_filtered


def test_filter_hint():
    assert SamplingParams(top_p=0.9).is_filtered and SamplingParams(top_k=1).is_filtered
    assert SamplingParams(min_p=0.1).is_filtered and not SamplingParams(min_p=1e-50).is_filtered  # 0 in float32
    assert not SamplingParams(temperature=0, top_p=0.9, top_k=3).is_filtered
    assert not SamplingParams(top_p=1 - 2**-40).is_filtered  # 1.0 in float32


def test_stop_strings_become_a_tuple():
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(bad_words="no").bad_words == ("no",)  # type: ignore[arg-type]


def test_parameters_are_frozen_hashable_and_do_not_share_the_bias():
    bias = {5: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[6] = 2.0
    assert params.logit_bias == {5: 1.0}
    assert params == SamplingParams(logit_bias={5: 1.0})
    assert hash(params) == hash(dataclasses.replace(params))
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3  # type: ignore[misc]


def test_from_dict_reads_json_forms():
    params = SamplingParams.from_dict(
        {"temperature": 0.5, "stop": ["x", "y"], "logit_bias": {"12": -1.5, "0": 2}, "stop_token_ids": [4]}
    )
    assert params == SamplingParams(temperature=0.5, stop=("x", "y"), logit_bias={12: -1.5, 0: 2}, stop_token_ids=(4,))
    assert SamplingParams.from_dict(dataclasses.asdict(params)) == params


@pytest.mark.parametrize("key", ["x", "-1", "1.0", "", "9" * 5000, "\u0665"])
def test_from_dict_refuses_keys_that_are_no_token_ids(key):
    with pytest.raises(RequestError) as caught:
        SamplingParams.from_dict({"logit_bias": {key: 1.0}})
    assert caught.value.where == "SamplingParams.logit_bias"


def test_from_dict_refuses_unknown_names_with_the_closest():
    with pytest.raises(RequestError) as caught:
        SamplingParams.from_dict({"temprature": 0.5})
    assert caught.value.where == "SamplingParams.temprature" and "'temperature'" in caught.value.fix


@pytest.mark.parametrize("name", ["stop_token_ids", "forced_token_ids", "logit_bias"])
def test_token_ids_are_checked_against_the_vocabulary(name):
    params = SamplingParams(**{name: {511: 1.0} if name == "logit_bias" else (511,)})
    params.check_vocabulary(512)
    with pytest.raises(RequestError, match=f"SamplingParams.{name}.*511.*511"):
        params.check_vocabulary(511)


def test_a_form_of_output_is_taken_as_an_object_too() -> None:
    raw = {"structured": {"kind": "regex", "schema": "a+", "trigger_token_ids": [9]}}
    params = SamplingParams.from_dict(raw)
    assert params.structured == StructuredSpec("regex", "a+", (9,))
    with pytest.raises(RequestError, match="trigger_token_ids"):
        params.check_vocabulary(9)
    with pytest.raises(RequestError, match="did you mean 'schema'"):
        SamplingParams.from_dict({"structured": {"kind": "regex", "schem": "a+"}})
