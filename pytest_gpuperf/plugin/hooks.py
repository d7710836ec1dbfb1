"""pytest's hooks, and nothing else.

Measuring and judging happen where the test runs, which under pytest-xdist is a worker; what came of
it travels with the test's report to the controller, the only one that writes files.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.model.settings import Settings
from pytest_gpuperf.plugin import hookspecs, options

if TYPE_CHECKING:
    from pytest_gpuperf.baselines.judgement import Judging
    from pytest_gpuperf.measure.instrument import Source
    from pytest_gpuperf.measure.replica import Replicas, Task
    from pytest_gpuperf.plugin.fixture import GpuPerf, Records
    from pytest_gpuperf.plugin.session import Ledger
    from pytest_gpuperf.report.text.progress import Display


_SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
_INSTRUMENT: pytest.StashKey[Source] = pytest.StashKey()
_JUDGING: pytest.StashKey[Judging] = pytest.StashKey()
_RECORDS: pytest.StashKey[Records] = pytest.StashKey()
_LEDGER: pytest.StashKey[Ledger] = pytest.StashKey()
_REFUSAL: pytest.StashKey[Exception] = pytest.StashKey()
_REPLICAS: pytest.StashKey[Replicas] = pytest.StashKey()
_TASK: pytest.StashKey[Task | None] = pytest.StashKey()
_DISPLAY: pytest.StashKey[Display] = pytest.StashKey()
_PARENT: pytest.StashKey[int | None] = pytest.StashKey()

_MARKERS = (
    "gpu: needs a GPU; skipped, with the reason, where there is none",
    'gpu_arch(*names): only on these architectures: "sm80" alone, "sm80+" from there on',
    "gpuperf(metrics=, tolerance=, rounds=, repetitions=, limit=, reproducible=): how the test's "
    "step is measured and judged",
    "optimization(name): the configuration that the test measures, for reports",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers flags and ini settings."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Offers our own hooks."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Reads the settings; checks a `--gpu-arch` from the command line before anything runs."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    _heed_the_parent(config)
    config.stash[_SETTINGS] = options.read_settings(config)
    if config.stash[_TASK] is not None:
        # The session has asked for another look, and looks at kernels itself.
        config.stash[_SETTINGS] = replace(
            config.stash[_SETTINGS], kernels="never", timeline="never", protocol="whole-step"
        )
    if not _is_worker(config):
        config.pluginmanager.register(_Gatherer(config), "gpuperf-gatherer")
        # An ini setting waits until a test needs it: unit tests run anywhere. A flag was typed.
        if config.stash[_SETTINGS].arch_is_flag or config.stash[_SETTINGS].replay:
            _or_usage_error(lambda: _instrument(config))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells an xdist worker how its controller was started: what it has is only its own part."""
    parameters = node.config.invocation_params
    node.workerinput["gpuperf_invocation"] = (list(parameters.args), str(parameters.dir))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Validates markers, skips what cannot run here, and reads the baselines once, before all."""
    task = config.stash[_TASK]
    if task is not None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid != task.test])
        items[:] = [item for item in items if item.nodeid == task.test]
    concerned = [item for item in items if _concerns_us(item)]
    if not concerned:
        return
    if _is_worker(config):
        # A worker that stops here would take its controller along; its tests say it instead.
        from pytest_gpuperf.errors import UsageFailure

        try:
            _prepare(config, concerned)
        except UsageFailure as refusal:
            config.stash[_REFUSAL] = refusal
    else:
        _or_usage_error(lambda: _prepare(config, concerned))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Says in a worker's tests what would have stopped a process without workers.

    Comes before pytest's own, which sets fixtures up: what a process with a task counts begins
    here.
    """
    if _REFUSAL in item.config.stash and _concerns_us(item):
        raise item.config.stash[_REFUSAL]
    task = item.config.stash[_TASK]
    if task is not None and not task.is_replica:
        _instrument(item.config).begin()


