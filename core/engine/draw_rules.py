"""What a request asks of its draws beyond numbers by slot, in a form that travels with its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tandem.errors import RequestError
from tandem.sampling.params import SamplingParams
from tandem.structured.spec import StructuredSpec


@dataclass(frozen=True, slots=True)
class DrawRules:
    """Fields of `SamplingParams` of the same names, which the step's arrays do not hold."""

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bad_words: tuple[str, ...] = ()
    forced_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    deadline_s: float | None = None
    structured: StructuredSpec | None = None

    @classmethod
    def of(cls, params: SamplingParams) -> DrawRules:
        """The rules of some sampling parameters."""
        return cls(**{item.name: getattr(params, item.name) for item in fields(cls)})

    def to_fields(self) -> dict[str, Any]:
        """The values by name, as `SamplingParams` takes them."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def to_json(self) -> dict[str, Any]:
        """The values as JSON holds them."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> DrawRules:
        """Read what `to_json` gave; names that are missing have their defaults.

        Raises:
            RequestError: a name is unknown, or a value is of no use as a sampling parameter.
        """
        unknown = sorted(set(raw) - {item.name for item in fields(cls)})
        if unknown:
            raise RequestError(
                "a request state cannot be read",
                where="rules",
                why=f"{', '.join(unknown)[:200]} is not known",
                fix="export it again with this version, or send the prompt anew",
            )
        return cls.of(SamplingParams(**raw))
