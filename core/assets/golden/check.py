"""Checks a device's outputs against golden cases.  Needs numpy only, and nothing of the package that wrote them.

    python check.py list [FILTER]            case names and arguments
    python check.py check OUTPUTS [FILTER]   a line a case; exit status 1 unless all pass

OUTPUTS/<case>.safetensors holds a case's outputs by name, or OUTPUTS/<case>/<output>.npy one each; bf16 in an .npy is
its bits as uint16.  `load(case)` gives a case's description and tensors; README.md beside this file explains both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "I16": "<i2", "U8": "u1", "BOOL": "?", "BF16": "<u2"}
FLOATS = {"bf16": (8, -133), "f32": (24, -149)}  # significant bits, exponent of the smallest step


def read(path: Path) -> dict[str, Any]:
    """Tensors of a safetensors file; bf16 as uint16 bits."""
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    head = {name: at for name, at in json.loads(raw[8:end]).items() if name != "__metadata__"}
    spans = {name: raw[end:][slice(*at["data_offsets"])] for name, at in head.items()}
    return {name: np.frombuffer(spans[name], DTYPES[at["dtype"]]).reshape(at["shape"]) for name, at in head.items()}


def load(case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Description and tensors of a case; `inputs` of the description names the tensors of the arguments."""
    return json.loads((HERE / f"{case}.json").read_text()), read(HERE / f"{case}.safetensors")


def outputs(folder: Path, case: str) -> dict[str, Any]:
    """Outputs by name, from a safetensors file or a folder of .npy files; empty where there are none."""
    one, several = folder / f"{case}.safetensors", (folder / case).glob("*.npy")
    try:
        return read(one) if one.exists() else {f.stem: np.load(f) for f in several}
    except Exception as error:  # a damaged file can be anything
        return {f"a file that cannot be read: {type(error).__name__}": None}


