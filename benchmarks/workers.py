"""Workers of pytest-xdist with a GPU each: how much sooner, and whether anything is said otherwise.

    python -m benchmarks.workers --record DIR [--baseline N] [--alone N] [--beside 2] [--workers N]
                                 [--limit S] -- PYTEST-ARGS
    python -m benchmarks.workers --from DIR [--workers N]
    python -m benchmarks.workers --starts 50 [--workers 4]

The first runs sessions of these arguments on the GPUs of this machine: with `-n 1`, on one GPU
after the other (default: twice on each), and with `-n N` (default: as many as there are GPUs). What
they measured and how long they took is kept in DIR, and the same command goes on with what is
missing. Then, or with --from, it prints the time of `-n N` over that of `-n 1`, which tests were
judged otherwise, and how far measurements on one GPU are apart in either. Exits with 1 where a
bound is missed. The first session does not count: it fills the compilers' caches. Where the project
has no baseline of these GPUs, so many further sessions of --baseline take its place, which are
accepted as one in DIR, and the others are judged by it; one in which a test fails ends the
recording. None is begun that would take longer than --limit allows, by the longest before it. With
--gpuperf-no-judge only times and what is apart are compared.

--starts begins so many sessions of four workers. Each test makes sure that it sees one GPU, the
one that it was given, and leaves a file under its name: who finds one there was given a GPU twice.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from scipy.stats import f

from benchmarks.projects import ROOT, environment, project
from pytest_gpuperf.baselines.judgement import Unjudged, lacking
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import BadFile, GpuperfError
from pytest_gpuperf.judge.tolerance import LEAST_SHARE, default_scale, parse
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import run_files

ALONE, BESIDE, BASELINE = "alone", "beside", "baseline"
FIRST = "first"
TIMES = "seconds.json"
MOST_SHARE = {2: 0.55, 4: 0.32}
"""Of the time of one worker, by the number of workers."""
SPREAD = ("cycles", "instructions", "kernel_time", "step_time")
WITHIN, BETWEEN = PLACES = ("in a session", "between sessions")
ALARMS = {Outcome.REGRESSED, Outcome.BROKEN}
NOT_JUDGED = {Outcome.REPORTED, Outcome.UNSUPPORTED, Outcome.NO_BASELINE}
_CHANCE = 0.05
"""How often spreads of which none is larger may be called so."""
_DOUBLED = 1.0
_NOTHING = 4
_AT_ONCE = 8
"""Sessions of --starts; a GPU is nobody's across sessions until something is measured."""

_TESTS = """
import os
from pathlib import Path

import pytest
from pytest_gpuperf.measure.device import driver, nvml


def hold(uuids):
    for uuid in uuids:
        Path(uuid).touch(exist_ok=False)  # two that hold one GPU see each other's
    with driver.load().primary_context():
        (seen,) = nvml.visible_gpus()
        assert seen == os.environ["CUDA_VISIBLE_DEVICES"] == uuids[0]
    for uuid in uuids:
        Path(uuid).unlink()


@pytest.mark.parametrize("number", range({tests}))
def test_one(gpuperf, number):
    hold([os.environ["CUDA_VISIBLE_DEVICES"]])


@pytest.mark.gpus({gpus})
def test_all(gpuperf):
    assert len(set(gpuperf.gpus)) == {gpus}
    hold(gpuperf.gpus)
"""


