"""Reports in ncu's own format (.ncu-rep), as the table that its CSV is.

They are opened by NVIDIA's Python module `ncu_report` (in `extras/python` of Nsight Compute), or by
an `ncu` executable; neither needs a GPU. Nothing else reads the format.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from pytest_gpuperf.collect import ncu_command, ncu_csv, ncu_errors, ncu_module
from pytest_gpuperf.collect.ncu_csv import Line, Table
from pytest_gpuperf.collect.ncu_module import Page
from pytest_gpuperf.errors import BadFile, UsageFailure

_TIME_LIMIT_SECONDS = 600
_INSTALLED = Path("/opt/nvidia/nsight-compute")
_EXTRAS = Path("extras/python")
_REMEDY = (
    "See that the file is complete and that this Nsight Compute is not older than the one that "
    "wrote it"
)


def load(file: Path, ncu: Path | None, counters: Collection[str]) -> Table:
    """The table of the report in `file`; of its metrics those named in `counters`, at least.

    `ncu` is the executable to open it with; the module that lies beside it goes before it, since
    its numbers are not rounded. Without one, any such module is tried, then an `ncu` on the PATH.
    Where the module crashes, the executable is asked.

    Raises BadFile for a report that does not open, and UsageFailure where nothing here opens
    such files, or the executable does not run.
    """
    if not file.is_file():
        raise UsageFailure(f"{file}: no such file")
    folder = _folder_of(ncu) if ncu else None
    page, crash = None, ""
    if folder is not None or ncu is None:
        page, crash = _page(file, folder, counters)
    if page is not None and page.there:
        return _table(file, page)
    executable = str(ncu) if ncu else shutil.which("ncu")
    if executable is not None:
        return _by_executable(file, executable)
    if crash:
        raise BadFile(file, "", crash, _REMEDY)
    raise UsageFailure(
        f"{file}: to open it takes Nsight Compute: its Python module ncu_report (add its "
        "folder extras/python to PYTHONPATH) or its executable ncu (on the PATH, or --ncu "
        "FILE), and neither is here. Or make a CSV where it is, and import that: ncu --import "
        f"{file.name} --csv --page raw --print-units base > {file.stem}.csv"
    )


def _folder_of(ncu: Path) -> Path | None:
    """The folder of the module that belongs to this executable; None where it lies not there."""
    home = ncu.resolve().parent
    if any(part.startswith("cuda") for part in home.parts):
        # The toolkit's ncu only starts the one that is installed for itself.
        home = max(_INSTALLED.glob("*"), key=ncu_command.numbers, default=home)
    folder = home / _EXTRAS
    return folder if (folder / f"{ncu_module.MODULE}.py").is_file() else None


def _page(file: Path, folder: Path | None, counters: Collection[str]) -> tuple[Page | None, str]:
    """What the module reads, in a process of its own; or None and how that process ended."""
    places = [str(folder)] if folder else []
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as scratch:
        out = Path(scratch) / "page.json"
        words = (str(file.resolve()), str(out), ",".join(counters))
        try:
            done = subprocess.run(
                [sys.executable, "-m", ncu_module.__name__, *words],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=_TIME_LIMIT_SECONDS,
                check=False,
                # It finds what this process finds, however that came to find it.
                env={**os.environ, "PYTHONPATH": os.pathsep.join([*places, *sys.path])},
            )
        except subprocess.TimeoutExpired:
            return None, f"ncu_report did not read this within {_TIME_LIMIT_SECONDS} s"
        if done.returncode == 0:
            return Page(**json.loads(out.read_text(encoding="utf-8"))), ""
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return None, f"ncu_report ended the process that read this ({': '.join([how, *said])})"


def _table(file: Path, page: Page) -> Table:
    if page.problem:
        raise BadFile(file, "", f"ncu_report did not open it: {page.problem}", _REMEDY)
    if not page.lines:
        raise BadFile(file, "", "has no kernel: nothing was profiled", _REMEDY)
    lines = tuple(Line(f"result {number}", cells) for number, cells in enumerate(page.lines))
    return Table(file, page.units, "units", lines)


def _by_executable(file: Path, executable: str) -> Table:
    command = [executable, "--import", str(file), "--csv", "--page", "raw"]
    try:
        done = subprocess.run(
            [*command, "--print-units", "base"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIME_LIMIT_SECONDS,
            check=False,
            # Numbers are grouped as the language of the user does it.
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except OSError as error:
        raise UsageFailure(
            f"{executable}: cannot be run ({error.strerror}). Name the ncu of Nsight Compute"
        ) from None
    except subprocess.TimeoutExpired:
        problem = f"{executable} did not open it within {_TIME_LIMIT_SECONDS} s"
        raise BadFile(file, "", problem, _REMEDY) from None
    if done.returncode:
        said = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
        failure = ncu_errors.failure(said, done.returncode)
        raise BadFile(file, "", f"{executable} did not open it: {failure.reason}", _REMEDY)
    return ncu_csv.parse(done.stdout, file)
