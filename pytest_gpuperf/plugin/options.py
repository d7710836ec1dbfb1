"""Flags and ini settings, read into one frozen `Settings`.

Every flag has an ini twin: `--gpuperf-rounds` is `gpuperf_rounds`. The command line wins over the
ini file, the ini file over the default. A bad value is a usage error (exit code 4) that names where
it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpuperf.model.settings import Settings

COLLECTORS = ("auto", "cupti", "ncu", "cpu", "replay")
PROTOCOLS = ("whole-step", "paper-window")
NCU_REPLAYS = ("kernel", "range", "app-range")  # measure/ncu/ncu_command.py, imported where it runs
METRIC_SETS = ("host", "core", "reference", "paper", "full", "activity")
MISSING = ("fail", "warn", "record")
INCONCLUSIVE = ("fail", "warn")
KERNELS = ("never", "on-regression", "always")
GITHUB = ("auto", "never")
PROCESSES = ("1", "3", "5", "9")  # judge/interval.py, which is not imported until it judges
REPORT_SUFFIXES = (".html", ".md", ".json")  # report/interchange.py, imported when one is written


# See Settings.
@dataclass(frozen=True, eq=False, repr=False)
class _Option:
    """One flag and its ini twin."""

    flag: str
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    default: str = ""
    kind: str = "value"  # value, list or switch

    @property
    def dest(self) -> str:
        return "gpuperf_" + self.ini

    @property
    def ini(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


_OPTIONS = (
    _Option(
        "--gpu-arch",
        "the architecture whose baselines apply: sm70 ... sm120, cpu, or auto for the device that "
        "is found; a device of another architecture is a usage error",
        metavar="ARCH",
        default="auto",
    ),
    _Option(
        "--gpuperf-collector",
        "what obtains the counters; auto is cupti on a GPU and cpu without one",
        choices=COLLECTORS,
        default="auto",
    ),
    _Option(
        "--gpuperf-ncu",
        "for the collector ncu: the program; default: the one on the PATH, or the newest installed",
        metavar="PROGRAM",
    ),
    _Option(
        "--gpuperf-ncu-replay",
        "for the collector ncu: what it repeats to count it: every kernel by itself, all calls of "
        "the step, or the whole program",
        choices=NCU_REPLAYS,
        default="range",
    ),
    _Option(
        "--gpuperf-ncu-clock-control",
        "for the collector ncu: leave the clocks alone, or lock them to their base",
        choices=("none", "base"),
        default="none",
    ),
    _Option(
        "--gpuperf-ncu-cache-control",
        "for the collector ncu: leave the caches alone, or empty them before every replay",
        choices=("none", "all"),
        default="none",
    ),
    _Option(
        "--gpuperf-protocol",
        "whole-step counts the step; paper-window also counts, in a fresh process per test and "
        "beside it, what the paper counts: 100 kernel launches after the first 10 of a process",
        choices=PROTOCOLS,
        default="whole-step",
    ),
    _Option("--gpuperf-replay", "judge a recorded run in place of a device", metavar="RUN"),
    _Option(
        "--gpuperf-metrics",
        "which hardware counters: core (one pass of the step), reference (17 for an overview), "
        "paper (all that the paper reports), full (every reason for stalls too); activity adds "
        "copies, gaps and components from a trace; or sets and metrics by name, separated by "
        "commas, beside those of core: l2_hit_rate,activity",
        metavar="SETS",
        default="core",
    ),
    _Option(
        "--gpuperf-rounds",
        "samples of each counter per process, at most: two that agree are enough",
        metavar="N",
        default="5",
    ),
    _Option(
        "--gpuperf-processes",
        "a test that one process does not settle is measured again in fresh processes, up to so "
        "many in all; a regression takes 3",
        choices=PROCESSES,
        default=PROCESSES[-1],
    ),
    _Option(
        "--gpuperf-time-limit",
        "how long a fresh process may take before it is stopped",
        metavar="SECONDS",
        default="1800",
    ),
    _Option(
        "--gpuperf-kernels",
        "when every kernel of the step is counted by itself and kept in the run file",
        choices=KERNELS,
        default="on-regression",
    ),
    _Option(
        "--gpuperf-missing",
        "a test without a baseline fails, passes with a warning, or has this run recorded as its "
        "baseline",
        choices=MISSING,
        default="fail",
    ),
    _Option(
        "--gpuperf-inconclusive",
        "a test that could not be decided fails, or passes with a warning",
        choices=INCONCLUSIVE,
        default="fail",
    ),
    _Option(
        "--gpuperf-require-counters",
        "hardware counters that cannot be read fail the test; without this, time alone is judged",
        kind="switch",
    ),
    _Option(
        "--gpuperf-require-judged",
        "for nightly runs: a measurement without a verdict fails its test, whether it lacks a fit "
        "device, a baseline (whatever --gpuperf-missing says) or gated metrics",
        kind="switch",
    ),
    _Option(
        "--gpuperf-no-judge",
        "measure and save, compare with nothing",
        kind="switch",
    ),
    _Option(
        "--gpuperf-run",
        "where the run is saved, after every test; default: .gpuperf/runs/<time>.json",
        metavar="FILE",
    ),
    _Option(
        "--gpuperf-report",
        "also write a report, .html, .md or .json by suffix; may be repeated",
        metavar="FILE",
        kind="list",
    ),
    _Option(
        "--gpuperf-github",
        "auto: on GitHub Actions, append the Markdown report to the job summary, and mark what "
        "failed at its test's line",
        choices=GITHUB,
        default="auto",
    ),
    _Option(
        "--gpuperf-baselines",
        "the folder of the baselines",
        metavar="DIR",
        default="baselines",
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Registers the flags, in one group, and their ini twins."""
    group = parser.getgroup("gpuperf", "GPU performance (pytest-gpuperf)")
    for option in _OPTIONS:
        twin = f"{option.help} (ini: {option.ini})"
        if option.kind == "switch":
            group.addoption(
                option.flag, dest=option.dest, action="store_true", default=None, help=twin
            )
            parser.addini(option.ini, option.help, type="bool", default=False)
        else:
            group.addoption(
                option.flag,
                dest=option.dest,
                action="append" if option.kind == "list" else "store",
                metavar=option.metavar,
                choices=option.choices,
                default=None,
                help=twin,
            )
            if option.kind == "list":
                parser.addini(option.ini, option.help, type="args", default=[])
            else:
                parser.addini(option.ini, option.help, type="string", default=option.default)


