"""`gpuperf prove`: puts known slowdowns into guarded tests, and says which of them fail."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from pytest_gpuperf.catalogue.units import duration
from pytest_gpuperf.commands import here, print_failure, say, say_lines, terminal_width
from pytest_gpuperf.errors import FAILED, OK, UsageFailure
from pytest_gpuperf.measure.fresh_process import Finished, FreshProcess, Start, with_flags
from pytest_gpuperf.measure.instrument import PROVING
from pytest_gpuperf.measure.replica import Invocation
from pytest_gpuperf.report.proof import proof_of
from pytest_gpuperf.report.text import proof_lines
from pytest_gpuperf.report.text.progress import Display, on_stdout
from pytest_gpuperf.storage import run_files

USAGE = "gpuperf prove [--all] [--output FILE] -- PYTEST-ARGS"
EXAMPLES = (
    "gpuperf prove -- tests/perf",
    "gpuperf prove --all --output proof.json.xz -- tests/perf",
)
_FOLDER = Path(".gpuperf") / "prove"
_SAMPLE = 3
"""Slowdowns per measurement without --all."""
_FLAGS = ("-q", "--maxfail=0", "--gpuperf-missing=fail", "--gpuperf-kernels=on-regression")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf prove`."""
    parser.add_argument(
        "--all",
        dest="is_complete",
        action="store_true",
        help=f"try every slowdown at every size; without it, {_SAMPLE} slowdowns per measurement",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"write the result to this run file; default: {_FOLDER}/<time>.json.xz",
    )
    parser.add_argument("pytest_args", nargs="*", metavar="PYTEST-ARGS")


def act(options: argparse.Namespace) -> int:
    """Runs the tests as they are and with slowdowns, and prints the answer to each slowdown.

    Returns 0; 1 where a gate is dead, or a test does not pass without a slowdown; pytest's exit
    code where it measured nothing. Raises UsageFailure where no test measures a step, and for a
    folder of ours that is a link out of the project.
    """
    folder = run_files.own_folder(run_files.project(Path.cwd()), _FOLDER)
    finished = _session(options)
    proof = proof_of(finished.run) if finished.run else None
    if finished.run is None or proof is None:
        code = print_failure(finished)
        if code:
            return code
        raise UsageFailure("no test measured a step: name tests that call gpuperf.measure")
    stamp = proof.created.replace(":", "").replace("-", "")
    place = options.output or folder / f"{stamp}.json.xz"
    command = run_files.command_line(["gpuperf", *options.words, "--", *options.pytest_args])
    # Kernels have been used: the lines are in the attributions.
    measured = tuple(replace(m, kernels=None) for m in finished.run.measurements)
    run_files.save(replace(finished.run, command=command, measurements=measured), place)
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
        caches = "no:cacheprovider" not in arguments
        invocation = Invocation(arguments, Path.cwd(), written=("cache_dir",) if caches else ())
        words, added = invocation.apart(Path(own))
        added[PROVING] = f"{0 if options.is_complete else _SAMPLE} {chosen}"
        start = Start(with_flags(words, _FLAGS), Path.cwd(), added, judges=True)
        with display.of("prove"), FreshProcess(start) as process:
            display.begins("measuring")
            return process.finished(None)
