"""Forty causes of slower training steps, measured as they are and patched, and what is said.

    python -m benchmarks.causes --record [--out DIR] [--only NAME ...] [--limit SECONDS]
    python -m benchmarks.causes --from DIR                         scores it; needs no GPU

Three processes record the steps as they are, three with each step's cause, and three the steps as
they are once more, in turns: what was measured is kept after each of them, and the same command
goes on with it. A step as it is is measured once for all of its causes, and kernels are counted by
the first process of each side: later ones only say how far they vary. Packages of others have to be
on PYTHONPATH, in a folder that is not called site-packages: their lines are to count as code that
somebody could change.

In DIR are then expected.json, written before anything is run; clean-1.json.xz, patched-1.json.xz,
again-1.json.xz and so on, a run of each process; and, once they are scored, results.json, and in
the folder judged what it was made of.
Exits with 1 where less is found than has to be, and with 4 where nothing was measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.causes import patches, scores
from benchmarks.causes.patches import Expected
from benchmarks.causes.scores import RESULTS, Score
from pytest_gpuperf.errors import GpuperfError, UsageFailure
from pytest_gpuperf.storage import files, run_files

ROOT = Path(__file__).resolve().parents[2]
TESTS = "benchmarks/causes/test_causes.py"
CLEAN, PATCHED, AGAIN = "clean", "patched", "again"
PROCESSES = 3
EXPECTED, JUDGED = "expected.json", "judged"

PLACES, KINDS, UNCOUNTED = 28, 27, 24
"""Of the thirty that are not held out, how many have to have the right place and kind; and be found
without counters."""

_OUT = Path(".gpuperf") / "causes"
_NOTHING = 4


def turns(processes: int) -> list[tuple[str, int]]:
    """Which side is recorded when, and which of its processes that is."""
    sides = (CLEAN, PATCHED, AGAIN)
    return [(side, number) for number in range(1, processes + 1) for side in sides]


def record(folder: Path, names: Sequence[str], processes: int, limit: float) -> None:
    """Records what is missing, as long as the next recording will probably end within `limit` s."""
    folder.mkdir(parents=True, exist_ok=True)
    present = [patches.causes()[name] for name in names if patches.present(patches.causes()[name])]
    if absent := [name for name in names if name not in {cause.name for cause in present}]:
        _say(f"without {', '.join(absent)}: the code that they patch is not on PYTHONPATH")
    _write(folder / EXPECTED, [asdict(patches.expected(cause)) for cause in present])
    begun = time.monotonic()
    longest = 0.0
    for side, number in turns(processes):
        file = folder / f"{side}-{number}.json.xz"
        if file.exists():
            continue
        before = time.monotonic()
        if before + longest - begun > limit:
            _say(f"{side} {number} is left out: {limit:g} s would not be enough")
            return
        _record(file, side, names, kernels=number == 1)
        longest = max(longest, time.monotonic() - before)
        _say(f"{side} {number} of {processes}: {time.monotonic() - before:.0f} s")


def _record(file: Path, side: str, names: Sequence[str], *, kernels: bool) -> None:
    """One process, into a run of its own: a test that fails in one of them is there in others."""
    measured = names if side == PATCHED else scores.one_of_each_step(names)
    tests = [f"{TESTS}::test_cause[{name}]" for name in measured]
    patched = ["--patched"] if side == PATCHED else []
    flags = [*tests, *patched, "--gpuperf-kernels", "always" if kernels else "never"]
    command = ["record", "--processes", "1", "--run", str(file), "--", *flags]
    subprocess.run([sys.executable, "-m", "pytest_gpuperf", *command], cwd=ROOT, check=False)


def recorded(folder: Path, side: str) -> list[Path]:
    """The runs of one side."""
    return sorted(folder.glob(f"{side}-*.json.xz"))


def _merged(folder: Path, side: str, *, counters: bool) -> Path:
    """All processes of a side in one run, without their counters if those are not wanted.

    A step as it is is that of each of its causes.
    """
    run = run_files.merged([run_files.load(file) for file in recorded(folder, side)], side)
    if side == CLEAN:
        run = scores.of_every_cause(run)
    file = folder / JUDGED / f"{side}{'' if counters else '-uncounted'}.json.xz"
    run_files.save(run if counters else scores.without_counters(run), file)
    return file


def judged(folder: Path, side: str, *, counters: bool) -> scores.Report:
    """The report of one side, judged by the clean one; without its counters if they are not wanted.

    Raises UsageFailure where they cannot be judged.
    """
    clean, run = (_merged(folder, name, counters=counters) for name in (CLEAN, side))
    stem = run.name.removesuffix(".json.xz")
    baselines, report = run.with_name(f"{stem}-baselines"), run.with_name(f"{stem}.json")
    shutil.rmtree(baselines, ignore_errors=True)  # there may be more processes now
    reason = ["--reason", "as it is", "--yes", "--force"]
    _quietly(
        *("pytest_gpuperf", "update-baseline", str(clean), *reason),
        *("--baselines", str(baselines)),
        writes=baselines,
    )
    report.unlink(missing_ok=True)
    _quietly(
        *("pytest", "-p", "no:cacheprovider"),
        *sorted({m.test for m in run_files.load(run).measurements}),
        *("--gpuperf-replay", str(run), "--gpuperf-baselines", str(baselines)),
        *("--gpuperf-kernels", "always", "--gpuperf-report", str(report)),
        writes=report,
    )
    read: scores.Report = json.loads(report.read_text(encoding="utf-8"))
    return read


def score(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """What is said of what was recorded in a folder: with counters, without, of identical code."""
    entries = json.loads((folder / EXPECTED).read_text(encoding="utf-8"))
    expected = [Expected(**e) for e in entries if e["name"] in names]
    results: dict[str, Any] = {}
    for title, counters in (("counted", True), ("uncounted", False)):
        scored = scores.scores(judged(folder, PATCHED, counters=counters), expected)
        results[title] = [asdict(one) for one in scored]
        print(f"\n{title}:", *scores.lines(scored), scores.summary(scored), sep="\n")
        if recorded(folder, AGAIN):
            blamed, among = scores.blamed(judged(folder, AGAIN, counters=counters), expected)
            results[f"{title}, identical code"] = {"blamed": blamed, "of": among}
            print(f"identical code: nothing said of {among - len(blamed)} of {among}", *blamed)
    _write(folder / RESULTS, results)
    return results


def enough(results: dict[str, Any]) -> bool:
    """Whether as much is found as has to be, of thirty or of as many as were measured."""
    every = ([Score(**s) for s in results[title]] for title in ("counted", "uncounted"))
    counted, uncounted = ([one for one in scored if not one.held_out] for scored in every)
    due = [cause for cause in patches.causes().values() if not cause.held_out]
    missing = max(0, len(due) - len(counted))
    return (
        all(one.regressed for one in counted if one.due)
        and sum(one.right_place for one in counted) >= PLACES - missing
        and sum(one.right_kind for one in counted) >= KINDS - missing
        and sum(one.regressed for one in uncounted) >= UNCOUNTED - missing
        and all(one.in_interval for one in counted)
        and not any(of.get("blamed") for of in results.values() if isinstance(of, dict))
    )


def main(arguments: list[str] | None = None) -> int:
    """Records, or scores what was recorded."""
    every = list(patches.causes())
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", action="store_true", help="measure; score it with --from")
    what.add_argument("--from", dest="scored", type=Path, metavar="DIR", help="score what is there")
    what.add_argument("--list", action="store_true", help="show what is expected of each cause")
    parser.add_argument(
        "--out", type=Path, default=_OUT, metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="NAME")
    parser.add_argument("--processes", type=int, default=PROCESSES, metavar="K")
    parser.add_argument(
        "--limit", type=float, default=540.0, metavar="SECONDS", help="default: %(default)g"
    )
    options = parser.parse_args(arguments)
    if options.list:
        for name in options.only:
            _show(patches.causes()[name])
        return 0
    # Commands run in another folder.
    folder = (options.scored or options.out).resolve()
    if options.record:
        record(folder, options.only, options.processes, options.limit)
    if not (recorded(folder, CLEAN) and recorded(folder, PATCHED)):
        _say(f"{folder} has no runs of both sides: record it with --record --out DIR")
        return _NOTHING
    if options.record:
        return 0
    try:
        return int(not enough(score(folder, options.only)))
    except GpuperfError as error:
        _say(str(error))
        return _NOTHING


def _show(cause: patches.Cause) -> None:
    try:
        one = patches.expected(cause)
        place = f"{one.file}:{one.first}" + (f"-{one.last}" if one.last > one.first else "")
    except patches.BadPatch as error:
        place = str(error)
    print(f"{cause.name} ({cause.step}), {' or '.join(cause.kinds)}: {place} {cause.modules}")


def _quietly(module: str, *arguments: str, writes: Path) -> None:
    """A command whose output is shown only where it did not write what it should: tests fail here.

    Raises UsageFailure then.
    """
    command = [sys.executable, "-m", module, *arguments]
    finished = subprocess.run(
        command, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if not writes.exists():
        raise UsageFailure(f"{finished.stdout}\n{writes} was not written: see above")


def _write(file: Path, content: object) -> None:
    files.write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
