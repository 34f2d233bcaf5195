"""Installs peers into environments of their own and runs their scripts there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu.settings import Settings
from benchmarks.cpu.sizes import BUILD, ROOT

HOME = BUILD / "peers"
FILES = HOME / "files"
SCRIPTS = Path(__file__).parent
INSTALL_S, RUN_S = 3600, 3600


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer.

    Args:
        packages: what pip installs; versions are pinned so that figures can be repeated.
        differs: how its model and its form differ from Tandem's.
    """

    packages: tuple[str, ...]
    differs: str


_V4 = "DeepSeek-V4 in place of V4.1: compressed caches of ratio 4 and 128 in every layer but two, two token-routed "
_V4 += "layers, no Engram, no shared sources of keys"
PEERS = {
    "llama-cpp": Peer(("llama-cpp-python==0.3.36", "gguf==0.19.0", "numpy"), f"{_V4}; keys held as f16"),
    "transformers": Peer(("torch==2.13.0", "transformers==5.23.0", "numpy"), f"{_V4}; keys in the weights' format"),
    "nano-deepseek-v4": Peer(("torch==2.13.0", "nano-deepseek-v4==0.2.0", "numpy"), f"{_V4}; keys in fp32"),
    "flyweight": Peer(("flyweight-llm==0.23.1", "gguf==0.19.0", "numpy"), f"{_V4}; one sequence at a time, keys f16"),
}


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment."""
    return HOME / name / "bin" / "python"


def install(name: str) -> str | None:
    """Make the environment if it is not complete; the reason if that fails."""
    done = HOME / name / ".done"
    if done.is_file():
        return None
    HOME.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(HOME / name)], check=True, capture_output=True)
        words = [str(python_of(name)), "-m", "pip", "install", "-q", *PEERS[name].packages]
        subprocess.run(words, check=True, capture_output=True, timeout=INSTALL_S)
    except subprocess.CalledProcessError as error:
        return f"it was not installed: {_last(error.stderr)}"
    except (subprocess.TimeoutExpired, OSError) as error:
        return f"it was not installed: {error}"
    done.touch()
    return None


def run(name: str, settings: Settings) -> dict[str, Any]:
    """Rows of a peer, or the reason why there are none."""
    found: dict[str, Any] = {"peer": name, "packages": PEERS[name].packages, "differs": PEERS[name].differs}
    reason = install(name)
    if reason is not None:
        return found | {"skipped": reason}
    FILES.mkdir(parents=True, exist_ok=True)
    job = {"threads": settings.threads, "rounds": settings.rounds, "steps": settings.steps, "folder": str(FILES)}
    script = SCRIPTS / f"run_{name.replace('-', '_')}.py"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["OMP_NUM_THREADS"] = str(settings.threads)
    words = [str(python_of(name)), str(script), json.dumps(job)]
    try:
        done = subprocess.run(words, check=True, capture_output=True, timeout=RUN_S, env=environment, cwd=ROOT)
    except subprocess.CalledProcessError as error:
        return found | {"skipped": f"it ended with status {error.returncode}: {_last(error.stderr)}"}
    except subprocess.TimeoutExpired:
        return found | {"skipped": f"it took longer than {RUN_S} s"}
    return found | {"rows": json.loads(done.stdout.decode().strip().splitlines()[-1])}


def _last(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
