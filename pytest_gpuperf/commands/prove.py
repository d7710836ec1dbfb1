"""`gpuperf prove`: puts known slowdowns into guarded tests, and says which of them fail."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.units import duration, few, tolerance
from pytest_gpuperf.commands import here, print_failure, say, say_lines, terminal_width
from pytest_gpuperf.errors import FAILED, OK, UsageFailure
from pytest_gpuperf.judge.verdict import NEW_METRIC
from pytest_gpuperf.measure.fresh_process import Finished, FreshProcess, Start, with_flags
from pytest_gpuperf.measure.instrument import PROVEN, PROVING
from pytest_gpuperf.measure.replica import Invocation
from pytest_gpuperf.model.measurement import (
    SLOWDOWN,
    SLOWDOWN_ABSENT,
    SLOWDOWN_AT,
    SLOWDOWN_SHARE,
    STEP,
    UNSEEN,
    plain_name,
)
from pytest_gpuperf.model.proof import Firing, Proof, Trial
from pytest_gpuperf.model.result import DOUBTS, FAULTS, Result, Run, Verdict
from pytest_gpuperf.report import view
from pytest_gpuperf.report.text import proof_lines
from pytest_gpuperf.report.text.progress import Display, on_stdout
from pytest_gpuperf.report.text.step_tables import step_values
from pytest_gpuperf.storage import files, proof_files, run_files

USAGE = "gpuperf prove [--all] [--output FILE] -- PYTEST-ARGS"
EXAMPLES = ("gpuperf prove -- tests/perf", "gpuperf prove --all --output proof.json -- tests/perf")
_FOLDER = Path(".gpuperf") / "prove"
_SAMPLE = 3
"""Slowdowns per measurement without --all."""
_FLAGS = ("-q", "-rfE", "--maxfail=0", "--gpuperf-missing=fail", "--gpuperf-kernels=on-regression")
_SHOWN = 2
_WIDE = 400
_RANKS = "no slowdown can be put into a step of several ranks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf prove`."""
    parser.add_argument(
        "--all",
        dest="is_complete",
        action="store_true",
        help=f"try every slowdown in every size; default: {_SAMPLE} slowdowns per measurement",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"file of the result, for `gpuperf report --prove`; default: {_FOLDER}/<time>.json",
    )
    parser.add_argument("pytest_args", nargs="*", metavar="PYTEST-ARGS")


def act(options: argparse.Namespace) -> int:
    """Runs the tests as they are and with slowdowns, and prints the answer to each slowdown.

    Returns 0; 1 where a gate is dead, or a test does not pass without a slowdown; pytest's exit
    code where it measured nothing. Raises UsageFailure where no test measures a step.
    """
    finished = _session(options)
    results = [r for r in (finished.run.results() if finished.run else ()) if r.measurements]
    if finished.run is None or not results:
        code = print_failure(finished)
        if code:
            return code
        raise UsageFailure("no test measured a step: name tests that call gpuperf.measure")
    proof = _proof(finished, finished.run, results, options)
    project = run_files.project(Path.cwd())
    stamp = proof.created.replace(":", "").replace("-", "")
    place = options.output or project / _FOLDER / f"{stamp}.json"
    files.ignored_by_git(project / _FOLDER.parent)
    files.write_atomically(place, files.to_json(proof))
    say_lines(proof_lines.lines(proof, terminal_width()))
    say(f"{proof_lines.total(proof)}, in {duration(finished.seconds)}; {here(place)}")
    return OK if proof.holds else FAILED


def _session(options: argparse.Namespace) -> Finished:
    """A session of pytest that measures each step as it is, then with slowdowns."""
    display = Display(on_stdout)
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as own:
        chosen = Path(own) / "doses"
        chosen.mkdir()
        arguments = tuple(options.pytest_args)
        invocation = Invocation(arguments, Path.cwd(), written=("cache_dir",))
        words, added = invocation.apart(Path(own))
        added["COLUMNS"] = str(_WIDE)  # pytest shortens the reasons of failures
        added[PROVING] = f"{0 if options.is_complete else _SAMPLE} {chosen}"
        start = Start(with_flags(words, _FLAGS), Path.cwd(), added, judges=True)
        with display.of("prove"), FreshProcess(start) as process:
            display.begins("measuring")
            return process.finished(None, lambda _: display.goes_on())


