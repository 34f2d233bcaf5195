"""Training state on disk: parameters, optimiser moments, step; and a log of one JSON object a line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

Tensor = torch.Tensor


def save_state(path: Path, step: int, parameters: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
    """Write the state; an interruption leaves the earlier one."""
    tensors = {f"parameter/{name}": value.detach().contiguous() for name, value in parameters.items()}
    tensors |= {f"moment/{name}": value.contiguous() for name, value in moments.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    save_file(tensors, partial, metadata={"step": str(step)})
    os.replace(partial, path)


def load_state(path: Path) -> tuple[int, dict[str, Tensor], dict[str, Tensor]]:
    """Steps done, parameters and moments.

    Raises:
        SystemExit: there is no state, or it cannot be read.
    """
    groups: dict[str, dict[str, Tensor]] = {"parameter": {}, "moment": {}}
    try:
        with safe_open(path, framework="pt") as file:
            step = int(file.metadata()["step"])
            for key in file.keys():  # noqa: SIM118  not a dict
                group, _, name = key.partition("/")
                groups[group][name] = file.get_tensor(key)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"{path} is no state of a training run ({error}): train first, or name another") from error
    return step, groups["parameter"], groups["moment"]


def keep_recipe(directory: Path, recipe: dict[str, Any]) -> None:
    """Write what decides a run into its directory.

    Raises:
        SystemExit: the directory holds a run that something else decided.
    """
    path = directory / "recipe.json"
    wanted = json.loads(json.dumps(recipe))
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != wanted:
        raise SystemExit(f"{path} holds another recipe or backbone: choose another --out, or remove it")
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")


class Log:
    """Appends measurements to a JSON-lines file, dropping lines of steps that are run again."""

    def __init__(self, path: Path, first_step: int) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_log(path) if line["step"] < first_step]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")

    def write(self, **values: Any) -> None:
        """Add a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """All lines of a log; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