def starts(count: int, workers: int, gpus: int) -> int:
    """Begins so many sessions, prints what went wrong, and returns how many did."""
    begun = time.monotonic()

    def start(number: int) -> str:
        with tempfile.TemporaryDirectory(prefix=f"start-{number}-") as name:
            folder = project(Path(name), _TESTS.format(tests=workers, gpus=gpus))
            command = [sys.executable, "-m", "pytest", "-q", f"-n{workers}", "--gpu-arch=auto"]
            done = subprocess.run(
                [*command, "-p", "no:cacheprovider"],
                cwd=folder,
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            good = done.returncode == 0 and f"{workers + 1} passed" in done.stdout
            return "" if good else done.stdout + done.stderr

    wrong = []
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for number, said in enumerate(threads.map(start, range(count)), 1):
            wrong += [said] * bool(said)
            print(f"start {number}: {'wrong' if said else 'right'}", file=sys.stderr, flush=True)
    for said in wrong[:1]:
        print(said)
    print(
        f"{count} starts of {workers} workers on {gpus} GPUs, {workers + 1} tests each, in "
        f"{time.monotonic() - begun:.0f} s: a GPU was given twice, or a test failed, in "
        f"{len(wrong)}"
    )
    return len(wrong)


class Ended(GpuperfError):
    """Sessions are missing that could not be run."""


def record(
    folder: Path,
    counts: Mapping[str, int],
    workers: int,
    gpus: Sequence[str],
    args: Sequence[str],
    limit: float = math.inf,
) -> None:
    """Runs the sessions that are missing: those before, then in turn on one GPU and on all.

    Raises Ended where one of the baseline's has failed, and after `limit` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / TIMES
    seconds = json.loads(file.read_bytes()) if file.exists() else {}
    begun = time.monotonic()

    def session(run: Path, workers: int, visible: Sequence[str], args: Sequence[str]) -> None:
        if run.name in seconds:
            return
        kind = run.name.partition("-")[0]
        longest = max((took for name, took in seconds.items() if name.startswith(kind)), default=0)
        if time.monotonic() - begun + longest > limit:
            raise Ended(f"{run.name}: no time is left for it. The same command goes on with it")
        took, failed = _session(run, workers, visible, args)
        print(f"{run.name}: {took} s", file=sys.stderr, flush=True)
        if failed and kind == BASELINE:
            raise Ended(f"{run.name}: a test failed, see above; nothing can be judged by that")
        seconds[run.name] = took
        file.write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")

    accepted = folder / f"{BASELINE}s"
    judged = [*args, f"--gpuperf-baselines={accepted}"] if counts[BASELINE] else args
    runs = [folder / f"{BASELINE}-{number}.json.xz" for number in range(counts[BASELINE])]
    for run in (folder / f"{FIRST}.json.xz", *runs):
        session(run, workers, gpus, [*judged, "--gpuperf-missing=warn"])
    if counts[BASELINE] and not accepted.exists():
        command = ["-m", "pytest_gpuperf", "update-baseline", "--yes", "--force", "--reason"]
        command += ["benchmarks.workers", f"--baselines={accepted}", *map(str, runs)]
        subprocess.run([sys.executable, *command], cwd=ROOT, env=environment(), check=True)
    # Both kinds over the whole time, in which GPUs get warm and their clocks fall.
    turns = [
        ((number + 0.5) / counts[kind], kind, number)
        for kind in (ALONE, BESIDE)
        for number in range(counts[kind])
    ]
    for _, kind, number in sorted(turns):
        # The first that is visible is the one that a single worker has: each in turn.
        first = number % len(gpus) if kind == ALONE else 0
        visible = [*gpus[first:], *gpus[:first]]
        run = folder / f"{kind}-{number}.json.xz"
        session(run, 1 if kind == ALONE else workers, visible, judged)


def _session(
    run: Path, workers: int, gpus: Sequence[str], args: Sequence[str]
) -> tuple[float, bool]:
    """Runs one, and returns the seconds that it took, and whether a test failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"-n{workers}"]
    begun = time.monotonic()
    done = subprocess.run(
        [*command, f"--gpuperf-run={run}", *args],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES=",".join(gpus)),
        check=False,
    )
    return round(time.monotonic() - begun, 2), done.returncode != 0


@dataclass(frozen=True)
class Spread:
    """A standard deviation on one GPU, pooled over GPUs, relative; and its degrees of freedom."""

    deviation: float
    freedom: int


@dataclass(frozen=True)
class Apart:
    """How far apart with several workers, and with one."""

    several: Spread
    one: Spread
    nothing: float
    """The judge knows no smaller spread of this metric."""

    @property
    def most(self) -> float:
        """What chance makes of `one`: of equal spreads one is always the larger."""
        chance = f.isf(_CHANCE / 2 / len(SPREAD), self.several.freedom, self.one.freedom)
        return max(self.one.deviation * math.sqrt(chance), self.nothing)

    @property
    def wider(self) -> bool:
        """Whether it is more than that."""
        return self.several.deviation > self.most


