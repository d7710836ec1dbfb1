"""What measuring cost, per test and in all, against the floor: what its executions take alone.

    python -m benchmarks.budget RUN [RUN ...]

reads run files and prints, per measurement, the step time, the executions, the seconds that the
collection took, the floor (`floor_s` in the file: warm-up, two rounds and the phases, at the step's
own time), and how many times that the collection is. What may be executed is in budget.yaml.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.storage import run_files

HEADINGS = ("measurement", "step ms", "executions", "cost s", "floor s", "ratio")


def row(measurement: Measurement) -> tuple[str, float, int, float, float] | None:
    """Title, milliseconds of a step, executions, seconds of collecting and of the floor.

    None for a measurement that says nothing of its floor: a CPU's, or one of an earlier release.
    """
    settings = measurement.fingerprint.settings
    if "floor_s" not in settings:
        return None
    (time,) = (s for s in measurement.samples if (s.phase, s.metric) == (STEP, "wall_time"))
    # Those that are timed are counted as well, unless a number of them was asked for.
    executed = int(settings["warmup"]) + int(settings.get("counter_passes", 0))
    return (
        measurement.configuration or measurement.test,
        centre([time.values]),
        max(executed, int(settings["warmup"]) + int(settings["repetitions"])),
        float(settings["cost_s"]),
        float(settings["floor_s"]),
    )


def main(arguments: list[str] | None = None) -> int:
    """Prints the table and its sum, or why there is none; 4 for a bad run file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    options = parser.parse_args(arguments)
    try:
        measurements = [m for file in options.runs for m in run_files.load(file).measurements]
    except GpuperfError as error:
        print(error, file=sys.stderr)
        return 4
    known = [cost for measurement in measurements if (cost := row(measurement))]
    if not known:
        print(
            "no measurement says what its executions take alone (floor_s): a CPU's never does, and "
            "earlier releases did not record it"
        )
        return 0
    _, _, executions, costs, floors = zip(*known, strict=True)
    known.append(("all", 0.0, sum(executions), sum(costs), sum(floors)))
    rows = [
        (
            *(name, f"{step_ms:.1f}" if step_ms else "", str(executed)),
            *(f"{cost_s:.1f}", f"{floor_s:.1f}", f"{cost_s / floor_s if floor_s else 0.0:.2f}"),
        )
        for name, step_ms, executed, cost_s, floor_s in known
    ]
    widths = [max(len(r[i]) for r in [HEADINGS, *rows]) for i in range(len(HEADINGS))]
    for line in [HEADINGS, *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
