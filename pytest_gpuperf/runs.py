"""Run files: the measurements and verdicts of one invocation, as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from pytest_gpuperf import clock, files, kernel_files, timeline
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.model import Measurement, Run

SCHEMA = 1
FOLDER = Path(".gpuperf") / "runs"
_REMEDY = "Measure again, or use another run; nothing was changed"


def new_file(root: Path) -> Path:
    """A name for a new run under `root`. Names sort by time, and no two runs share one."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    return root / FOLDER / f"{stamp}-{os.getpid()}.json"


def newest(root: Path) -> Path:
    """The latest run saved under `root`. Raises UsageFailure when there is none."""
    found = sorted((root / FOLDER).glob("*.json"))
    if not found:
        raise UsageFailure(
            f"no run under {root / FOLDER}. Make one with pytest or "
            "`gpuperf record`, or name the run's file"
        )
    return found[-1]


def save(run: Run, file: Path) -> None:
    """Writes `run` as JSON, indented so that a diff is readable; compressed for a name in .xz."""
    text = json.dumps(files.to_plain(run), indent=1, ensure_ascii=False) + "\n"
    with files.locked(str(file.resolve())):
        files.write_atomically(file, files.packed(text, file))


def load(file: Path) -> Run:
    """The run in `file`. Raises BadFile or UsageFailure; the file is never changed."""
    try:
        data = files.read_json(file, _REMEDY)
    except FileNotFoundError:
        raise UsageFailure(f"{file}: no such run file") from None
    run = files.validate(data, Run, file, SCHEMA, _REMEDY)
    _check(run, file)
    return run


def _check(run: Run, file: Path) -> None:
    """What the types cannot say: metrics are known, sampled once per phase, and have values."""
    from pytest_gpuperf.metrics import catalogue

    known = catalogue().metrics
    for number, measurement in enumerate(run.measurements):
        seen: set[tuple[str, str]] = set()
        for index, sample in enumerate(measurement.samples):
            where = f"measurements/{number}/samples/{index}"
            series = f"{sample.metric} of {sample.phase}"
            if sample.metric not in known:
                problem = f"no such metric in the catalogue: {sample.metric}"
                raise BadFile(file, f"{where}/metric", problem, _REMEDY)
            if not sample.values:
                raise BadFile(file, f"{where}/values", f"no value for {series}", _REMEDY)
            if (sample.phase, sample.metric) in seen:
                raise BadFile(file, where, f"a second sample of {series}", _REMEDY)
            seen.add((sample.phase, sample.metric))
        for index, unsupported in enumerate(measurement.unsupported):
            if unsupported.metric not in known:
                where = f"measurements/{number}/unsupported/{index}/metric"
                problem = f"no such metric in the catalogue: {unsupported.metric}"
                raise BadFile(file, where, problem, _REMEDY)
        table = measurement.kernels
        for where, problem in kernel_files.problems(table) if table else ():
            raise BadFile(file, f"measurements/{number}/kernels/{where}", problem, _REMEDY)
        sampled = measurement.timeline
        for where, problem in timeline.problems(sampled) if sampled else ():
            raise BadFile(file, f"measurements/{number}/timeline/{where}", problem, _REMEDY)


def merged(runs: Sequence[Run], command: str) -> Run:
    """One run with the measurements of several, each of them from another process.

    Verdicts are left out: each was about one process alone.
    """
    measurements: list[Measurement] = []
    for run in runs:
        measurements.extend(run.measurements)
    return Run(SCHEMA, clock.now(), command, tuple(measurements))
