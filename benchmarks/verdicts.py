"""What the judge says of every recorded run: all verdicts and attributions, by file and test.

    python -m benchmarks.verdicts [--write]

judges the runs of docs/runs and tests/data by the committed baselines, and names the tests of which
something else is said than tests/data/verdicts.json.xz has. Exits with 1 where there are any. With
--write that file is made anew: only where the judge was meant to change, and the commit says why.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import recorded
from pytest_gpuperf.baselines.judgement import attributed, verdicts
from pytest_gpuperf.baselines.reference import baseline_of
from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.model.result import Run, Verdict
from pytest_gpuperf.storage import files

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "data" / "verdicts.json.xz"
_RUNS = ("docs/runs", "docs/runs/collectors", "docs/runs/seeds", "tests/data/h200-campaign")
_DIGITS = 10
"""Significant digits that are compared: sums may be added up in another order."""
_DIGEST = 16
_SINCE = ("calls", "idle", "step", "reliable", "headline", "rank", "upgrades")
"""Fields of an attribution that are younger than the file, and left out until it is made anew."""

Said = dict[str, dict[str, Any]]
"""By test and name the verdicts, as lists, and a digest of the attribution, "" for none."""


def recorded_runs() -> Iterator[tuple[str, Run]]:
    """Every committed file that is a run, by its path from the root on."""
    for folder in _RUNS:
        for file in sorted((ROOT / folder).glob("*.json*")):
            with suppress(GpuperfError):  # benchmarks keep results of other kinds there
                name = str(file.relative_to(ROOT))
                run = recorded.run(name)
                if not run.command.startswith("gpuperf prove "):  # another project's baseline
                    yield name, run


def _judged(run: Run, folder: Path) -> Run:
    """`run` with the verdicts and kernels of its measurements, by the baselines in this folder."""
    results = []
    for result in run.results():
        if result.measurements:
            baseline = baseline_of(result.first, folder, Path.cwd())
            # The committed tolerances count, not those of the suite when the run was recorded.
            measured = [replace(one, tolerance={}) for one in result.measurements]
            said = verdicts(measured, baseline)
            result = replace(result, verdicts=said, attribution=None, judged_by=baseline.judged_by)
            result = attributed(result, baseline)
        results.append(result)
    return run.with_results(results)


def said_of(run: Run) -> Said:
    """What the judge says of `run` by the committed baselines."""
    run = _judged(run, ROOT / "baselines")
    said: Said = {}
    for verdict in run.verdicts:
        key = f"{verdict.test}, {verdict.name}"
        said.setdefault(key, {"verdicts": [], "attribution": ""})["verdicts"].append(_row(verdict))
    for entry in run.attributions:
        blame = files.to_plain(entry)["blame"]
        # A field that came later than a run, and is empty, says nothing new.
        known = {k: v for k, v in blame.items() if k not in _SINCE and (v or k != "lines")}
        text = json.dumps(known, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
        said[f"{entry.test}, {entry.name}"]["attribution"] = digest
    return said


def _row(verdict: Verdict) -> list[object]:
    numbers = (
        *(verdict.baseline, verdict.measured, verdict.change, verdict.tolerance),
        *(verdict.low, verdict.high, verdict.minimum_detectable_effect),
    )
    return [
        *(verdict.phase, verdict.metric, verdict.outcome.value, verdict.reason),
        *(None if number is None else float(f"{number:.{_DIGITS}g}") for number in numbers),
        verdict.processes,
    ]


def known() -> dict[str, Said]:
    """What was said when the file was written, by run."""
    said: dict[str, Said] = json.loads(lzma.decompress(FILE.read_bytes()))
    return said


def main(arguments: list[str] | None = None) -> int:
    """Compares, or with --write records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make the file anew")
    options = parser.parse_args(arguments)
    now = {file: said_of(run) for file, run in recorded_runs()}
    if options.write:
        rows = ",\n".join(f"{json.dumps(f)}: {json.dumps(said)}" for f, said in now.items())
        FILE.write_bytes(lzma.compress(f"{{\n{rows}\n}}\n".encode(), preset=9))
        return 0
    before = known()
    differing = [
        f"{file}: {test}"
        for file in sorted({*before, *now})
        for test in sorted({*before.get(file, {}), *now.get(file, {})})
        if before.get(file, {}).get(test) != now.get(file, {}).get(test)
    ]
    print("\n".join(differing) or "every verdict is as it was recorded")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
