"""Free replays in memory, with the outputs of some calls taken from the recording."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from tqdm import tqdm

from tandem.conformance.calls import bits
from tandem.contract.backend import Backend
from tandem.errors import TandemError
from tandem.parity.decisions import Choice, Flip, choices, flips, score_noise
from tandem.parity.feeds import rebuild
from tandem.parity.judge import judge
from tandem.parity.legal import LegalNoise
from tandem.parity.pairs import Side
from tandem.parity.records import Call, Record
from tandem.parity.replay import FREE, Replayer
from tandem.parity.swap import Swapped, check_decision, named_flip, search
from tandem.parity.values import leaves

Outputs = dict[int, dict[str, Any]]


class FreeRuns:
    """Runs a recording's calls on another backend, again and again.

    Args:
        side: the recording.
        backend: an open backend.
    """

    def __init__(self, side: Side, backend: Backend) -> None:
        self._side, self._backend = side, backend

    def run(self, numbers: Collection[int], taken: Collection[int] = ()) -> Outputs:
        """Outputs of these calls on the host, those of ``taken`` being the recording's; a call that fails has none."""
        replayer = Replayer(self._side.trace, self._backend, FREE)
        outputs: Outputs = {}
        for number in sorted(numbers):
            record = self._side.records[number]
            if number in taken:
                outputs[number] = self._side.outputs(number)
                replayer.put(record, outputs[number])
                continue
            try:
                outputs[number] = replayer.run(record)
            except TandemError:
                continue  # what needs it reads the recording
        return outputs

    def errs(self, number: int, outputs: Outputs) -> bool:
        """Whether a call is outside its class in such a run, for the inputs it had there."""
        record = self._side.records[number]
        inputs = rebuild(self._side.trace, record, outputs.get)
        return any(error.outside for error in judge(record.op, Call(inputs, outputs[number])))

    def choices(self, number: int, outputs: Outputs) -> list[Choice]:
        """The decisions of a call in such a run."""

        def find(wanted: int) -> tuple[Record, Call] | None:
            if wanted not in outputs:
                return self._side.find(wanted)
            record = self._side.records[wanted]
            return record, Call(rebuild(self._side.trace, record, outputs.get), outputs[wanted])

        found = find(number)
        return [] if found is None else choices(found[0], found[1], find)


def differing(side: Side, outputs: Outputs) -> Iterator[int]:
    """Numbers of the calls whose outputs have other bits than the recording's."""
    for number, made in outputs.items():
        one, two = leaves(side.outputs(number)), leaves(made)
        same = one.keys() == two.keys() and all(
            one[name].shape == two[name].shape and torch.equal(bits(one[name]), bits(two[name])) for name in one
        )
        if not same:
            yield number


def swap(side: Side, backend: Backend, decision: str = "", progress: bool = False) -> Swapped | None:
    """Find the calls that make a decision flip on a backend.

    Args:
        side: the recording.
        decision: which one, as KIND:STEP:ROW:LAYER; empty for the first that is a defect, and where noise explains all
            of them for the first.
        progress: show on standard error how many replays were made.
    Returns:
        None where no decision flips.
    Raises:
        ConfigError: the name of the decision is malformed, or another one flips.
    """
    check_decision(decision)
    runs = FreeRuns(side, backend)
    made = runs.run([record.id for record in side.trace.records])
    differs = set(differing(side, made))
    found = list(_flips(side, runs, made, differs))
    if not found:
        return None
    if decision:
        flip = named_flip(found, decision)
    else:
        wrong: dict[int, bool] = {}
        with tqdm(desc="judge", unit="op", disable=None if progress else True) as bar:

            def errs(number: int) -> bool:
                if number not in wrong:
                    bar.update()
                    wrong[number] = runs.errs(number, made)
                return wrong[number]

            flip = first_defect(side, found, lambda numbers: next(filter(errs, sorted(numbers & differs)), None))
    record = side.records[flip.record]
    reach = side.upstream(record) | {record.id}
    before = [side.records[number] for number in sorted(reach & differs)]
    recorded = _of_kind(choices(record, side.call(record.id), side.find), flip)
    with tqdm(desc="swap", unit="replay", disable=None if progress else True) as bar:

        def restores(taken: frozenset[int]) -> bool:
            bar.update()
            made = _of_kind(runs.choices(record.id, runs.run(reach, taken)), flip)
            return made is not None and made == recorded

        return search(flip, before, restores)


def first_defect(side: Side, found: list[Flip], errs: Callable[[set[int]], int | None]) -> Flip:
    """The first flip that is a defect; where there is none, the first flip, which is a tie.

    As in `tandem.parity.diff`: a call outside its class at or before a decision makes a flip a defect; else an earlier
    flip explains it, or noise does, or nothing.

    Args:
        errs: the first of these calls that is outside its class, None where all are inside.
    """
    noise, before, named = LegalNoise(side), set[int](), list[Flip]()
    for flip in found:
        record = side.records[flip.record]
        reach = side.upstream(record)
        cause = errs(reach | {record.id})
        if cause is not None:
            return dataclasses.replace(flip, verdict="defect", cause=cause)
        if before & reach:
            continue
        told = flip
        if not flip.near:
            rows = noise(record)
            told = dataclasses.replace(flip, legal=float(rows[flip.row]) if flip.row < len(rows) else 0.0)
        if not told.near:
            return dataclasses.replace(told, verdict="defect")
        named.append(dataclasses.replace(told, verdict="tie"))
        before.add(record.id)
    return named[0]


def _flips(side: Side, runs: FreeRuns, made: Outputs, differs: set[int]) -> Iterator[Flip]:
    """Decisions that a run took otherwise, in the order of the run."""
    for record in side.trace.records:
        reached = record.id in differs or any(number in differs for number in side.before(record))
        if record.id not in made or not reached:
            continue
        if side.parts_decide(record):
            continue
        one, two = choices(record, side.call(record.id), side.find), runs.choices(record.id, made)
        for mine, theirs in zip(one, two, strict=False):
            yield from flips(record, mine, theirs, _floor(side, record))


def _of_kind(made: list[Choice], flip: Flip) -> frozenset[int] | None:
    """What was chosen in the row of a flip."""
    return next((found.chosen[flip.row] for found in made if found.kind == flip.kind), None)


def _floor(side: Side, record: Record) -> Any:
    return lambda: score_noise(record, side.call(record.id), side.find)
