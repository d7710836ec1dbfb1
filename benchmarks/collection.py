"""What the plugin adds to `pytest --collect-only` on a project that does not use it.

    python benchmarks/collection.py [--runs N] [--limit MS]

runs pytest on a small project in fresh processes, in turn with the plugin and with `-p no:gpuperf`,
and compares the processor's time of the fastest of each: other processes and a wandering clock only
ever add, and to the time on the wall more than the plugin takes. Plugins that our tests install are
left out: they only add noise. Exits with 1 when the difference is over the limit.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from statistics import quantiles

LIMIT_MS = 10.0
TESTS = "\n".join(f"def test_{number}(): pass" for number in range(20))
OTHERS = tuple(
    word
    for plugin in entry_points(group="pytest11")
    if plugin.name != "gpuperf"
    for word in ("-p", f"no:{plugin.name}")
)
BOTH = (), ("-p", "no:gpuperf")


def milliseconds(project: Path, *arguments: str) -> float:
    """The processor's time, user's and system's, that collecting `project` takes in all."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *OTHERS, *arguments]
    # Compiled once, as everywhere but where somebody has switched that off.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(project / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=project, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


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
