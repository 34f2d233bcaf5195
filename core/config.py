"""The options of an engine: one typed tree, read from a file, the environment and arguments.

A later source wins: defaults, then the file, then environment variables, then arguments.  A key that names
no option and a value of a wrong type are errors; `EngineConfig.describe` prints each value and its origin.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.contract.environment import BACKEND as BACKEND_VARIABLE
from tandem.contract.environment import look_alikes, not_read
from tandem.contract.registry import parse_selector
from tandem.errors import ConfigError
from tandem.options import (
    BackendOptions,
    CacheOptions,
    ModelOptions,
    SchedulerOptions,
    SpeculationOptions,
)

PREFIX = "TANDEM_"
_NAMES = {int: "an integer", str: "a string"}
_LONGEST_RATIO = 2  # original tokens behind one cache entry; a group never spans two blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All options of an engine.

    Args:
        origins: where each value that is not a default came from, by ``section.field``.

    Raises:
        ConfigError: a value has a wrong type, is out of range, or does not go with another.
    """

    model: ModelOptions = field(default_factory=ModelOptions)
    backend: BackendOptions = field(default_factory=BackendOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for key, option in _OPTIONS.items():
            _check(key, option, _get(self, key), self.origins.get(key, "default"))
        cache, scheduler = self.cache, self.scheduler
        for divisor, what in (
            (_LONGEST_RATIO, "the largest compression ratio"),
            (cache.window_block, "window_block"),
        ):
            if cache.block_size % divisor:
                raise self._refuse(
                    "cache.block_size", f"a multiple of {divisor} ({what}), so that block boundaries coincide"
                )
        if (cache.num_blocks or 0) * cache.block_size >= 1 << 31:
            raise self._refuse("cache.num_blocks", "so that block_size times it is below 2^31, the reach of a slot")
        if cache.num_blocks is not None and cache.memory_mib is not None:
            raise self._refuse(
                "cache.num_blocks", "given only without cache.memory_mib, which would decide it too"
            )
        if cache.prefix == "off" and cache.prefix_mib is not None:
            raise self._refuse("cache.prefix_mib", "given only with cache.prefix on")
        if cache.prefix == "off" and cache.prefix_state != "stored":
            raise self._refuse("cache.prefix_state", "stored while cache.prefix is off, which leaves nothing to replay")
        for key in ("speculation.step_ms", "speculation.token_ms"):
            if _get(self, key) is not None and self.speculation.verify != "scheduled":
                raise self._refuse(key, "given only with speculation.verify scheduled, which is what it bounds")
        if scheduler.max_tokens_per_step < scheduler.max_slots:
            raise self._refuse(
                "scheduler.max_tokens_per_step",
                f"at least max_slots ({scheduler.max_slots}), so that every running request moves in a step",
            )

    def _refuse(self, key: str, allowed: str) -> ConfigError:
        return _bad_value(key, _get(self, key), allowed, self.origins.get(key, "default"))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The values by section and field; `load_config` reads them back as arguments."""
        sections = (f.name for f in dataclasses.fields(self) if f.name != "origins")
        return {name: dataclasses.asdict(getattr(self, name)) for name in sections}

    def describe(self) -> str:
        """One line per option: key, value, where the value came from, meaning."""
        rows = [
            (key, _show(_get(self, key)), self.origins.get(key, "default"), option.text)
            for key, option in _OPTIONS.items()
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join(
            f"{key:{widths[0]}} = {value:{widths[1]}}  from {origin:{widths[2]}}  {text}"
            for key, value, origin, text in rows
        )


@dataclass(frozen=True, slots=True)
class _Option:
    kind: type
    optional: bool
    text: str
    minimum: int | None
    maximum: int
    choices: tuple[str, ...]


def _find_options() -> dict[str, _Option]:
    """Every option by ``section.field``, in order."""
    found: dict[str, _Option] = {}
    sections = typing.get_type_hints(EngineConfig)
    sections.pop("origins")
    for section, cls in sections.items():
        hints = typing.get_type_hints(cls)
        for item in dataclasses.fields(cls):
            hint = hints[item.name]
            optional = isinstance(hint, types.UnionType)
            kind = typing.get_args(hint)[0] if optional else hint
            meta = item.metadata
            found[f"{section}.{item.name}"] = _Option(
                kind, optional, meta["help"], meta["minimum"], meta["maximum"], meta["choices"]
            )
    return found


_OPTIONS = _find_options()


def load_config(
    file: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    args: Mapping[str, Any] | None = None,
) -> EngineConfig:
    """Read the options of an engine.

    Args:
        file: a TOML or JSON file (by its suffix) with a table per section, or None.
        env: environment variables, ``os.environ`` when None.  ``TANDEM_<SECTION>_<FIELD>`` sets one option,
            ``TANDEM_BACKEND=name[:index]`` both of the backend; others are left alone unless they look like a
            misspelt option.
        args: values by ``"section.field"``, or by section and field; a None leaves the option alone.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, a value has a wrong type or does not fit.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    sources = [_from_env(os.environ if env is None else env), _from_args(args or {})]
    if file is not None:
        sources.insert(0, _from_file(Path(file)))
    for source in sources:
        if "backend.name" in source:
            # An index belongs to the backend it was given for.
            values.pop("backend.device", None)
            origins.pop("backend.device", None)
        for key, (value, origin) in source.items():
            values[key], origins[key] = value, origin
    for key, value in values.items():
        # Types are checked here so that a wrong one is reported with its source.
        _check(key, _OPTIONS[key], value, origins[key])
    sections: dict[str, Any] = {}
    for section, cls in typing.get_type_hints(EngineConfig).items():
        if section != "origins":
            own = {key.split(".")[1]: v for key, v in values.items() if key.split(".")[0] == section}
            sections[section] = cls(**own)
    return EngineConfig(**sections, origins=types.MappingProxyType(origins))


def parse_option(key: str, text: str) -> Any:
    """The value of ``section.field`` written as text, as on a command line.

    Raises:
        ConfigError: there is no such option, or the text is of a wrong type.
    """
    if key not in _OPTIONS:
        raise _unknown("option", key, list(_OPTIONS), "argument")
    return _parse(key, _OPTIONS[key], text, "argument")


_Source = dict[str, tuple[Any, str]]


def _from_file(path: Path) -> _Source:
    origin = f"file {path}"
    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            "a configuration file cannot be read",
            where=str(path),
            why=str(error),
            fix="give a TOML file, or a JSON file that ends in .json",
        ) from error
    return {key: (value, origin) for key, value in _flatten(raw, origin).items()}


