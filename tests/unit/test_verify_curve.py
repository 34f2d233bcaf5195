"""Cost curves: levelling, interpolation, correction while running, and their files."""

from __future__ import annotations

import json
import logging
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.contract import environment
from tandem.errors import ConfigError
from tandem.speculation import curve_cache
from tandem.speculation.curve import CostCurve, RunningMedian, measure, sizes
from tandem.speculation.curve_cache import CurveKey, code_hash, load, path_of, save

POINTS = [(1, 1.0), (2, 3.0), (4, 2.0), (8, 6.0)]
KEY = CurveKey({"machine": "x"}, "abc", "model", {"block": "128"})


def test_points_are_levelled_and_joined() -> None:
    curve = CostCurve(POINTS)
    assert curve.points == ((1, 1.0), (2, 2.5), (4, 2.5), (8, 6.0))
    found = curve.seconds([0, 1, 1.5, 3, 6, 8, 16], 0)
    # beyond the last point as steep as from 4 to 8 rows: 0.875 a row
    assert np.allclose(found, [1.0, 1.0, 1.75, 2.5, 4.25, 6.0, 13.0])
    assert CostCurve([(4, 0.5)]).seconds([1, 9], 3).tolist() == [0.5, 0.5]


def test_levelling_is_the_least_squares_fit() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.random(6) + 0.1
        level = np.array([s for _, s in CostCurve([(i + 1, float(v)) for i, v in enumerate(values)]).points])
        # Known form of isotonic regression: max over starts of the min over ends of the means between them.
        expected = [
            max(min(values[a : b + 1].mean() for b in range(i, 6)) for a in range(i + 1)) for i in range(6)
        ]
        assert np.allclose(level, expected)


@pytest.mark.parametrize(
    "points", [[], [(0, 1.0)], [(2, 1.0), (2, 2.0)], [(1, 0.0)], [(1, float("nan"))], [(1, float("inf"))]]
)
def test_bad_points_are_refused(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError, match="cost curve"):
        CostCurve(points)


def test_running_median() -> None:
    rng, median, values = np.random.default_rng(1), RunningMedian(7), []
    assert median.value == 0.0
    for value in rng.integers(0, 9, 60).tolist():
        values.append(float(value))
        median.add(float(value))
        assert median.value == statistics.median(values[-7:])


def test_slope_is_the_median_over_ranges_of_medians() -> None:
    curve = CostCurve([(1, 1.0), (2, 1.0), (4, 1.0), (8, 1.0)])
    for _ in range(9):
        curve.observe(8, 0, 1.0 + 8 * 0.5, 0.0)
    assert curve.slope == 0.0  # too few
    curve.observe(8, 0, 1.0 + 8 * 0.5, 0.0)
    assert curve.slope == pytest.approx(0.5)
    for _ in range(100):  # one popular range does not outvote the others
        curve.observe(1, 0, 1.0 + 0.1, 0.0)
    assert curve.slope == pytest.approx(0.3)  # the mean of two medians
    for step in range(30):  # a hiccup now and then is nothing
        curve.observe(2, 0, 1.0 + (2 * 0.2 if step % 3 else 9.0), 0.0)
    assert curve.slope == pytest.approx(0.2)
    assert curve.seconds(10, 0) == pytest.approx(1.0 + 10 * 0.2)


def test_faster_steps_do_not_make_rows_cheaper_than_nothing() -> None:
    curve = CostCurve(POINTS)
    for _ in range(20):
        curve.observe(8, 0, 0.5, 0.0)
    assert curve.slope == 0.0


def test_a_range_without_new_steps_is_forgotten() -> None:
    curve = CostCurve([(1, 1.0), (2, 1.0)])
    for _ in range(10):
        curve.observe(1, 0, 5.0, 0.0)
    assert curve.slope == pytest.approx(4.0)
    for _ in range(5000):
        curve.observe(2, 0, 1.0, 0.0)
    assert curve.slope == 0.0


def test_draws_by_number_of_requests() -> None:
    curve = CostCurve([(1, 1.0)])
    assert curve.draw_seconds(3) == 0.0
    for draw in (0.3, 0.3, 9.0, 0.3):
        curve.observe(1, 3, 1.0, draw)
    assert curve.draw_seconds(3) == curve.draw_seconds(8) == pytest.approx(0.3)  # by all, too few of its own
    for _ in range(9):
        curve.observe(1, 8, 1.0, 0.7)
    assert curve.draw_seconds(3) == pytest.approx(0.7)
    curve.observe(1, 3, 1.0, 0.3)
    assert curve.draw_seconds(3) == pytest.approx(0.3) and curve.draw_seconds(8) == pytest.approx(0.7)
    assert curve.seconds(1, 8) == pytest.approx(1.7)
    curve.observe(1, 0, 1.0, 50.0)  # a step that drew nothing tells nothing of drawing
    assert curve.draw_seconds(4) == pytest.approx(0.7)


