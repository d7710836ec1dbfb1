"""`gpuperf baseline rename`: tests that have another name now keep their baselines."""

from __future__ import annotations

import argparse

from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.commands import complain, say
from pytest_gpuperf.commands.flags import add_baselines, baselines_folder
from pytest_gpuperf.errors import FAILED, OK, UsageFailure, meant
from pytest_gpuperf.storage import baseline_files, files

USAGE = "gpuperf baseline rename OLD NEW"
EXAMPLES = ("gpuperf baseline rename tests/perf/test_old.py tests/perf/test_step.py",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf baseline`."""
    words = parser.add_subparsers(required=True, metavar="WHAT")
    renamed = words.add_parser("rename", help="rename the entries of a test or a file")
    renamed.add_argument("old", metavar="OLD", help="the old node id or test file")
    renamed.add_argument("new", metavar="NEW", help="the new node id or test file")
    add_baselines(renamed)


def act(options: argparse.Namespace) -> int:
    """Renames the entries, and returns the exit code. Raises GpuperfError for bad files."""
    folder = baselines_folder(options)
    loaded = {file: baseline_files.load(file) for file in sorted(folder.glob("*/*/*.yaml"))}
    known = {file: one for file, one in loaded.items() if one is not None}
    if not known:
        raise UsageFailure(f"there is no baseline file in {folder}")
    old, new = options.old, options.new
    changed = False
    for file, one in known.items():
        tests = {
            test: new + test[len(old) :]
            for test in one.tests
            if test == old or ("::" not in old and test.startswith(f"{old}::"))
        }
        if tests:
            acceptance.rename(file, tests, files.utc_now()[:10])
            say(*(f"{file}: {before} -> {after}" for before, after in tests.items()))
            changed = True
    if changed:
        return OK
    every = {name for one in known.values() for t in one.tests for name in (t, t.split("::")[0])}
    close = meant(old, every, most=3)
    complain(f"{old} has no entry in {', '.join(map(str, known))}.{close}")
    return FAILED