def _from_args(args: Mapping[str, Any]) -> _Source:
    flat = {key: value for key, value in args.items() if "." in key}
    nested = {key: value for key, value in args.items() if "." not in key}
    for key in flat:
        if key not in _OPTIONS:
            raise _unknown("option", key, list(_OPTIONS), "argument")
    flat |= _flatten(nested, "argument")
    return {key: (value, "argument") for key, value in flat.items() if value is not None}


def _flatten(raw: object, origin: str) -> dict[str, Any]:
    """``{section: {field: value}}`` as ``{"section.field": value}``; every name is checked."""
    keys = list(_OPTIONS)
    sections = sorted({key.split(".")[0] for key in keys})
    flat: dict[str, Any] = {}
    for section, fields in (raw if isinstance(raw, Mapping) else {"": raw}).items():
        if section not in sections:
            raise _unknown("section", section, sections, origin)
        if not isinstance(fields, Mapping):
            raise _bad_value(section, fields, "a table of options", origin)
        for name, value in fields.items():
            if f"{section}.{name}" not in keys:
                raise _unknown("option", f"{section}.{name}", keys, origin)
            flat[f"{section}.{name}"] = value
    return flat


def variables() -> dict[str, str]:
    """The environment variable of every option -> its ``section.field``."""
    return {PREFIX + key.replace(".", "_").upper(): key for key in _OPTIONS}


def _from_env(env: Mapping[str, str]) -> _Source:
    by_name = variables()
    found: _Source = {}
    for name, key in by_name.items():
        if name in env:
            origin = f"environment {name}"
            found[key] = (_parse(key, _OPTIONS[key], env[name], origin), origin)
    for name, meant in look_alikes(env, by_name).items():
        if meant in by_name or meant == BACKEND_VARIABLE:
            raise not_read(name, meant, env[name])
    if env.get(BACKEND_VARIABLE):
        clash = sorted({found[key][1] for key in ("backend.name", "backend.device") if key in found})
        if clash:
            raise _bad_value(
                BACKEND_VARIABLE,
                env[BACKEND_VARIABLE],
                f"given only without {clash[0].split()[1]}",
                "environment",
            )
        found |= _backend(env[BACKEND_VARIABLE])
    return found


def _backend(text: str) -> _Source:
    origin = f"environment {BACKEND_VARIABLE}"
    name, index = parse_selector(text, origin)
    found: _Source = {"backend.name": (name, origin)}
    if index:
        found["backend.device"] = (index, origin)
    return found


def _parse(key: str, option: _Option, text: str, origin: str) -> Any:
    if option.optional and text.lower() == "none":
        return None
    if option.kind is str:
        return text
    try:
        return int(text)
    except ValueError:
        raise _bad_value(key, text, _NAMES[option.kind], origin) from None


def _check(key: str, option: _Option, value: object, origin: str) -> None:
    if option.optional and value is None:
        return
    # bool is an int in Python, and true is no number of blocks.
    if type(value) is not option.kind:
        raise _bad_value(key, value, _NAMES[option.kind] + (" or none" if option.optional else ""), origin)
    if option.minimum is not None and isinstance(value, int) and value < option.minimum:
        raise _bad_value(key, value, f"{option.minimum} or more", origin)
    if isinstance(value, int) and value > option.maximum:
        raise _bad_value(key, value, f"at most {option.maximum}", origin)
    if option.choices and value not in option.choices:
        raise _bad_value(key, value, f"one of {', '.join(option.choices)}", origin)


def _get(config: EngineConfig, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


def _show(value: object) -> str:
    return "none" if value is None else json.dumps(value)


def _bad_value(key: str, value: object, allowed: str, origin: str) -> ConfigError:
    return ConfigError(
        "an option has a value that cannot be used",
        where=f"{key}, from {origin}",
        why=f"it is {value!r}; it must be {allowed}",
        fix="correct it there",
    )


def _unknown(what: str, name: object, known: list[str], origin: str) -> ConfigError:
    close = difflib.get_close_matches(str(name), known, n=1)
    return ConfigError(
        f"an unknown {what} was given",
        where=f"{name}, from {origin}",
        why=f"known are {', '.join(known)}",
        fix=f"did you mean {close[0]}?" if close else "remove it",
    )