def values(x: Any, dtype: str) -> Any:
    """float64 of an array whose bf16 elements are bits."""
    return ((x.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else x).astype(np.float64)


def need(fine: Any, text: str, share: float = 0.0) -> None:
    """Refuse where more than a share (of a small array: one) is not fine."""
    wrong = np.argwhere(~np.asarray(fine))
    if len(wrong) > (max(1, int(share * fine.size)) if share else 0):
        raise ValueError(f"{text} in {len(wrong)} of {np.size(fine)}, first at {wrong[0].tolist()}")


def near(have: Any, want: dict[str, Any], spec: dict[str, Any], strict: Any) -> None:
    """Classes U and A: within the class of the float64 value, NaN where it is NaN."""
    value, limit = want["value"], want["limit"]
    if spec["class"] == "U" and spec["dtype"] in FLOATS:  # rounded once
        bits, least = FLOATS[spec["dtype"]]
        step = np.ldexp(1.0, np.where(value == 0, least, np.maximum(np.frexp(value)[1] - bits, least)))
        value = np.where(np.isfinite(value), np.round(value / step) * step, value)
    if "slack" in want:
        limit = limit + np.where(strict, 0.0, want["slack"]).reshape(-1, *[1] * (value.ndim - 1))
    close = (np.abs(have - value) <= limit) | (have == value) | (np.isnan(have) & np.isnan(value))
    need(close[want.get("rows", slice(None))], "outside of the class")


def quantised(pair: Any, want: dict[str, Any], fmt: str, strict: Any) -> None:
    """Class Q of (codes, scales); rows that are not strict may be a step off anywhere."""
    pack = [c if fmt == "mxfp8" else np.stack((c & 15, c >> 4), -1) for c in (pair[0], want["codes"])]
    top, lost = 127 if fmt == "mxfp8" else 7, want["scales"] == (127 if fmt == "nvfp4" else 255)
    have, aim = (np.where(c > top, -(c & top).astype(int), c).reshape(len(c), -1) for c in pack)  # in order of value
    apart = np.abs(pair[1].astype(int) - want["scales"])
    need((apart <= 1) & ((apart == 0) | ~lost), "a scale is more than a step off")
    need(apart[strict] == 0, "scales differ", 1e-4)
    alike = np.repeat((apart == 0) & ~lost, have.shape[1] // apart.shape[1], 1)
    need((abs(have - aim) <= 1) & ((abs(have) == 127) == (abs(aim) == 127)) | ~alike, "a code is more than a step off")
    need((have == aim)[strict] | ~alike[strict], "codes differ", 1e-3)


def judge(name: str, spec: dict[str, Any], tensors: dict[str, Any], got: dict[str, Any]) -> None:
    """Check one output."""
    have, want = got[spec.get("data", name)], {part: tensors[f"want/{name}/{part}"] for part in spec["tensors"]}
    form = f"it is {have.dtype} {list(have.shape)}, not {spec['dtype']} {spec['shape']}"
    need([list(have.shape) == spec["shape"], have.dtype.itemsize == spec["itemsize"]], form)
    strict = np.ones(len(have), bool)
    if "after" in spec:  # a row made from another output, legally rounded otherwise than here, has more freedom
        same = got[spec["after"]] == tensors[f"want/{spec['after']}/bits"]
        strict = same.reshape(len(same), -1).all(1)[want.get("source", slice(None))]
    if spec["class"] == "X":
        lost = [spec["dtype"] in FLOATS and np.isnan(values(x, spec["dtype"])) for x in (have, want["bits"])]
        need((np.ascontiguousarray(have).view(want["bits"].dtype) == want["bits"]) | (lost[0] & lost[1]), "bits differ")
    elif "low" in want:  # class A of mxfp8: codes may be half a step from a value in the class
        scales, exponent = got[spec["scale"]], np.maximum(have >> 3 & 15, 1).astype(int)
        need((scales >= want["low"]) & (scales <= want["high"]), "a scale outside of the class")
        step = np.ldexp(1.0, exponent + np.repeat(scales.astype(int), 32, 1) - 137)
        value = np.where(have > 127, -step, step) * ((have & 127) + 8 - 8 * exponent)
        value = np.where((have & 127 == 127) | np.repeat(scales == 255, 32, 1), np.nan, value)
        near(value, want | {"limit": want["limit"] + step / 2}, spec, strict)
    elif spec["class"] in "UA":
        near(values(have, spec["dtype"]), want, spec, strict)
    elif spec["class"] == "S":
        scores, found, best = want["scores"], have.astype(int), want["bits"].astype(int)
        need(np.diff(np.sort(found, 1), 1, 1, -1, scores.shape[1]) > 0, "an id twice or one that does not exist")
        apart = np.abs(np.take_along_axis(scores, found, 1) - np.take_along_axis(scores, best, 1))
        need(apart <= want["slack"][:, None], "an id that does not tie with the best")
    elif "split" in spec:  # entries of a cache: codes, then scales; those not written keep their bytes
        need(np.delete(have == want["bits"], want["rows"], 0), "bytes of entries that the call does not name differ")
        quantised(np.split(have[want["rows"]], [spec["split"]], 1), want, spec["fmt"], strict)
    else:
        quantised((have, got[spec["scale"]]), want, spec["fmt"], strict)


def failures(case: str, got: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the outputs of a case, each beginning with the output's name."""
    about, tensors = load(case)
    for name, spec in about["outputs"].items():
        try:
            judge(name, spec, tensors, got)
        except (KeyError, ValueError, TypeError, IndexError) as e:
            yield f"{name} (class {spec['class']}): {f'no output {e} in {list(got)}' if isinstance(e, KeyError) else e}"


def main(argv: list[str]) -> int:
    listing, rest = argv[:1] == ["list"], argv[1:]
    if argv[:1] not in (["list"], ["check"]) or not (listing or rest):
        sys.exit(__doc__)
    wanted, tally = "".join(rest[not listing :][:1]), {"pass": 0, "FAIL": 0, "none": 0}
    cases = json.loads((HERE / "index.json").read_text())["cases"]
    begin = [c for c in cases if c == wanted] or [c for c in cases if "/" in wanted and c.startswith(wanted)]
    for case in begin or [c for c in cases if wanted in c]:
        if listing:
            print(f"{case}: {', '.join(load(case)[0]['inputs'])}")
            continue
        found = list(failures(case, got)) if (got := outputs(Path(rest[0]), case)) else []
        tally[verdict := ("FAIL" if found else "pass") if got else "none"] += 1
        print(verdict, case, *found, sep="  ")
    print("" if listing else ", ".join(f"{count} {verdict}" for verdict, count in tally.items()))
    return int(not listing and not 0 < tally["pass"] == sum(tally.values()))


if __name__ == "__main__":
    np.seterr(invalid="ignore")
    sys.exit(main(sys.argv[1:]))
