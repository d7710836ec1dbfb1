"""How one invocation of pytest measures and judges: each flag, declared once.

`plugin/options.py` registers the flags, with a twin in the ini file for each, and reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COLLECTORS = ("auto", "cupti", "ncu", "cpu", "replay")
NCU_REPLAYS = ("kernel", "range", "app-range")  # measure/ncu/ncu_command.py, imported where it runs
METRIC_SETS = ("host", "core", "reference", "paper", "full", "activity")
PROCESSES = ("1", "3", "5", "9")  # judge/interval.py, which is not imported until it judges


def _flag(default: Any, name: str, text: str, *choices: str, metavar: str | None = None) -> Any:
    """A field with its flag and the help of that. A switch says the opposite of its default."""
    flag = {"name": name, "text": text, "choices": choices, "metavar": metavar}
    ini = name.removeprefix("--").replace("-", "_")
    return field(default=default, metadata={**flag, "ini": ini, "dest": f"gpuperf_{ini}"})


# Made at each start of pytest, whoever measures: so without what nobody asks of it.
@dataclass(frozen=True, eq=False, repr=False)
class Settings:
    """How this invocation measures and judges."""

    root: Path
    """pytest's root directory: node ids and default folders are relative to it."""
    arch_is_flag: bool = False
    """Whether the architecture was asked for on the command line, not in the ini file."""
    arch: str = _flag(
        "auto",
        "--gpu-arch",
        "the architecture whose baselines apply: sm70 ... sm120, cpu, or auto for the device that "
        "is found; a device of another architecture is a usage error",
        metavar="ARCH",
    )
    """An architecture of `catalogue/architectures.py`, or "auto"."""
    collector: str = _flag(
        "auto",
        "--gpuperf-collector",
        "what obtains the counters; auto is cupti on a GPU and cpu without one",
        *COLLECTORS,
    )
    ncu: Path | None = _flag(
        None,
        "--gpuperf-ncu",
        "for the collector ncu: the program; default: the one on the PATH, or the newest installed",
        metavar="PROGRAM",
    )
    """The ncu to run; None for the one that is found."""
    ncu_replay: str = _flag(
        "range",
        "--gpuperf-ncu-replay",
        "for the collector ncu: what it repeats to count it: every kernel by itself, all calls of "
        "the step, or the whole program",
        *NCU_REPLAYS,
    )
    protocol: str = _flag(
        "whole-step",
        "--gpuperf-protocol",
        "whole-step counts the step; paper-window also counts, in a fresh process per test and "
        "beside it, what the paper counts: 100 kernel launches after the first 10 of a process",
        *("whole-step", "paper-window"),
    )
    replay: Path | None = _flag(
        None,
        "--gpuperf-replay",
        "judge a recorded run in place of a device",
        metavar="RUN",
    )
    metrics: str = _flag(
        "core",
        "--gpuperf-metrics",
        "which hardware counters: core (one pass of the step), reference (17 for an overview), "
        "paper (all that the paper reports), full (every reason for stalls too); activity adds "
        "copies, gaps and components from a trace; or sets and metrics by name, separated by "
        "commas, beside those of core: l2_hit_rate,activity",
        metavar="SETS",
    )
    rounds: int = _flag(
        5,
        "--gpuperf-rounds",
        "samples of each counter per process, at most: two that agree are enough",
        metavar="N",
    )
    processes: int = _flag(
        9,
        "--gpuperf-processes",
        "a test that one process does not settle is measured again in fresh processes, up to so "
        "many in all; a regression takes 3",
        *PROCESSES,
    )
    time_limit: float = _flag(
        1800,
        "--gpuperf-time-limit",
        "how long a fresh process may take before it is stopped",
        metavar="SECONDS",
    )
    kernels: str = _flag(
        "on-regression",
        "--gpuperf-kernels",
        "when every kernel of the step is counted by itself and kept in the run file",
        *("never", "on-regression", "always"),
    )
    missing: str = _flag(
        "fail",
        "--gpuperf-missing",
        "a test without a baseline fails, passes with a warning, or has this run recorded as its "
        "baseline",
        *("fail", "warn", "record"),
    )
    inconclusive: str = _flag(
        "fail",
        "--gpuperf-inconclusive",
        "a test that could not be decided fails, or passes with a warning",
        *("fail", "warn"),
    )
    require_counters: bool = _flag(
        False,
        "--gpuperf-require-counters",
        "hardware counters that cannot be read fail the test; without this, time alone is judged",
    )
    require_judged: bool = _flag(
        False,
        "--gpuperf-require-judged",
        "for nightly runs: a measurement without a verdict fails its test, whether it lacks a fit "
        "device, a baseline (whatever --gpuperf-missing says) or gated metrics",
    )
    judge: bool = _flag(
        True,
        "--gpuperf-no-judge",
        "measure and save, compare with nothing",
    )
    run: Path | None = _flag(
        None,
        "--gpuperf-run",
        "where the run is saved, after every test; default: .gpuperf/runs/<time>.json",
        metavar="FILE",
    )
    """None for a new file under `.gpuperf/runs`."""
    reports: tuple[Path, ...] = _flag(
        (),
        "--gpuperf-report",
        "also write a report, .html, .md or .json by suffix; may be repeated",
        metavar="FILE",
    )
    github: str = _flag(
        "auto",
        "--gpuperf-github",
        "auto: on GitHub Actions, append the Markdown report to the job summary, and mark what "
        "failed at its test's line",
        *("auto", "never"),
    )
    baselines: Path = _flag(
        Path("baselines"),
        "--gpuperf-baselines",
        "the folder of the baselines",
        metavar="DIR",
    )