def test_sizes_and_measuring() -> None:
    assert sizes(1) == [1] and sizes(6) == [1, 2, 4, 6]
    assert sizes(40) == [1, 2, 4, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40]
    calls: list[int] = []

    def run(rows: int) -> float:
        calls.append(rows)
        return {1: 100.0}.get(len([c for c in calls if c == rows]), float(rows))  # the first run is slow

    assert measure(run, 4, repeats=3) == [(1, 1.0), (2, 2.0), (4, 4.0)]
    assert calls == [1, 2, 4] * 4
    assert [rows for rows, _ in measure(run, 40, repeats=1)] == sizes(40)


def test_measuring_ends_in_time_with_the_doublings() -> None:
    """Without any time every doubling has one run, which counts; sizes that no step can have are left out."""
    calls: list[int] = []

    def run(rows: int) -> float | None:
        calls.append(rows)
        return None if rows == 16 else float(rows)

    assert measure(run, 40, seconds=0.0) == [(1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0), (32, 32.0), (40, 40.0)]
    assert calls == [1, 2, 4, 8, 16, 32, 40]


def test_measuring_refines_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes a second of a clock that nothing else moves: of nine runs seven are doublings, then come halves."""
    now = [0.0]
    monkeypatch.setattr("tandem.speculation.curve.time.perf_counter", lambda: now[0])

    def run(rows: int) -> float:
        now[0] += 1.0
        return float(rows)

    assert [rows for rows, _ in measure(run, 40, seconds=8.5)] == [1, 2, 4, 8, 12, 16, 24, 32, 40]


def test_a_curve_comes_back_from_disk(tmp_path: Path) -> None:
    assert load(KEY, tmp_path) is None
    save(KEY, POINTS, tmp_path)
    assert load(KEY, tmp_path) == POINTS
    assert [p.name for p in path_of(KEY, tmp_path).parent.iterdir()] == [f"{KEY.digest}.json"]


def test_any_difference_is_another_key() -> None:
    others = [
        replace(KEY, hardware={"machine": "y"}),
        replace(KEY, kernels="abd"),
        replace(KEY, model="other"),
        replace(KEY, flags={"block": "64"}),
        replace(KEY, contract=(KEY.contract[0], KEY.contract[1] + 1)),
    ]
    assert len({KEY.digest, *(key.digest for key in others)}) == 6
    assert replace(KEY, flags=dict(reversed({"a": "1", "block": "128"}.items()))).digest == replace(
        KEY, flags={"a": "1", "block": "128"}
    ).digest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({"format": 99, "key": {}, "points": []}),
        "points-empty",
        "points-falling",
        "other-key",
    ],
)
def test_a_damaged_file_is_ignored_and_logged(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(KEY, POINTS, tmp_path)
    file = path_of(KEY, tmp_path)
    good = json.loads(file.read_text())
    made = {
        "points-empty": good | {"points": []},
        "points-falling": good | {"points": [[2, 1.0], [1, 2.0]]},
        "other-key": good | {"key": good["key"] | {"model": "other"}},
    }
    file.write_text(json.dumps(made[text]) if text in made else text)
    with caplog.at_level(logging.WARNING):
        assert load(KEY, tmp_path) is None
    assert str(file) in caplog.text and "measured again" in caplog.text


def test_a_curve_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING):
        save(KEY, POINTS, blocked)
    assert "cannot be kept" in caplog.text


def test_a_torn_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(KEY, POINTS, tmp_path)

    def fail(*_: object) -> None:
        raise OSError("disk is gone")

    monkeypatch.setattr(curve_cache.os, "replace", fail)
    save(KEY, [(1, 9.0)], tmp_path)
    assert load(KEY, tmp_path) == POINTS and len(list(path_of(KEY, tmp_path).parent.iterdir())) == 1


def test_code_hash_follows_the_code(tmp_path: Path) -> None:
    source = tmp_path / "kernels_of_a_test.py"
    source.write_text("class Kernels:\n    pass\n")
    space: dict[str, type] = {}
    exec(compile(source.read_text(), str(source), "exec"), space)
    module = type(environment)("kernels_of_a_test")
    module.__file__ = str(source)
    first = code_hash([module])
    assert first == code_hash([module]) != code_hash([environment])
    (tmp_path / "notes.txt").write_text("no code")
    assert code_hash([module]) == first
    (tmp_path / "lib.so").write_bytes(b"\0")
    second = code_hash([module])
    assert second != first
    (tmp_path / "lib.so").write_bytes(b"\1")
    assert code_hash([module]) != second


def test_cache_folder() -> None:
    assert environment.cache_dir({"TANDEM_CACHE_DIR": "/somewhere"}) == Path("/somewhere")
    assert environment.cache_dir({}) == environment.cache_dir({"TANDEM_CACHE_DIR": ""}) == Path.home() / ".cache/tandem"
    assert "TANDEM_CACHE_DIR" in environment.KNOWN
