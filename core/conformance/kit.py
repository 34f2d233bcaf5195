"""Runs the conformance suites on an open backend."""

from __future__ import annotations

import time

from tqdm import tqdm

from tandem.conformance.checks import Found, Skipped
from tandem.conformance.compare import Mismatch
from tandem.conformance.jobs import Job
from tandem.conformance.levels import every_job
from tandem.conformance.report import LEVELS, Report, Result
from tandem.conformance.select import selected
from tandem.conformance.speed import measure, stated_floors
from tandem.contract.backend import Backend
from tandem.contract.opspec import CONTRACT_VERSION, table_state
from tandem.errors import ConfigError


def run(
    backend: Backend, level: str = "L1", *, quick: bool = False, case: str = "", progress: bool = False
) -> Report:
    """Run the suites up to a level.

    Args:
        backend: an open backend; it stays open.
        level: ``L0`` to ``L3``; each contains those before it.
        quick: fewer row counts and repeats; shows no level.
        case: filter of case strings ``op/case/check``; `selected` says what it means.
        progress: show a progress bar where standard error is a terminal.
    Raises:
        ConfigError: there is no such level, or no check of it matches ``case``.
    """
    if level not in LEVELS:
        raise ConfigError(
            f"'{level}' is not a conformance level",
            where="level",
            why=f"levels are {', '.join(LEVELS)}",
            fix="name one of them",
        )
    jobs = list(every_job(backend, level, quick))
    names = selected((job.name for job in jobs), case)
    chosen = [job for job in jobs if job.name in names]
    if not chosen:
        raise ConfigError(
            "no check matches",
            where=f"case '{case}'",
            why=f"none of the {len(jobs)} case strings op/case/check of level {level} contains it",
            fix="leave it out to see all in results.json, or name a part, as 'linear/' or '/values'",
        )
    bar = tqdm(chosen, unit="check", disable=None if progress else True)
    results = [run_job(job) for job in bar]
    speed = {} if case or level != "L3" else measure(backend, quick)
    return Report(
        backend=backend.name,
        index=backend.device.index or 0,
        verification=backend.caps.verification,
        level=level,
        quick=quick,
        case=case,
        results=results,
        fingerprint=backend.fingerprint(),
        contract=f"{'.'.join(map(str, CONTRACT_VERSION))}, op table {table_state()}",
        batch_invariant=backend.caps.batch_invariant,
        speed=speed,
        floors=stated_floors(backend) if level == "L3" else {},
    )


def run_job(job: Job) -> Result:
    """A check's result; whatever an implementation raises is a failure of the check."""
    failure = skipped = None
    measured: Found = {}
    start = time.perf_counter()
    try:
        measured = job.run()
    except Skipped as reason:
        skipped = str(reason)
    except Mismatch as found:
        failure = str(found)
    except Exception as error:
        failure = f"raised {type(error).__name__}: {error}"
    seconds = time.perf_counter() - start
    return Result(job.suite, job.op, job.case, job.check, seconds, failure, skipped, measured)
