"""The settings of one invocation of pytest: each flag, declared once.

`plugin/options.py` registers the flags, each with a twin in the ini file, and reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COLLECTORS = ("auto", "cupti", "ncu", "cpu", "replay")
NCU_REPLAYS = ("kernel", "range", "app-range")
METRIC_SETS = ("host", "core", "reference", "paper", "full", "activity")
PROCESSES = ("1", "3", "5", "9")  # judge/interval.py, which is not imported until it judges


def _flag(default: Any, name: str, text: str, *choices: str, metavar: str | None = None) -> Any:
    """A field with its flag and the help of that. A switch says the opposite of its default."""
    flag = {"name": name, "text": text, "choices": choices, "metavar": metavar}
    ini = name.removeprefix("--").replace("-", "_")
    return field(default=default, metadata={**flag, "ini": ini, "dest": f"gpuperf_{ini}"})


# Created at each start of pytest, so it has no unused methods.
@dataclass(frozen=True, eq=False, repr=False)
class Settings:
    """The settings for measuring and judging in this invocation."""

    root: Path
    """pytest's root directory: node ids and default folders are relative to it."""
    arch: str = _flag(
        "auto",
        "--gpu-arch",
        "compare with baselines of this architecture: sm70 ... sm120, cpu, or auto (the device "
        "found). Another device is a usage error",
        metavar="ARCH",
    )
    """An architecture of `catalogue/architectures.py`, or "auto"."""
    collector: str = _flag(
        "auto",
        "--gpuperf-collector",
        "tool that reads counters; auto is cupti on a GPU, cpu elsewhere",
        *COLLECTORS,
    )
    ncu: Path | None = _flag(
        None,
        "--gpuperf-ncu",
        "path of ncu for --gpuperf-collector ncu; default: from PATH, else the newest installed",
        metavar="PROGRAM",
    )
    """The ncu to run; None for the one that is found."""
    ncu_replay: str = _flag(
        "range",
        "--gpuperf-ncu-replay",
        "what --gpuperf-collector ncu repeats per pass: each kernel, the step (range), or the "
        "whole program (app-range)",
        *NCU_REPLAYS,
    )
    protocol: str = _flag(
        "whole-step",
        "--gpuperf-protocol",
        "whole-step counts the step; paper-window also counts kernel launches 11 to 110 of a "
        "fresh process, as the ICPE '26 paper does",
        *("whole-step", "paper-window"),
    )
    replay: Path | None = _flag(
        None,
        "--gpuperf-replay",
        "compare this recorded run with the baselines; run no step, use no device",
        metavar="RUN",
    )
    metrics: str = _flag(
        "core",
        "--gpuperf-metrics",
        "counters to read: core (one pass), reference (17 metrics), paper (all of the paper), "
        "full (also all stall reasons), activity (trace: copies, gaps, components). Or metrics "
        "to add to core: l2_hit_rate,activity",
        metavar="SETS",
    )
    rounds: int = _flag(
        5,
        "--gpuperf-rounds",
        "maximum samples of each counter per process; measuring stops early when two agree",
        metavar="N",
    )
    processes: int = _flag(
        9,
        "--gpuperf-processes",
        "maximum processes per test. gpuperf starts more if the first is not conclusive; a "
        "regression needs at least 3 processes",
        *PROCESSES,
    )
    time_limit: float = _flag(
        1800,
        "--gpuperf-time-limit",
        "stop a fresh process of a test after this time",
        metavar="SECONDS",
    )
    kernels: str = _flag(
        "on-regression",
        "--gpuperf-kernels",
        "when to count each kernel separately and keep the result in the run file",
        *("never", "on-regression", "always"),
    )
    missing: str = _flag(
        "fail",
        "--gpuperf-missing",
        "for a test without a baseline: fail, pass with a warning, or record this run as the "
        "baseline",
        *("fail", "warn", "record"),
    )
    inconclusive: str = _flag(
        "fail",
        "--gpuperf-inconclusive",
        "for a test that stays inconclusive: fail, or pass with a warning",
        *("fail", "warn"),
    )
    require_counters: bool = _flag(
        False,
        "--gpuperf-require-counters",
        "fail a test if hardware counters cannot be read. Without this flag, its times and host "
        "counts are still compared",
    )
    require_judged: bool = _flag(
        False,
        "--gpuperf-require-judged",
        "for CI: fail each test that cannot be compared, and a session that no longer measures "
        "all tests of the baseline or measures another copy of the project than the checkout",
    )
    judge: bool = _flag(
        True,
        "--gpuperf-no-judge",
        "measure and save the run; do not compare with baselines",
    )
    run: Path | None = _flag(
        None,
        "--gpuperf-run",
        "save the run to this file, after each test; default: .gpuperf/runs/<time>.json",
        metavar="FILE",
    )
    """The file of the run; None for a new file under `.gpuperf/runs`."""
    reports: tuple[Path, ...] = _flag(
        (),
        "--gpuperf-report",
        "write a report; the suffix (.html, .md, .json) sets the format; repeatable",
        metavar="FILE",
    )
    github: str = _flag(
        "auto",
        "--gpuperf-github",
        "auto: on GitHub Actions, add the report to the job summary and annotate failed tests",
        *("auto", "never"),
    )
    baselines: Path = _flag(
        Path("baselines"),
        "--gpuperf-baselines",
        "folder of the baselines",
        metavar="DIR",
    )
