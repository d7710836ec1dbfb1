"""`gpuperf baseline`: the contents of baseline files, and entries whose tests have moved."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.commands import complain, say
from pytest_gpuperf.commands.flags import add_baselines, baselines_folder
from pytest_gpuperf.errors import FAILED, OK, UsageFailure, meant
from pytest_gpuperf.model.entry import BaselineFile
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.storage import baseline_files, files

USAGE = "gpuperf baseline list\n       gpuperf baseline rename OLD NEW"
EXAMPLES = (
    "gpuperf baseline list",
    "gpuperf baseline rename tests/perf/test_old.py tests/perf/test_step.py",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf baseline`."""
    words = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    shown = words.add_parser("list", help="list entries with test, day, processes and GPUs")
    renamed = words.add_parser("rename", help="rename the entries of a test or a file")
    renamed.add_argument("old", metavar="OLD", help="the old node id or test file")
    renamed.add_argument("new", metavar="NEW", help="the new node id or test file")
    for word in (shown, renamed):
        add_baselines(word)


def act(options: argparse.Namespace) -> int:
    """Runs the chosen subcommand, and returns the exit code. Raises GpuperfError for bad files."""
    folder = baselines_folder(options)
    known = dict(_files(folder))
    if not known:
        raise UsageFailure(f"there is no baseline file in {folder}")
    if options.what == "list":
        return _list(known)
    return _rename(known, options.old, options.new)


def _files(folder: Path) -> Iterator[tuple[Path, BaselineFile]]:
    """The baseline files of every architecture, device and suite, in order."""
    for file in sorted(folder.glob("*/*/*.yaml")):
        loaded = baseline_files.load(file)
        if loaded is not None:
            yield file, loaded


def _list(known: dict[Path, BaselineFile]) -> int:
    for file, loaded in known.items():
        entries = [(t, name, one) for t, of in loaded.tests.items() for name, one in of.items()]
        say(f"{file}: {counted(len(entries), 'baseline')} on {loaded.device}")
        for test, name, entry in entries:
            gpus = len({*filter(None, entry.gpus)})
            of = [counted(len(entry.days), "process")] if entry.days else []
            of += [counted(gpus, "GPU")] if gpus > 1 else []
            since = f", origin of {entry.origin.recorded}" if entry.origin else ""
            title = test if name == STEP else f"{test} ({name})"
            say(f"  {title}: {', '.join([entry.recorded, *of])}{since}")
    return OK


def _rename(known: dict[Path, BaselineFile], old: str, new: str) -> int:
    changed = 0
    for file, loaded in known.items():
        tests = {
            test: new + test[len(old) :]
            for test in loaded.tests
            if test == old or ("::" not in old and test.startswith(f"{old}::"))
        }
        if tests:
            acceptance.rename(file, tests, files.utc_now()[:10])
            say(*(f"{file}: {before} -> {after}" for before, after in tests.items()))
            changed += len(tests)
    if changed:
        return OK
    every = {name for one in known.values() for t in one.tests for name in (t, t.split("::")[0])}
    close = meant(old, every, most=3)
    complain(f"{old} has no entry.{close} `gpuperf baseline list` shows all entries")
    return FAILED
