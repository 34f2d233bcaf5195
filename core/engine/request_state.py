"""One portable, versioned form of a request: for preemption, the prefix cache and transfer alike.

The bytes are a magic word, the length of a JSON header and the CRC-32 of all that follows (two uint32), the
header, and raw arrays, each at a multiple of 64 from the start of the payload.  Everything is little-endian;
nothing in it is executed.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.engine.draw_rules import DrawRules
from tandem.errors import RequestError, VersionError

Array = npt.NDArray[Any]

STATE_VERSION = 2
READABLE = (1, 2)  # 1 has no min_p, no priority, no salt and no rules
CONTRACT = (1, 2)  # the contract whose canonical cache layouts the device arrays follow
DIGEST_BYTES = 32
PAST_KINDS = ("raw", "processed", "top_ids", "top", "top_processed_ids", "top_processed")
DEVICE_KINDS = ("main", "index", "window", "compressor", "ngram", "draft")

_MAGIC = b"TNDMREQ\n"
_ALIGN = 64
_SINCE_2 = ("min_p", "priority")
_DTYPES = ("<i4", "<i8", "|u1", "<u2", "<f4")


@dataclass(frozen=True, slots=True)
class Sampling:
    """The numbers that decide which tokens are drawn and how many.

    Args:
        max_tokens, min_tokens: bounds on the output length.
        seed: unsigned 64-bit seed of the request's random numbers.
        temperature, top_p, top_k, min_p: as in docs/CONTRACT.md; 0 is argmax; a top_k below 1 keeps everything.
        ignore_eos: whether the model's end token is an ordinary token.
        priority: requests of a lower number go first.

    Raises:
        RequestError: a number is out of range; temperature and top_p are judged as float32, as they are used.
    """

    max_tokens: int
    min_tokens: int = 0
    seed: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    ignore_eos: bool = False
    min_p: float = 0.0
    priority: int = 0

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            temperature, top_p = np.float32(self.temperature), np.float32(self.top_p)
        if not (np.isfinite(temperature) and temperature >= 0):
            raise _out_of_range("temperature", self.temperature, "a finite number of at least 0")
        if not 0 < top_p <= 1:
            raise _out_of_range("top_p", self.top_p, "a number above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise _out_of_range("min_p", self.min_p, "a number from 0 to 1")
        if not 1 <= self.max_tokens < 1 << 31:
            raise _out_of_range("max_tokens", self.max_tokens, "an integer of at least 1")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise _out_of_range(
                "min_tokens", self.min_tokens, f"an integer from 0 to max_tokens ({self.max_tokens})"
            )
        if not -1 <= self.top_k < 1 << 31:
            raise _out_of_range("top_k", self.top_k, "an integer of at least 1, or -1")
        if not 0 <= self.seed < 1 << 64:
            raise _out_of_range("seed", self.seed, "an unsigned 64-bit integer")
        if not -(1 << 31) <= self.priority < 1 << 31:
            raise _out_of_range("priority", self.priority, "a signed 32-bit integer")


@dataclass(frozen=True, slots=True, eq=False)
class RequestState:
    """A request between two steps.

    Args:
        tokens: int32 [n], prompt and committed output.
        prompt_len: how many of them are the prompt.
        num_computed: tokens covered by the device arrays; 0 means that everything is recomputed.
        rng_position: absolute position of the next token to be drawn, always n: random numbers depend on
            nothing but the seed and this.
        sampling: see `Sampling`.
        roles: uint8 [n] or None for plain text.
        media_digest: 32 bytes or none.
        cache_salt: the request shares cached prefixes only with those of the same salt.
        stop_strings, stop_token_ids, logprobs, processed_logprobs, logit_bias, rules, embed_rows, embed_positions: see
            `tandem.engine.requests.RequestExtras`.
        past_logprobs: logprobs of the output so far where they are asked for: ``raw`` and ``processed`` float32
            [m], ``top_ids`` int32 and ``top`` float32 [m, k], m being n - prompt_len.
        device: what the device knows of the first ``num_computed`` tokens, by name ``kind`` or ``kind.layer`` with a
            kind of `DEVICE_KINDS`.  main, index, window: canonical cache entries uint8 [entries, entry_bytes] in
            position order, the window from ``window_start`` on, so that they fit any block size.  compressor
            float32 [p, 2, D], ngram int32 [p]: the newest p positions, in order.
        window_start: first position held by the window entries.
        version: form of this state.
        contract: (major, minor) whose layouts ``device`` follows.
    """

    tokens: Array
    prompt_len: int
    num_computed: int
    rng_position: int
    sampling: Sampling
    roles: Array | None = None
    media_digest: bytes = b""
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    processed_logprobs: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    rules: DrawRules = field(default_factory=DrawRules)
    embed_rows: Array | None = None
    embed_positions: Array | None = None
    past_logprobs: Mapping[str, Array] = field(default_factory=dict)
    device: Mapping[str, Array] = field(default_factory=dict)
    window_start: int = 0
    cache_salt: str = ""
    version: int = STATE_VERSION
    contract: tuple[int, int] = CONTRACT

    def __post_init__(self) -> None:
        _check_version(self.version, self.contract, (STATE_VERSION,))
        length = len(self.tokens)
        _require(self.tokens.dtype == np.int32 and self.tokens.ndim == 1, "tokens", "they are not int32 [n]")
        _require(1 <= self.prompt_len <= length, "prompt_len", f"{self.prompt_len} of {length} tokens")
        _require(0 <= self.num_computed <= length, "num_computed", f"{self.num_computed} of {length} tokens")
        _require(self.rng_position == length, "rng_position", f"{self.rng_position} after {length} tokens")
        _require(0 <= self.window_start <= self.num_computed, "window_start", f"{self.window_start}")
        _require(
            len(self.media_digest) in (0, DIGEST_BYTES), "media_digest", f"{len(self.media_digest)} bytes"
        )
        _require(self.roles is None or self.roles.shape == (length,), "roles", "not one per token")
        _require(
            (self.embed_rows is None) == (self.embed_positions is None),
            "embed_rows",
            "rows without positions",
        )
        for name, values in self.past_logprobs.items():
            drawn = length - self.prompt_len
            _require(name in PAST_KINDS and len(values) == drawn, f"logprobs '{name}'", f"not {drawn} known values")
        for name in self.device:
            _require(name.partition(".")[0] in DEVICE_KINDS, f"device array '{name}'", "of no known kind")

    def to_bytes(self) -> bytes:
        """The state as bytes that `from_bytes` reads."""
        entries, chunks, size = [], [], 0
        for name, array in self._arrays().items():
            plain = np.ascontiguousarray(array)
            plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
            _require(
                plain.dtype.str in _DTYPES, f"array '{name}'", f"dtype {plain.dtype} has no portable form"
            )
            data = plain.tobytes()
            entries.append(
                {"name": name, "dtype": plain.dtype.str, "shape": list(plain.shape), "offset": size}
            )
            data += b"\0" * (-len(data) % _ALIGN)
            chunks.append(data)
            size += len(data)
        payload = b"".join(chunks)
        header = {
            "version": self.version,
            "contract": list(self.contract),
            "prompt_len": self.prompt_len,
            "num_computed": self.num_computed,
            "rng_position": self.rng_position,
            "window_start": self.window_start,
            "sampling": asdict(self.sampling),
            "media_digest": self.media_digest.hex(),
            "cache_salt": self.cache_salt,
            "stop_strings": list(self.stop_strings),
            "stop_token_ids": list(self.stop_token_ids),
            "logprobs": self.logprobs,
            "processed_logprobs": self.processed_logprobs,
            "rules": self.rules.to_json(),
            "arrays": entries,
        }
        text = json.dumps(header).encode()
        return _MAGIC + struct.pack("<II", len(text), zlib.crc32(text + payload)) + text + payload

    def _arrays(self) -> dict[str, Array]:
        own = {
            "tokens": self.tokens,
            "roles": self.roles,
            "embed_rows": self.embed_rows,
            "embed_positions": self.embed_positions,
        }
        present: dict[str, Array] = {name: array for name, array in own.items() if array is not None}
        if self.logit_bias:
            present["bias_ids"] = np.array(list(self.logit_bias), dtype=np.int32)
            present["bias_values"] = np.array(list(self.logit_bias.values()), dtype=np.float32)
        present |= {f"past/{name}": array for name, array in self.past_logprobs.items()}
        return present | {f"device/{name}": array for name, array in self.device.items()}

    @classmethod
    def from_bytes(cls, data: bytes) -> RequestState:
        """Read what `to_bytes` wrote; arrays are copies.

        Raises:
            VersionError: the version is unknown, or the contract is another major or a later minor.
            RequestError: the bytes are damaged or inconsistent.
        """
        header, payload = _split(data)
        try:
            _check_version(header["version"], tuple(header["contract"]), READABLE)
            arrays = {entry["name"]: _read_array(entry, payload) for entry in header["arrays"]}
            return cls(
                tokens=arrays["tokens"],
                prompt_len=_integer(header, "prompt_len"),
                num_computed=_integer(header, "num_computed"),
                rng_position=_integer(header, "rng_position"),
                window_start=_integer(header, "window_start"),
                sampling=_read_sampling(header["sampling"], header["version"]),
                roles=arrays.get("roles"),
                media_digest=bytes.fromhex(header["media_digest"]),
                cache_salt=str(header["cache_salt"]) if header["version"] > 1 else "",
                stop_strings=tuple(str(text) for text in header["stop_strings"]),
                stop_token_ids=tuple(int(token) for token in header["stop_token_ids"]),
                logprobs=None if header["logprobs"] is None else _integer(header, "logprobs"),
                processed_logprobs=bool(header["processed_logprobs"]),
                logit_bias=_read_bias(arrays),
                rules=DrawRules.from_json(header["rules"] if header["version"] > 1 else {}),
                embed_rows=arrays.get("embed_rows"),
                embed_positions=arrays.get("embed_positions"),
                past_logprobs=_under("past/", arrays),
                device=_under("device/", arrays),
                contract=(header["contract"][0], header["contract"][1]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise _damaged("header", f"{type(error).__name__}: {error}") from error


def _split(data: bytes) -> tuple[dict[str, Any], memoryview]:
    start = len(_MAGIC) + 8
    if len(data) < start or data[: len(_MAGIC)] != _MAGIC:
        raise _damaged("start", "the bytes do not begin like a request state")
    size, checksum = struct.unpack_from("<II", data, len(_MAGIC))
    body = memoryview(data)[start:]
    if zlib.crc32(body) != checksum:
        raise _damaged("body", f"the checksum of its {len(body)} bytes differs; it was cut or changed")
    try:
        header = json.loads(bytes(body[:size]))
    except ValueError as error:
        raise _damaged("header", f"it is not JSON: {error}") from error
    _require(isinstance(header, dict), "header", "it is not a JSON object")
    return header, body[size:]


def _read_array(entry: Mapping[str, Any], payload: memoryview) -> Array:
    _require(entry["dtype"] in _DTYPES, f"array '{entry['name']}'", f"dtype {entry['dtype']!r}")
    shape = [int(n) for n in entry["shape"]]
    _require(min(shape, default=0) >= 0 and entry["offset"] >= 0, f"array '{entry['name']}'", "negative size")
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, dtype=np.dtype(entry["dtype"]).newbyteorder("="))
    flat = np.frombuffer(payload, dtype=entry["dtype"], count=count, offset=entry["offset"])
    return flat.reshape(shape).astype(flat.dtype.newbyteorder("="))


def _under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _read_bias(arrays: Mapping[str, Array]) -> dict[int, float]:
    if "bias_ids" not in arrays:
        return {}
    return dict(zip(arrays["bias_ids"].tolist(), arrays["bias_values"].tolist(), strict=True))


def _read_sampling(raw: Mapping[str, Any], version: int) -> Sampling:
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "bool": (bool,)}
    known = [item for item in fields(Sampling) if version > 1 or item.name not in _SINCE_2]
    for item in known:
        value = raw[item.name]
        _require(type(value) in kinds[str(item.type)], f"sampling.{item.name}", f"it is {value!r}")
    return Sampling(**{item.name: raw[item.name] for item in known})


def _integer(header: Mapping[str, Any], name: str) -> int:
    value = header[name]
    _require(type(value) is int, name, f"it is {value!r}")
    return int(value)


def _check_version(version: object, contract: tuple[Any, ...], readable: tuple[int, ...]) -> None:
    known = len(contract) == 2 and contract[0] == CONTRACT[0] and contract[1] <= CONTRACT[1]
    if type(version) is not int or version not in readable or not known:
        raise VersionError(
            "a request state was written by another version",
            where="RequestState",
            why=f"state version {version}, contract {contract}; read here: {readable}, {CONTRACT}",
            fix="export it again with this version, or send the prompt anew",
        )


def _out_of_range(name: str, value: object, allowed: str) -> RequestError:
    return RequestError(
        "a sampling parameter cannot be used", where=name, why=f"it is {value!r}", fix=f"give {allowed}"
    )


def _require(condition: bool, where: str, why: str) -> None:
    if not condition:
        raise _damaged(where, why)


def _damaged(where: str, why: str) -> RequestError:
    return RequestError(
        "a request state cannot be read", where=where, why=why, fix="export it again, or send the prompt anew"
    )