def any_given(config: pytest.Config) -> bool:
    """Whether a flag of ours was typed, or an ini setting is not as it is without one."""
    return any(
        config.getoption(option.dest) is not None
        or config.getini(option.ini) not in (option.default, [], False)
        for option in _OPTIONS
    )


def documented() -> tuple[_Option, ...]:
    """All flags, for the documentation."""
    return _OPTIONS


def read_settings(config: pytest.Config) -> Settings:
    """The settings of this invocation. Raises pytest.UsageError for a bad value."""
    get = _reader(config)

    def chosen(flag: str) -> str:
        return _chosen(get(flag), _option(flag).choices or (), flag)

    root = config.rootpath
    replay = get("--gpuperf-replay")
    collector = chosen("--gpuperf-collector")
    if replay and collector not in ("auto", "replay"):
        raise pytest.UsageError(
            f"--gpuperf-replay judges a recorded run, so --gpuperf-collector {collector} cannot "
            "measure as well: leave one of them out"
        )
    if collector == "replay" and not replay:
        raise pytest.UsageError(
            "--gpuperf-collector replay needs the run to judge: --gpuperf-replay RUN"
        )
    reports = _reports(config)
    for report in reports:
        if report.suffix not in REPORT_SUFFIXES:
            raise pytest.UsageError(
                f"--gpuperf-report {report.name}: no report has the suffix "
                f'"{report.suffix}", known are {", ".join(REPORT_SUFFIXES)}'
            )
    return Settings(
        root=root,
        arch=get("--gpu-arch"),
        arch_is_flag=config.getoption("gpuperf_gpu_arch") is not None,
        collector=collector,
        ncu=_path(config, "--gpuperf-ncu"),
        ncu_replay=chosen("--gpuperf-ncu-replay"),
        ncu_clocks=chosen("--gpuperf-ncu-clock-control"),
        ncu_caches=chosen("--gpuperf-ncu-cache-control"),
        protocol=chosen("--gpuperf-protocol"),
        replay=_path(config, "--gpuperf-replay"),
        metrics=_metrics(config, get("--gpuperf-metrics")),
        rounds=_positive(config, "--gpuperf-rounds"),
        processes=int(chosen("--gpuperf-processes")),
        time_limit=_positive(config, "--gpuperf-time-limit"),
        kernels=chosen("--gpuperf-kernels"),
        missing=chosen("--gpuperf-missing"),
        inconclusive=chosen("--gpuperf-inconclusive"),
        require_counters=_switch(config, "--gpuperf-require-counters"),
        require_judged=_switch(config, "--gpuperf-require-judged"),
        judge=not _switch(config, "--gpuperf-no-judge"),
        run=_path(config, "--gpuperf-run"),
        reports=reports,
        github=chosen("--gpuperf-github"),
        baselines=_path(config, "--gpuperf-baselines") or root,
    )


