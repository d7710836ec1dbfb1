"""The flags that several commands have, each declared and read here.

Which baselines is `--baselines DIR`, and what is written is `--output FILE`, of the format that its
suffix names.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.storage import files, run_files

_MENTIONED = re.compile("gpuperf.baselines")


def add_baselines(parser: argparse.ArgumentParser) -> None:
    """Adds `--baselines`: their folder."""
    purpose = "folder of the baselines; default: pytest's setting gpuperf_baselines, or baselines"
    parser.add_argument("--baselines", type=Path, metavar="DIR", help=purpose)


def baselines_folder(options: argparse.Namespace) -> Path:
    """The folder of the project's baselines, as a user would type it here.

    The flag's, or the one of pytest's settings. Raises UsageFailure where pytest refuses these.
    """
    here = Path.cwd()
    given: Path | None = options.baselines
    return given or Path(os.path.relpath(_configured(run_files.project(here)), here))


def _configured(project: Path) -> Path:
    """The folder that sessions in a project use. Asks pytest only if its settings mention one."""
    above = (project, *project.parents)
    places = (folder / name for folder in above for name in run_files.CONFIGURED)
    texts = [place.read_text("utf-8", "replace") for place in places if place.is_file()]
    if not any(map(_MENTIONED.search, (*texts, os.environ.get("PYTEST_ADDOPTS", "")))):
        return project / "baselines"
    asked = [sys.executable, "-m", "pytest_gpuperf.plugin.ini_reader", str(project)]
    code, said = fresh_process.run(asked, folder=Path.cwd())
    if code:
        raise UsageFailure(f"pytest cannot read its settings. Add --baselines DIR\n{said.strip()}")
    return Path(said.splitlines()[-1])


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