@pytest.fixture
def gpuperf(request: pytest.FixtureRequest) -> GpuPerf:
    """Measures a step, compares it with its baseline, and fails the test if it got worse.

    `gpuperf.measure(step, reset=...)` measures; `gpuperf.phase(name)` marks a part of the step.
    """
    from pytest_gpuperf.plugin import fixture

    config = request.config
    settings, instrument = config.stash[_SETTINGS], _instrument(config)
    item: pytest.Item = request.node
    # Its own for every execution: a test may be run again after it failed.
    records = item.stash[_RECORDS] = fixture.Records()
    traits = fixture.traits_of(item)
    judging = _judging(config)
    return fixture.GpuPerf(config, settings, instrument, traits, records, judging, _display(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Sends what a test measured along with its report."""
    if _RECORDS in item.stash:
        from pytest_gpuperf.plugin.session import share

        shared = item.stash[_RECORDS].judged
        share(shared, item.user_properties, getattr(item, "funcargs", {}))
    report = yield
    if not _concerns_us(item):
        return report
    from pytest_gpuperf.errors import UsageFailure

    # TestReport keeps attributes it does not know, also on the way from an xdist worker. They stay
    # out of user_properties, which JUnit files print in full: those are a handful of short texts.
    records = item.stash.get(_RECORDS, None)
    unsent = records.unsent() if records else ()  # fixtures may measure too, in another phase
    if unsent:
        from pytest_gpuperf.storage.files import to_json

        report.__dict__["gpuperf"] = [to_json(result) for result in unsent]
    if call.excinfo is not None and isinstance(call.excinfo.value, UsageFailure):
        report.__dict__["gpuperf_refusal"] = str(call.excinfo.value)
        report.longrepr = f"gpuperf: {call.excinfo.value}"
    return report


class _Gatherer:
    """Takes what reports bring, in the process that writes: the controller, or the only one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes the measurements of one test."""
        texts = report.__dict__.get("gpuperf", [])
        refusal = report.__dict__.get("gpuperf_refusal", "")
        if texts or refusal:
            ledger = _ledger(self._config)
            ledger.locate(report.nodeid, *report.location[:2])
            ledger.spare(report.nodeid, _spared(report))
            ledger.add(texts, refusal, failed=report.failed)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Saves the run, the reports, and baselines that were asked to be recorded."""
        if _LEDGER not in self._config.stash:
            return
        ledger = self._config.stash[_LEDGER]
        settings = self._config.stash[_SETTINGS]
        from pytest_gpuperf.errors import UsageFailure

        try:
            ledger.save(settings, _command(self._config))
        except UsageFailure as refusal:
            # Raised, it would keep pytest from saying which tests failed.
            ledger.refusals.append(str(refusal))
        if ledger.refusals:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints one row per test and metric, and the next command to type."""
        if _LEDGER not in self._config.stash:
            return
        terminalreporter.write_sep("=", "gpuperf")
        for annotation in self._config.stash[_LEDGER].annotations:
            terminalreporter.write_line(annotation)  # in one line, as GitHub reads it
        lines = self._config.stash[_LEDGER].summary(
            terminalreporter._tw.fullwidth,
            _selection(self._config),
            self._config.invocation_params.dir,
            verbose=self._config.get_verbosity() > 0,
        )
        for line in lines:
            terminalreporter.write_line(line.text, **_MARKUP.get(line.tone, {}))


def _spared(report: pytest.TestReport) -> str:
    """Why the test has not failed, whatever it measured; "" where it has."""
    if report.failed:
        return ""
    if hasattr(report, "wasxfail"):
        reason = report.wasxfail.removeprefix("reason: ")
        return f"expected to fail: {reason}" if reason else "expected to fail"
    return "the test has not failed"


_MARKUP: dict[str, dict[str, bool]] = {
    "heading": {"bold": True},
    "good": {"green": True},
    "bad": {"red": True},
    "doubtful": {"yellow": True},
}


def _prepare(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What has to be right before the first test runs. Raises UsageFailure."""
    from pytest_gpuperf.plugin import fixture

    traits = [(item, fixture.traits_of(item)) for item in items]
    suites = {its.suite for item, its in traits if "gpuperf" in _fixtures(item)}
    if config.option.collectonly:
        return
    device = _instrument(config).device
    for item in items:
        reason = fixture.elsewhere(item, device)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    fixture.check_baselines(config.stash[_SETTINGS], device, suites)


def _instrument(config: pytest.Config) -> Source:
    """What measures in this process, found at its first use. Raises UsageFailure."""
    if _INSTRUMENT not in config.stash:
        from pytest_gpuperf.measure.target import instrument_for

        settings = config.stash[_SETTINGS]
        offered = None
        if settings.replay is None:
            offered = config.hook.pytest_gpuperf_collector(
                config=config, arch=settings.arch, name=settings.collector
            )
        instrument = instrument_for(
            settings,
            _replicas(config),
            offered=offered,
            parent=config.stash[_PARENT],
            task=config.stash[_TASK],
        )
        if settings.protocol == "paper-window":
            instrument.check_window()
        config.stash[_INSTRUMENT] = instrument
    return config.stash[_INSTRUMENT]


def _judging(config: pytest.Config) -> Judging:
    """Judges what this process measures, and knows what it has measured so far."""
    if _JUDGING not in config.stash:
        from pytest_gpuperf.baselines.judgement import Judging

        settings = config.stash[_SETTINGS]
        config.stash[_JUDGING] = Judging(settings, None if settings.replay else _replicas(config))
    return config.stash[_JUDGING]


def _heed_the_parent(config: pytest.Config) -> None:
    """A process that `gpuperf record` or a test's next look started ends with who started it."""
    config.stash[_PARENT] = config.stash[_TASK] = None
    if "GPUPERF_PARENT" in os.environ:
        from pytest_gpuperf.measure import fresh_process, replica

        parent = fresh_process.follow_parent()
        config.stash[_TASK] = replica.own_task()
        # `gpuperf record` waits too, and holds no device.
        config.stash[_PARENT] = parent if config.stash[_TASK] is not None else None


def _replicas(config: pytest.Config) -> Replicas:
    if _REPLICAS not in config.stash:
        from pytest_gpuperf.measure.replica import Replicas

        parameters = config.invocation_params
        arguments, folder = getattr(config, "workerinput", {}).get(
            "gpuperf_invocation", (parameters.args, parameters.dir)
        )
        config.stash[_REPLICAS] = Replicas(
            tuple(map(str, arguments)),
            Path(folder),
            config.stash[_SETTINGS].time_limit,
            _display(config),
            distributed=config.pluginmanager.hasplugin("xdist"),
        )
    return config.stash[_REPLICAS]


def _display(config: pytest.Config) -> Display:
    """Shows what is being measured."""
    if _DISPLAY not in config.stash:
        from pytest_gpuperf.plugin.session import outlet
        from pytest_gpuperf.report.text.progress import Display, Outlet

        # What a process prints that we started, nobody reads.
        watched = config.stash[_TASK] is None
        config.stash[_DISPLAY] = Display(lambda: outlet(config) if watched else Outlet())
    return config.stash[_DISPLAY]


def _ledger(config: pytest.Config) -> Ledger:
    if _LEDGER not in config.stash:
        from pytest_gpuperf.plugin.session import Ledger

        config.stash[_LEDGER] = Ledger()
    return config.stash[_LEDGER]


def _or_usage_error(act: Callable[[], object]) -> None:
    """Runs `act`; what it refuses becomes pytest's usage error, exit code 4."""
    from pytest_gpuperf.errors import UsageFailure

    try:
        act()
    except UsageFailure as refusal:
        raise pytest.UsageError(str(refusal)) from None


def _command(config: pytest.Config) -> str:
    """What pytest was started with, as one would type it."""
    return _typed(config.invocation_params.args)


def _selection(config: pytest.Config) -> str:
    """What of it says what to measure, for the commands that the summary ends with."""
    return _typed(options.selection(config.invocation_params.args))


def _typed(arguments: Sequence[str]) -> str:
    from pytest_gpuperf.storage import files

    return files.writable(shlex.join(arguments))


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _fixtures(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


def _concerns_us(item: pytest.Item) -> bool:
    names = ("gpu", "gpu_arch", "gpuperf", "optimization")
    return "gpuperf" in _fixtures(item) or any(item.get_closest_marker(name) for name in names)
