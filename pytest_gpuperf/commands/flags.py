"""The flags that several commands have, each declared and read here.

Which baselines is `--baselines DIR`, and what is written is `--output FILE`, of the format that its
suffix names.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.storage import files, run_files


def add_baselines(parser: argparse.ArgumentParser) -> None:
    """Adds `--baselines`: their folder."""
    purpose = "folder of the baselines; default: baselines in the current project"
    parser.add_argument("--baselines", type=Path, metavar="DIR", help=purpose)


def baselines_folder(options: argparse.Namespace) -> Path:
    """The folder of the project's baselines, as a user would type it here."""
    here = Path.cwd()
    given: Path | None = options.baselines
    return given or Path(os.path.relpath(run_files.project(here) / "baselines", here))


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds the argument for a saved run, by default the newest: see `run_of`."""
    parser.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="a run file; default: the newest"
    )


def add_new_run(parser: argparse._ActionsContainer) -> None:
    """Adds `--run`: the file that a run is written to, which must not exist yet."""
    parser.add_argument(
        "--run", type=Path, metavar="FILE", help="file to write; default: .gpuperf/runs/<time>.json"
    )


def new_run(options: argparse.Namespace) -> Path:
    """The file of `--run`, or a new file in the folder of runs."""
    return options.run or run_files.new_file(run_files.project(Path.cwd()))


def check_new(file: Path) -> None:
    """Raises UsageFailure for a file that exists: no run is written over."""
    if file.exists():
        raise UsageFailure(f"{file} exists already. Name another file, or remove this one")


def run_of(options: argparse.Namespace) -> Path:
    """The file of the named run, or of the newest. Raises UsageFailure where there is no run."""
    return options.run or run_files.newest(Path.cwd())


def add_tests(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Adds `--test`, which may be repeated: see `run_files.matching`."""
    parser.add_argument(
        "--test",
        dest="tests",
        action="append",
        default=[],
        metavar="PATTERN",
        help=f"{purpose}; repeatable",
    )


def add_outputs(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Adds `--output`, which may be repeated: files, each of the format that its suffix names."""
    parser.add_argument(
        "--output",
        dest="outputs",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"{purpose}; repeatable",
    )


def check_outputs(outputs: Sequence[Path], suffixes: Collection[str]) -> None:
    """Raises UsageFailure for a file with another suffix, or that cannot be written."""
    for output in outputs:
        if output.suffix not in suffixes:
            raise UsageFailure(
                f'--output {output.name}: "{output.suffix}" is not a report format. Use the suffix '
                + ", ".join(suffixes)
            )
        files.check_writable(output)