def apart(alone: Sequence[Run], beside: Sequence[Run]) -> dict[tuple[str, str], Apart]:
    """How far apart one code is measured, by metric and by where: in a session, between sessions.

    All tests of a session share the GPU's clock, which moves by 15 MHz (0.75 %) from session to
    session: that takes sessions to show, and its neighbours' clocks say nothing of it. So only GPUs
    are compared that both kinds measured, and what all tests of a session have in common is taken
    by itself. Without what is the host's time, by the test's tolerance: one step in a hundred takes
    far longer there, and variances say nothing of such.
    """
    gpus = _gpus(alone) & _gpus(beside)
    found = {}
    for metric in SPREAD:
        one, several = (_spreads(runs, gpus, metric) for runs in (alone, beside))
        nothing = LEAST_SHARE * default_scale(catalogue().metrics[metric].metric_class)
        for where in one.keys() & several.keys():
            found[metric, where] = Apart(several[where], one[where], nothing)
    return found


def _gpus(runs: Sequence[Run]) -> set[str]:
    """Those that measured, by what tells them from others."""
    return {one.fingerprint.device.identity for run in runs for one in run.measurements}


def _spreads(runs: Sequence[Run], gpus: Collection[str], metric: str) -> dict[str, Spread]:
    """Within a session, and between sessions, as far as there is something to compare."""
    squares = dict.fromkeys(PLACES, 0.0)
    freedom = dict.fromkeys(PLACES, 0)
    for gpu in gpus:
        # By test and session. What was measured once has nothing to be compared with.
        logs = _logs(runs, gpu, metric)
        times = Counter(test for test, _ in logs)
        rows = [row for row in logs if times[row[0]] > 1]
        tests, sessions = (sorted({row[at] for row in rows}) for at in (0, 1))
        if not rows:
            continue
        # log(value) = test + session + rest, where the first session's is 0; by least squares.
        terms = [*tests, *sessions[1:]]
        model = np.array([[term in row for term in terms] for row in rows], float)
        values = np.array([logs[row] for row in rows])
        effects, _, rank, _ = np.linalg.lstsq(model, values, rcond=None)
        rest = values - model @ effects
        squares[WITHIN] += float(rest @ rest)
        freedom[WITHIN] += len(rows) - int(rank)
        if rank == len(terms):  # else sessions had no test in common
            of_sessions = np.append(effects[len(tests) :], 0.0)
            squares[BETWEEN] += float(of_sessions.var() * len(sessions))
            freedom[BETWEEN] += len(sessions) - 1
    return {
        where: Spread(math.sqrt(squares[where] / freedom[where]), freedom[where])
        for where in PLACES
        if freedom[where]
    }


def _logs(runs: Sequence[Run], gpu: str, metric: str) -> dict[tuple[str, int], float]:
    """The logarithms of medians, by test and the session's number."""
    return {
        (f"{one.test} {one.name}", session): math.log(median(sample.values))
        for session, run in enumerate(runs)
        for one in run.measurements
        for sample in one.samples
        if one.fingerprint.device.identity == gpu
        and not _is_the_hosts(one, metric)
        and (sample.phase, sample.metric) == (STEP, metric)
    }


def _is_the_hosts(one: Measurement, metric: str) -> bool:
    """Whether the test says so: its tolerance has room for a doubling, or for any change."""
    written = one.tolerance.get(metric)
    return written is not None and parse(written, catalogue().metrics[metric]) >= _DOUBLED


def outcomes(runs: Sequence[Run]) -> dict[tuple[str, str, str, str], set[Outcome]]:
    """What was said of each metric that was judged, over the runs."""
    said: dict[tuple[str, str, str, str], set[Outcome]] = {}
    for run in runs:
        for verdict in run.verdicts:
            if verdict.outcome not in NOT_JUDGED:
                key = (verdict.test, verdict.name, verdict.phase, verdict.metric)
                said.setdefault(key, set()).add(verdict.outcome)
    return said