def _proof(
    finished: Finished, run: Run, results: list[Result], options: argparse.Namespace
) -> Proof:
    plain = [r for r in results if SLOWDOWN not in r.first.fingerprint.settings]
    slowed = [r for r in results if SLOWDOWN in r.first.fingerprint.settings]
    tried = {(r.test, plain_name(r.first)) for r in slowed}
    tests = {*run.skipped, *(result.test for result in results)}
    failed = {test: why for test in tests if (why := _failure(test, finished.output)) is not None}
    # A test may fail for another reason than its slowdowns, and before all were tried.
    failing = {test: why for test, why in failed.items() if PROVEN not in why}
    trials = [_trial(result, is_failed=result.test in failed) for result in slowed]
    for result in plain:
        if (result.test, result.name) in tried:
            continue
        if result.test in failed or result.outcome in (*DOUBTS, None):
            failing[result.test] = "; ".join(view.reasons(result)) or "it has no verdict"
        else:
            trials.append(Trial(result.test, result.name, "any", 0.0, Firing.ABSENT, _RANKS))
    first = results[0].first.fingerprint
    return Proof(
        schema=proof_files.SCHEMA,
        created=first.measured,
        command=run_files.command_line(["gpuperf", "prove", "--", *options.pytest_args]),
        device=first.device,
        trials=tuple(trials),
        failing=failing,
        blind={r.test: said for r in plain if (said := tuple(_unseen(r)))},
    )


def _failure(test: str, output: str) -> str | None:
    """The reason for which pytest counts the test as failed; None where it does not."""
    for line in output.splitlines():
        outcome, _, why = line.partition(f" {test}")
        if outcome in ("FAILED", "ERROR") and (not why or why.startswith(" - ")):
            return why.removeprefix(" - ") or "it fails"
    return None


def _trial(result: Result, *, is_failed: bool) -> Trial:
    settings = result.first.fingerprint.settings
    firing, why = _firing(result, is_failed=is_failed)
    red = tuple(entry.metric for entry in result.said if entry.outcome in FAULTS)
    if absent := settings.get(SLOWDOWN_ABSENT):
        firing, why, red = Firing.ABSENT, str(absent), ()
    return Trial(
        result.test,
        plain_name(result.first),
        str(settings[SLOWDOWN]),
        float(settings[SLOWDOWN_SHARE]),
        firing,
        why,
        metrics=red,
        at=str(settings.get(SLOWDOWN_AT, "")),
        named=_named(result),
    )


def _firing(result: Result, *, is_failed: bool) -> tuple[Firing, str]:
    """The answer of a test, and its reason."""
    verdicts = [entry for entry in result.said if isinstance(entry, Verdict)]
    red = [verdict for verdict in verdicts if verdict.outcome in FAULTS]
    if red:
        moves = few(view.moves(red), _SHOWN)
        if is_failed:
            return Firing.RED, moves
        return Firing.PASSED, f"pytest counts no failure, though {moves}"
    if result.outcome in (*DOUBTS, None):
        return Firing.UNJUDGED, "; ".join(view.reasons(result)) or "it has no verdict"
    worse = [v for v in verdicts if v.change and v.change > 0 and v.tolerance]
    worse.sort(key=lambda verdict: -(verdict.change or 0) / (verdict.tolerance or 1))
    said = [f"{view.moves([v])[0]} (tolerance {tolerance(v)})" for v in worse]
    return Firing.PASSED, few(said, _SHOWN) or "no metric that is compared got worse"


def _named(result: Result) -> str:
    """The line of code that the verdict names as the cause, or as the worst of several."""
    attribution = result.attribution
    if attribution is None:
        return ""
    if attribution.cause:
        return attribution.cause.line
    return attribution.lines[0].line if attribution.lines else ""


def _unseen(result: Result) -> Iterator[str]:
    """What no gate of a test sees, whatever is put in."""
    values: Mapping[str, float] = step_values(result.measurements)
    fingerprint = result.first.fingerprint
    if unseen := fingerprint.settings.get(UNSEEN):
        yield str(unseen)
    work = "operators" if fingerprint.device.arch == architectures.CPU else "launches"
    if values.get(work) == 0:
        yield f"the step does nothing that is counted ({work} 0)"
    new = [v.metric for v in result.verdicts if v.phase == STEP and v.reason == NEW_METRIC]
    if new:
        yield f"the baseline lacks {', '.join(new)}: accept a run that has it"
