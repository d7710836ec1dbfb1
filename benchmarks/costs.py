"""What measuring costs: each configuration's collection time against its bound, on this machine.

    python benchmarks/costs.py RUN [RUN ...]

reads run files of `pytest suites/meddpm` and prints, per configuration, the step time, the
executions, what the collection took, and the bound of the design:

    cost <= 1.25 x (counter passes + warm-up) x step time + 2 s

The unprofiled repetitions that give the times are part of the cost, not of the bound. Exits with 1
when a configuration is over it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.storage import run_files

FACTOR, CONSTANT_S = 1.25, 2.0
HEADINGS = ("configuration", "step ms", "passes", "warm-up", "times", "cost s", "bound s", "ratio")


def row(measurement: Measurement) -> tuple[str, ...] | None:
    """One line of the table; None for a measurement without counter passes."""
    settings = measurement.fingerprint.settings
    if not settings.get("counter_passes"):
        return None
    (time,) = (s for s in measurement.samples if (s.phase, s.metric) == (STEP, "step_time"))
    step_s = centre([time.values]) / 1e3
    passes, warmup = float(settings["counter_passes"]), float(settings["warmup"])
    bound_s = FACTOR * (passes + warmup) * step_s + CONSTANT_S
    cost_s = float(settings["cost_s"])
    return (
        measurement.configuration or measurement.test,
        f"{step_s * 1e3:.1f}",
        f"{passes:.0f}",
        f"{warmup:.0f}",
        f"{settings['repetitions']}",
        f"{cost_s:.2f}",
        f"{bound_s:.2f}",
        f"{cost_s / bound_s:.2f}",
    )


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; 1 when a configuration costs more than its bound, 4 for a bad run file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    options = parser.parse_args(arguments)
    try:
        measurements = [m for file in options.runs for m in run_files.load(file).measurements]
    except GpuperfError as error:
        print(error, file=sys.stderr)
        return 4
    rows = [cost for measurement in measurements if (cost := row(measurement))]
    widths = [max(len(r[i]) for r in [HEADINGS, *rows]) for i in range(len(HEADINGS))]
    for line in [HEADINGS, *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    return int(any(float(r[-1]) > 1 for r in rows))


if __name__ == "__main__":
    sys.exit(main())