def table(folder: Path, workers: int) -> tuple[str, bool]:
    """What the recorded sessions come to, and whether every bound is met.

    Raises BadFile where one of the two kinds is missing.
    """
    file = folder / TIMES
    seconds = json.loads(file.read_bytes()) if file.exists() else {}
    runs: dict[str, list[Run]] = {}
    times: dict[str, list[float]] = {}
    for name, took in seconds.items():
        kind = name.partition("-")[0]
        if kind not in (ALONE, BESIDE):
            continue
        times.setdefault(kind, []).append(took)
        runs.setdefault(kind, []).append(run_files.load(folder / name))
    if {*runs} != {ALONE, BESIDE}:
        remedy = "Record it: --record DIR -- PYTEST-ARGS"
        raise BadFile(file, "", "sessions of one worker and of several are needed", remedy)
    share = median(times[BESIDE]) / median(times[ALONE])
    most_share = MOST_SHARE.get(workers, 1.0)
    alone, beside = (outcomes(runs[kind]) for kind in (ALONE, BESIDE))
    otherwise = [key for key in alone if key in beside and alone[key] != beside[key]]
    alarms = sum(bool(ALARMS & said) for said in beside.values())
    lacks = Counter(lack for run in runs[BESIDE] for _, lack in lacking(run.results()) if lack)
    unknown = lacks.pop(Unjudged.NO_BASELINE, 0)
    silent = lacks.total()
    measured = [len(run.measurements) for run in runs[BESIDE]]
    lines = [
        f"A session took {median(times[BESIDE]):.1f} s with -n {workers} (median of "
        f"{len(times[BESIDE])}) and {median(times[ALONE]):.1f} s with -n 1 (median of "
        f"{len(times[ALONE])}). That is {share:.3f} of the time; the goal is at most {most_share}.",
        "",
        f"Each session had {' to '.join(map(str, sorted({min(measured), max(measured)})))} "
        "measurements.",
    ]
    judged = bool(alone or beside)
    said = [
        f"With -n {workers}, {alarms} metrics raised a false alarm, and {silent} measurements "
        "had no verdict"
        + (f" ({unknown} more have no baseline)" if unknown else "")
        + f". {len(otherwise)} of {len(alone)} verdicts differ from those with -n 1."
        + "".join(
            f"\n  {' '.join(key)}: {_listed(alone[key])}, and {_listed(beside[key])}"
            for key in otherwise
        ),
    ]
    lines += said if judged else ["nothing was judged"]
    compared = apart(runs[ALONE], runs[BESIDE])
    if compared:
        lines += [
            "",
            f"| spread on one GPU | -n {workers} | -n 1 | limit for -n {workers} |",
            "| --- | ---: | ---: | ---: |",
        ]
    lines += [
        f"| `{metric}` {where} | {of.several.deviation:.2e} | {of.one.deviation:.2e} | "
        f"{of.most:.2e} |"
        for (metric, where), of in sorted(compared.items())
    ]
    wider = sum(of.wider for of in compared.values())
    lines += (
        ["", f"{wider} of {len(compared)} spreads are wider than with -n 1."] if compared else []
    )
    if not compared:
        lines.append("one worker has measured no test twice on one GPU: spreads are not compared")
    return "\n".join(lines) + "\n", not (
        share > most_share
        or alarms
        or (judged and silent)
        or otherwise
        or any(of.wider for of in compared.values())
    )


def _listed(said: set[Outcome]) -> str:
    return " or ".join(sorted(outcome.value for outcome in said))


def main(arguments: Sequence[str] | None = None) -> int:
    """Records, prints what was recorded, or starts workers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", type=Path, metavar="DIR", help="measure what is missing there")
    what.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="print what is there")
    what.add_argument("--starts", type=int, metavar="N", help="begin so many sessions")
    parser.add_argument("--alone", type=int, metavar="N", help="sessions of one worker")
    parser.add_argument("--beside", type=int, default=2, metavar="N", help="sessions of several")
    parser.add_argument(
        "--baseline",
        type=int,
        default=0,
        metavar="N",
        help="sessions to accept as a baseline before",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="in a session of several")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument("arguments", nargs="*", metavar="PYTEST-ARGS")
    options = parser.parse_args(arguments)
    gpus = () if options.folder else tuple(nvml.visible_gpus())
    if not (gpus or options.folder):
        print("there is no GPU here", file=sys.stderr)
        return _NOTHING
    if options.starts:
        return int(starts(options.starts, options.workers or 4, len(gpus)) > 0)
    workers = options.workers or len(gpus) or 2
    ended = False
    try:
        if options.record:
            alone = 2 * len(gpus) if options.alone is None else options.alone
            counts = {BASELINE: options.baseline, ALONE: alone, BESIDE: options.beside}
            folder = options.record.resolve()
            record(folder, counts, workers, gpus, options.arguments, options.limit)
    except Ended as error:
        print(error, file=sys.stderr)
        ended = True
    try:
        lines, good = table(options.folder or options.record, workers)
    except BadFile as error:
        print(error, file=sys.stderr)
        return _NOTHING
    print(lines, end="")
    return int(ended or not good)


if __name__ == "__main__":
    sys.exit(main())
