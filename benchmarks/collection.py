"""What the plugin adds to `pytest --collect-only` on a project that does not use it.

    python benchmarks/collection.py [--runs N] [--limit MS]

runs pytest on a small project in fresh processes, in turn with the plugin and with `-p no:gpuperf`,
and compares the fastest of each: other processes and the processor's clock only ever add, and on a
machine whose clock wanders the medians differ by more than the plugin takes. Plugins that our tests
install are left out: they only add noise. Exits with 1 when the difference is over the limit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

LIMIT_MS = 10.0
TESTS = "\n".join(f"def test_{number}(): pass" for number in range(20))
OTHERS = ("-p", "no:hypothesispytest", "-p", "no:benchmark", "-p", "no:xdist")
BOTH = (), ("-p", "no:gpuperf")


def milliseconds(project: Path, *arguments: str) -> float:
    """How long collecting `project` takes, from starting the process to its end."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *OTHERS, *arguments]
    # Compiled once, as everywhere but where somebody has switched that off.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(project / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begun = time.perf_counter_ns()
    subprocess.run(command, cwd=project, env=environment, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter_ns() - begun) / 1e6


def main(arguments: list[str] | None = None) -> int:
    """Prints both and the difference of the fastest; 1 when it is over the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=30, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_MS, metavar="MS", help="default: %(default)s"
    )
    options = parser.parse_args(arguments)
    times: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        (project / "test_plain.py").write_text(TESTS, encoding="utf-8")
        for number in range(options.runs + 1):
            for series, extra in zip(times, BOTH, strict=True):
                took = milliseconds(project, *extra)
                if number:  # the first round compiles and fills caches
                    series.append(took)
    for name, series in zip(("with the plugin", "without"), times, strict=True):
        low, _, high = quantiles(series, n=4)
        print(f"{name:16} {min(series):7.1f} ms  (quartiles {low:.1f} to {high:.1f})")
    added = min(times[0]) - min(times[1])
    print(f"{'added':16} {added:7.1f} ms  (limit {options.limit:g})")
    return 0 if added <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
