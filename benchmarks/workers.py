"""Workers of pytest-xdist with a GPU each: how much sooner, and whether anything is said otherwise.

    python -m benchmarks.workers --record DIR [--baseline N] [--alone 2] [--beside 2] [--workers N]
                                 [--limit S] -- PYTEST-ARGS
    python -m benchmarks.workers --from DIR [--workers N]
    python -m benchmarks.workers --starts 50 [--workers 4]

The first runs sessions of these arguments on the GPUs of this machine: with `-n 1`, two on each GPU
after the other, and with `-n N` (default: as many as there are GPUs). What they measured and how
long they took is kept in DIR, and the same command goes on with what is missing. Then, or with
--from, it prints the time of `-n N` over that of `-n 1`, which tests were judged otherwise, and how
far measurements on one GPU are apart in either. Exits with 1 where a bound is missed. The first
session does not count: it fills the compilers' caches. Where the project has no baseline of these
GPUs, so many further sessions of --baseline take its place, which are accepted as one in DIR, and
the others are judged by it; one in which a test fails ends the recording. None is begun that would
take longer than --limit allows, by the longest before it. With --gpuperf-no-judge only times and
what is apart are compared.

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
from statistics import fmean, median

from scipy.stats import f

from benchmarks.projects import ROOT, environment, project
from pytest_gpuperf.baselines.judgement import Lack, lacking
from pytest_gpuperf.errors import BadFile, GpuperfError
from pytest_gpuperf.judge.tolerance import ANY
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import run_files

ALONE, BESIDE, BASELINE = "alone", "beside", "baseline"
FIRST = "first"
TIMES = "seconds.json"
MOST_SHARE = {2: 0.55, 4: 0.32}
"""Of the time of one worker, by the number of workers."""
SPREAD = ("cycles", "instructions", "kernel_time", "step_time")
ALARMS = {Outcome.REGRESSED, Outcome.BROKEN}
NOT_JUDGED = {Outcome.REPORTED, Outcome.UNSUPPORTED, Outcome.NO_BASELINE}
_CHANCE = 0.05
"""How often spreads of which none is larger may be called so."""
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
        assert seen.uuid == os.environ["CUDA_VISIBLE_DEVICES"] == uuids[0]
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
    for number in range(max(counts[ALONE], counts[BESIDE])):
        if number < counts[ALONE]:
            # The first that is visible is the one that a single worker has. Two on each: how far
            # apart one is by itself is what several are held against.
            first = number // 2 % len(gpus)
            visible = [*gpus[first:], *gpus[:first]]
            session(folder / f"{ALONE}-{number}.json.xz", 1, visible, judged)
        if number < counts[BESIDE]:
            session(folder / f"{BESIDE}-{number}.json.xz", workers, gpus, judged)


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
class Apart:
    """How far a test's medians on one GPU are apart from run to run: standard deviations, pooled,
    relative.
    """

    several: float
    one: float
    """With one worker."""
    most: float
    """What chance makes of `one`: of equal spreads one is always the larger."""


def apart(alone: Sequence[Run], beside: Sequence[Run]) -> dict[str, Apart]:
    """That of runs of one worker and of several, by metric; without one that is in one run only.

    On GPUs that are in both: a GPU's clock may change from run to run, and its neighbour's not.
    Without what a test tolerates any change of.
    """
    gpus = _gpus(alone) & _gpus(beside)
    one, several = (_spreads(runs, gpus) for runs in (alone, beside))
    found = {}
    for metric in one.keys() & several.keys():
        (wide, freedom), (usual, freedom_alone) = several[metric], one[metric]
        chance = float(f.isf(_CHANCE / len(SPREAD), freedom, freedom_alone))
        found[metric] = Apart(wide, usual, usual * math.sqrt(chance))
    return found


def _gpus(runs: Sequence[Run]) -> set[str]:
    """Those that measured, by what tells them from others."""
    return {one.fingerprint.device.identity for run in runs for one in run.measurements}


def _spreads(runs: Sequence[Run], gpus: Collection[str]) -> dict[str, tuple[float, int]]:
    """The standard deviations, and their degrees of freedom."""
    logs: dict[tuple[str, ...], list[float]] = {}
    for run in runs:
        for one in run.measurements:
            identity = one.fingerprint.device.identity
            for sample in one.samples:
                judged = sample.phase == STEP and one.tolerance.get(sample.metric) != ANY
                if judged and sample.metric in SPREAD and identity in gpus:
                    key = (sample.metric, one.test, one.name, identity)
                    logs.setdefault(key, []).append(math.log(median(sample.values)))
    pooled = {}
    for metric in SPREAD:
        groups = [values for key, values in logs.items() if key[0] == metric and len(values) > 1]
        squares = math.fsum((v - fmean(group)) ** 2 for group in groups for v in group)
        if groups:
            freedom = sum(len(group) - 1 for group in groups)
            pooled[metric] = math.sqrt(squares / freedom), freedom
    return pooled


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
    unknown = lacks.pop(Lack.NO_BASELINE, 0)
    silent = lacks.total()
    measured = [len(run.measurements) for run in runs[BESIDE]]
    lines = [
        f"-n {workers}: {median(times[BESIDE]):.1f} s of {len(times[BESIDE])} sessions, -n 1: "
        f"{median(times[ALONE]):.1f} s of {len(times[ALONE])}; share {share:.3f}, "
        f"at most {most_share} is asked for",
        f"{' to '.join(map(str, sorted({min(measured), max(measured)})))} measurements a session",
    ]
    judged = bool(alone or beside)
    said = [
        f"with {workers} workers {alarms} metrics with an alarm, {silent} measurements that were "
        "not judged" + (f", and {unknown} without a baseline" if unknown else ""),
        f"{len(otherwise)} of {len(alone)} verdicts are others than those of one worker"
        + "".join(
            f"\n  {' '.join(key)}: {_listed(alone[key])}, and {_listed(beside[key])}"
            for key in otherwise
        ),
    ]
    lines += said if judged else ["nothing was judged"]
    compared = apart(runs[ALONE], runs[BESIDE])
    for metric in filter(compared.__contains__, SPREAD):
        of = compared[metric]
        lines.append(
            f"{metric}: {of.several:.2e} apart on one GPU, and {of.one:.2e} with one worker; "
            f"chance makes up to {of.most:.2e} of that"
        )
    if not compared:
        lines.append("one worker has measured no test twice on one GPU: spreads are not compared")
    return "\n".join(lines) + "\n", not (
        share > most_share
        or alarms
        or (judged and silent)
        or otherwise
        or any(of.several > of.most for of in compared.values())
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
    parser.add_argument("--alone", type=int, default=2, metavar="N", help="sessions of one worker")
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
    gpus = () if options.folder else tuple(gpu.uuid for gpu in nvml.visible_gpus())
    if not (gpus or options.folder):
        print("there is no GPU here", file=sys.stderr)
        return _NOTHING
    if options.starts:
        return int(starts(options.starts, options.workers or 4, len(gpus)) > 0)
    workers = options.workers or len(gpus) or 2
    ended = False
    try:
        if options.record:
            counts = {BASELINE: options.baseline, ALONE: options.alone, BESIDE: options.beside}
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
