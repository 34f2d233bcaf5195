"""The option tree: where values come from, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tandem.config import (
    CacheOptions,
    EngineConfig,
    ModelOptions,
    SchedulerOptions,
    load_config,
    parse_option,
)
from tandem.errors import ConfigError


def write(tmp_path, text: str, name: str = "engine.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_are_usable_alone():
    config = load_config(env={})
    assert config == EngineConfig()
    assert (config.cache.block_size, config.cache.window_block, config.cache.num_blocks) == (128, 32, None)
    assert config.backend.name == "auto" and not config.origins


def test_later_sources_win_and_are_named(tmp_path):
    text = "[scheduler]\nmax_slots = 3\nmax_chunk = 5\nmax_tokens_per_step = 7\n[model]\npath = 'from file'\n"
    file = write(tmp_path, text)
    env = {"TANDEM_SCHEDULER_MAX_CHUNK": "6", "TANDEM_SCHEDULER_MAX_TOKENS_PER_STEP": "8", "HOME": "/"}
    args = {"scheduler.max_tokens_per_step": 9, "model": {"max_model_len": 100}, "model.path": None}
    config = load_config(file, env, args)
    assert config.scheduler == SchedulerOptions(max_slots=3, max_chunk=6, max_tokens_per_step=9)
    assert config.model == ModelOptions(path="from file", max_model_len=100)
    assert config.origins == {
        "scheduler.max_slots": f"file {file}",
        "scheduler.max_chunk": "environment TANDEM_SCHEDULER_MAX_CHUNK",
        "scheduler.max_tokens_per_step": "argument",
        "model.path": f"file {file}",
        "model.max_model_len": "argument",
    }


def test_description_shows_every_option_with_its_origin(tmp_path):
    config = load_config(write(tmp_path, "[cache]\nnum_blocks = 12\n"), {"TANDEM_BACKEND": "cpu"})
    lines = config.describe().splitlines()
    shown = {line.split()[0]: line for line in lines}
    expected = {f"{section}.{name}" for section, fields in config.to_dict().items() for name in fields}
    assert set(shown) == expected and len(lines) == len(expected)
    assert "= 12 " in shown["cache.num_blocks"] and "engine.toml" in shown["cache.num_blocks"]
    assert '= "cpu"' in shown["backend.name"] and "environment TANDEM_BACKEND" in shown["backend.name"]
    assert "= none" in shown["cache.memory_mib"] and "from default" in shown["cache.memory_mib"]


def test_dictionary_reads_back_as_arguments_and_as_json(tmp_path):
    config = EngineConfig(cache=CacheOptions(num_blocks=9), model=ModelOptions(path="x"))
    assert load_config(env={}, args=config.to_dict()) == config
    assert load_config(write(tmp_path, json.dumps(config.to_dict()), "engine.json"), {}) == config


def test_tree_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().cache.block_size = 1


@pytest.mark.parametrize(
    ("text", "name", "device"), [("cpu", "cpu", 0), ("ascend:3", "ascend", 3), ("my-chip:0", "my-chip", 0)]
)
def test_short_backend_variable(text, name, device, tmp_path):
    file = write(tmp_path, "[backend]\nname = 'other'\ndevice = 5\n")
    backend = load_config(file, {"TANDEM_BACKEND": text}).backend
    assert (backend.name, backend.device) == (name, device)


def test_an_index_does_not_outlive_the_backend_it_was_given_for():
    config = load_config(None, {"TANDEM_BACKEND": "ascend:3"}, {"backend.name": "cpu"})
    assert (config.backend.name, config.backend.device) == ("cpu", 0)
    assert "backend.device" not in config.origins
    config = load_config(None, {"TANDEM_BACKEND": "ascend:3"}, {"backend.device": 1})
    assert (config.backend.name, config.backend.device) == ("ascend", 1)


@pytest.mark.parametrize("text", [":1", "cpu:", "cpu:x", "cpu:-1", "cpu:1:2"])
def test_bad_short_backend_variable(text):
    with pytest.raises(ConfigError, match="name or name:index"):
        load_config(None, {"TANDEM_BACKEND": text})


def test_short_and_long_backend_variables_do_not_mix():
    with pytest.raises(ConfigError, match="only without TANDEM_BACKEND_NAME"):
        load_config(None, {"TANDEM_BACKEND": "cpu", "TANDEM_BACKEND_NAME": "cpu"})


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        ({"scheduler.max_slot": 3}, "did you mean scheduler.max_slots?"),
        ({"shceduler": {"max_slots": 3}}, "did you mean scheduler?"),
        ({"cache": {"blocksize": 3}}, "did you mean cache.block_size?"),
        ({"zzz": {"a": 1}}, "remove it"),
        ({"zzz": 1}, "remove it"),
    ],
)
def test_unknown_keys_come_with_the_nearest_known_one(args, hint, tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(None, {}, args)
    assert hint in caught.value.fix and "argument" in caught.value.where
    if all("." not in key for key in args):
        with pytest.raises(ConfigError) as caught:
            load_config(write(tmp_path, json.dumps(args), "bad.json"), {})
        assert hint in caught.value.fix and "bad.json" in caught.value.where


@pytest.mark.parametrize(
    "name",
    [
        "TANDEM_SHEDULER_MAX_SLOTS",
        "TANDEM_CACHE_BLOCKSIZE",
        "tandem_cache_blocksize",
        "TANDEM_BACKENDS",
        "TANDEM_DEVICE",
        "TANDEM_MODEL",
        "TANDEM_MODEL_DIR",
    ],
)
def test_misspelt_variables_are_noticed(name):
    with pytest.raises(ConfigError, match="did you mean TANDEM_"):
        load_config(None, {name: "3"})


def test_other_variables_are_left_alone():
    env = {"TANDEM_REQUIRE_ACCELERATOR": "1", "TANDEM_PYTHON": "x", "TANDEM_CACHE_BLOKSIZ": "", "PATH": ""}
    assert load_config(None, env) == EngineConfig()


@pytest.mark.parametrize(
    ("section", "field", "value", "allowed"),
    [
        ("scheduler", "max_slots", "3", "an integer"),
        ("scheduler", "max_slots", 3.0, "an integer"),
        ("scheduler", "max_slots", True, "an integer"),
        ("scheduler", "max_slots", 0, "1 or more"),
        ("model", "path", 3, "a string"),
        ("model", "max_model_len", 1, "2 or more"),
        ("backend", "device", -1, "0 or more"),
        ("cache", "num_blocks", [1], "an integer or none"),
    ],
)
def test_wrong_types_and_ranges_are_refused_by_name_and_source(section, field, value, allowed, tmp_path):
    for file, args in (
        (None, {section: {field: value}}),
        (write(tmp_path, json.dumps({section: {field: value}}), "bad.json"), None),
    ):
        with pytest.raises(ConfigError) as caught:
            load_config(file, {}, args)
        assert f"it must be {allowed}" in caught.value.why and f"{section}.{field}" in caught.value.where
        assert ("argument" if file is None else "bad.json") in caught.value.where
    defaults = EngineConfig()
    with pytest.raises(ConfigError):
        wrong = dataclasses.replace(getattr(defaults, section), **{field: value})
        dataclasses.replace(defaults, **{section: wrong})


def test_environment_values_are_parsed_by_type():
    config = load_config(None, {"TANDEM_CACHE_NUM_BLOCKS": "12", "TANDEM_MODEL_PATH": "12"})
    assert config.cache.num_blocks == 12 and config.model.path == "12"
    config = load_config(None, {"TANDEM_CACHE_NUM_BLOCKS": "none"})
    assert config.cache.num_blocks is None
    with pytest.raises(ConfigError, match="TANDEM_CACHE_NUM_BLOCKS.*'twelve'.*an integer"):
        load_config(None, {"TANDEM_CACHE_NUM_BLOCKS": "twelve"})


def test_options_on_a_command_line_are_parsed_by_type():
    assert parse_option("cache.num_blocks", "12") == 12 and parse_option("model.path", "12") == "12"
    assert parse_option("cache.num_blocks", "None") is None
    with pytest.raises(ConfigError, match="did you mean cache.num_blocks"):
        parse_option("cache.numblocks", "12")
    with pytest.raises(ConfigError, match="'x'.*an integer"):
        parse_option("scheduler.max_slots", "x")


@pytest.mark.parametrize(
    ("args", "where", "why"),
    [
        ({"cache.block_size": 33, "cache.window_block": 33}, "cache.block_size", "a multiple of 2"),
        ({"cache.block_size": 64, "cache.window_block": 48}, "cache.block_size", "a multiple of 48"),
        ({"cache.num_blocks": 4, "cache.memory_mib": 5}, "cache.num_blocks", "without cache.memory_mib"),
        (
            {"scheduler.max_tokens_per_step": 63},
            "scheduler.max_tokens_per_step",
            r"at least max_slots \(64\)",
        ),
    ],
)
def test_options_that_contradict_each_other(args, where, why):
    with pytest.raises(ConfigError, match=why) as caught:
        load_config(None, {}, args)
    assert caught.value.where == f"{where}, from argument"


@pytest.mark.parametrize(
    ("name", "text"),
    [("bad.toml", "[cache"), ("bad.json", "{"), ("list.json", "[]"), ("flat.toml", "block_size = 4")],
)
def test_files_that_are_no_option_tree(name, text, tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text, name), {})
    assert name in caught.value.where


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.toml", {})


def test_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("TANDEM_SCHEDULER_MAX_SLOTS", "5")
    assert load_config().scheduler.max_slots == 5