def check_verdicts(config: pytest.Config, settings: Settings) -> None:
    """Raises pytest.UsageError where verdicts are required that nobody is to reach."""
    if settings.require_judged and not settings.judge:
        required = _source(config, "--gpuperf-require-judged")
        raise pytest.UsageError(
            f"{required} fails every test without a verdict, and "
            f"{_source(config, '--gpuperf-no-judge')} asks for none: leave one of them out"
        )


def _option(flag: str) -> _Option:
    return next(option for option in _OPTIONS if option.flag == flag)


def _reader(config: pytest.Config) -> Callable[[str], str]:
    def get(flag: str) -> str:
        option = _option(flag)
        value = config.getoption(option.dest)
        return str(config.getini(option.ini) if value is None else value)

    return get


def _switch(config: pytest.Config, flag: str) -> bool:
    option = _option(flag)
    try:
        return bool(config.getoption(option.dest) or config.getini(option.ini))
    except (ValueError, pytest.UsageError) as error:  # before and from pytest 9
        raise pytest.UsageError(f"ini setting {option.ini}: {error}") from None


def _path(config: pytest.Config, flag: str) -> Path | None:
    """A path: typed, it is relative to where one typed it; in the ini file, to the root."""
    option = _option(flag)
    typed = config.getoption(option.dest)
    if typed is not None:
        return config.invocation_params.dir / str(typed) if typed else None
    written = str(config.getini(option.ini))
    return config.rootpath / written if written else None


def _reports(config: pytest.Config) -> tuple[Path, ...]:
    option = _option("--gpuperf-report")
    typed = config.getoption(option.dest)
    folder = config.rootpath if typed is None else config.invocation_params.dir
    return tuple(folder / name for name in typed or config.getini(option.ini))


def _chosen(value: str, choices: tuple[str, ...], flag: str) -> str:
    # argparse has checked the flag; this is for the ini file.
    if value not in choices:
        raise pytest.UsageError(
            f"ini setting {_option(flag).ini} = {value}: choose from {', '.join(choices)}"
        )
    return value


def _metrics(config: pytest.Config, value: str) -> str:
    """Sets and metrics that exist; the catalogue is not read for a set alone."""
    if value in METRIC_SETS:
        return value
    from pytest_gpuperf.catalogue.metric_catalogue import catalogue
    from pytest_gpuperf.errors import UsageFailure

    try:
        catalogue().selected(value)
    except UsageFailure as error:
        raise pytest.UsageError(f"{_source(config, '--gpuperf-metrics')}: {error}") from None
    return value


def _source(config: pytest.Config, flag: str) -> str:
    """Where the value of `flag` is from: the flag as typed, or the ini setting."""
    option = _option(flag)
    typed = config.getoption(option.dest) is not None
    return flag if typed else f"ini setting {option.ini}"


def _positive(config: pytest.Config, flag: str) -> int:
    option = _option(flag)
    typed = config.getoption(option.dest)
    value = str(config.getini(option.ini) if typed is None else typed)
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise pytest.UsageError(
            f"{_source(config, flag)} takes a whole number from 1 on, not {value!r}"
        )
    return number
