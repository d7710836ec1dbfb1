"""The hooks: pytest's hooks that this plugin implements, and one of its own.

Measuring and judging happen where the test runs, under pytest-xdist in a worker. The results
travel with the test's report to the controller, the only process that writes files.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.errors import GpuperfError, UsageFailure
from pytest_gpuperf.plugin import options, workers
from pytest_gpuperf.plugin.session import Session, session_of

if TYPE_CHECKING:
    from pytest_gpuperf.measure.collector import Collector
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from pytest_gpuperf.plugin.ledger import Ledger

_SESSION: pytest.StashKey[Session] = pytest.StashKey()
_FIXTURE: pytest.StashKey[GpuPerf] = pytest.StashKey()
_REFUSAL: pytest.StashKey[BaseException] = pytest.StashKey()
"""The error that stops all tests of a worker, or all tests after one that lost the GPU."""
_EXCUSED: pytest.StashKey[bool] = pytest.StashKey()
"""Whether a test may go without a measurement: its hardware is not there, or the test failed."""

_PACKAGE = __name__.partition(".")[0]
_MARKERS = (
    "gpu: skip the test where there is no GPU",
    'gpu_arch(*names): run only on these architectures: "sm80", or "sm80+" for sm80 and newer',
    "gpuperf(metrics=, tolerance=, rounds=, repetitions=, limit=, reproducible=): how the step is "
    "measured and compared",
    "optimization(name): name of the measured configuration, for reports",
    "gpus(n): the test needs n GPUs, whose UUIDs are gpuperf.gpus; skip it if there are fewer",
)
_MARKUP: dict[str, dict[str, bool]] = {
    "heading": {"bold": True},
    "good": {"green": True},
    "bad": {"red": True},
    "doubtful": {"yellow": True},
}


class Hookspecs:
    """The hook that pytest-gpuperf offers to conftest files and other plugins."""

    @pytest.hookspec(firstresult=True)
    def pytest_gpuperf_collector(
        self, config: pytest.Config, arch: str, name: str
    ) -> Collector | None:
        """A collector of your own, for hardware or a protocol that is not built in.

        `arch` and `name` are what `--gpu-arch` and `--gpuperf-collector` say, "auto" included.
        Return None to leave the choice to others.
        """


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers flags and ini settings."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Adds the hooks of this plugin to pytest's, and what it implements of pytest-xdist's."""
    pluginmanager.add_hookspecs(Hookspecs)
    pluginmanager.register(workers, "gpuperf-workers")


def pytest_configure(config: pytest.Config) -> None:
    """Reads the settings, and registers what gathers results in the process that writes files."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    session = config.stash[_SESSION] = session_of(config)
    config.add_cleanup(session.at_last.close)  # cleanups run in reverse: after pytest's
    origin, role = session.origin, session.role
    if role is not None:
        config.add_cleanup(role.close)
    if origin.assignment is not None:
        # The controller is told of groups: in the ids of tests, by which baselines know them, none
        # is looked for.
        config.option.loadgroup = False
    if role is not None and role.follows:
        from pytest_gpuperf.plugin.rank_role import Follower

        config.pluginmanager.register(Follower(role, config), "gpuperf-follower")
    elif not origin.is_worker:
        config.pluginmanager.register(_Gatherer(session), "gpuperf-gatherer")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Validates markers, skips what cannot run here, and reads the baselines once, before all."""
    session = config.stash[_SESSION]
    if session.origin.task is not None:
        test = session.origin.task.test
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid != test])
        items[:] = [item for item in items if item.nodeid == test]
    concerned = [item for item in items if _concerns_us(item)]
    assignment = session.origin.assignment
    if not concerned and assignment is None:
        return
    try:
        if assignment is not None:
            workers.tell(Path(assignment.folder), items)
        if concerned:
            _prepare(session, concerned)
    except UsageFailure as refusal:
        if not session.origin.is_worker:
            raise pytest.UsageError(str(refusal)) from None
        # A worker that stops here would take its controller along; its tests say it instead.
        config.stash[_REFUSAL] = refusal


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Notes the timer that pytest-timeout sets; that plugin sets the timer itself."""
    item.config.stash[_SESSION].timer.update(item=item, settings=settings)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    """Notes that the timer of pytest-timeout has stopped."""
    item.config.stash[_SESSION].timer.clear()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Has a fresh process wait for its turn after importing all tests; xdist's workers, too."""
    own = session.config.stash[_SESSION]
    if own.origin.is_fresh:
        from pytest_gpuperf.measure import fresh_process

        own.at_last.callback(lambda: fresh_process.end(int(session.exitstatus)))
    if own.origin.turn is not None:
        own.origin.turn()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Has a test wait for a worker's GPU before any plugin measures the test's duration.

    After a test for which the ranks have stopped, no rank begins another test.
    """
    session = item.config.stash[_SESSION]
    if _concerns_us(item):
        session.heap.freeze()
    wanted = 0 if _REFUSAL in item.config.stash else _gpus(item)
    with session.holding(wanted):
        done = yield
    if session.others is not None and session.others.stopped:
        from pytest_gpuperf.measure.barrier import STOPPED

        item.session.shouldfail = STOPPED
    return done


def pytest_fixture_post_finalizer(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> None:
    """Has what a fixture of several tests left collected with everything else."""
    if fixturedef.scope != "function":
        request.config.stash[_SESSION].heap.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails a worker's test with the error that would have stopped a process without workers.

    Runs before pytest's own hook, which sets fixtures up: the counting of a process with a task
    begins here.
    """
    session = item.config.stash[_SESSION]
    if _REFUSAL in item.config.stash and _concerns_us(item):
        raise item.config.stash[_REFUSAL]
    task = session.origin.task
    if task is not None and not task.is_replica:
        session.instrument.begin()


@pytest.fixture
def gpuperf(request: pytest.FixtureRequest) -> Generator[GpuPerf, None, None]:
    """Measures a step, compares it with its baseline, and fails the test if it got worse.

    `gpuperf.measure(step, reset=...)` measures; `gpuperf.phase(name)` marks a part of the step. A
    test that takes it, ends well and has asked nothing of it is warned.
    """
    from pytest_gpuperf.plugin import fixture, markers

    item: pytest.Item = request.node
    if not _concerns_us(item):
        pytest.fail(
            f"gpuperf: {item.nodeid} gets the fixture gpuperf only by request.getfixturevalue, "
            "too late to assign a GPU and to save measurements. Add "
            '@pytest.mark.usefixtures("gpuperf") to the test',
            pytrace=False,
        )
    # Its own for every execution: a test may be run again after it failed.
    made = fixture.GpuPerf(request.config.stash[_SESSION], markers.traits_of(item))
    item.stash[_FIXTURE] = made
    yield made
    if not made.used:
        said = "this test requests the fixture gpuperf but measures nothing with it"
        warnings.warn(pytest.PytestWarning(said), stacklevel=2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Sends what a test measured along with its report, which points at the test's own lines."""
    fixture = item.stash.get(_FIXTURE, None)
    if fixture is not None:
        fixture.used = fixture.used or call.excinfo is not None
        from pytest_gpuperf.report.interchange import share

        share(fixture.results, item.user_properties, getattr(item, "funcargs", {}))
    said = ""
    if _concerns_us(item) and call.excinfo is not None:
        if not item.config.option.fulltrace:
            call.excinfo = _without_us(call.excinfo)
        said = _message(item, call.excinfo)
    report = yield
    if call.when == "teardown":
        _lose_gpu(item)
    if report.failed:
        item.stash[_EXCUSED] = True
    if said and call.excinfo is not None:
        failed = pytest.fail.Exception(said, pytrace=False).with_traceback(call.excinfo.tb)
        if isinstance(call.excinfo.value, pytest.fail.Exception):
            failed.__context__ = call.excinfo.value.__context__  # another measurement's
        report.longrepr = item.repr_failure(pytest.ExceptionInfo.from_exception(failed))
    # TestReport keeps attributes it does not know, also on the way from an xdist worker. They stay
    # out of user_properties, which JUnit files print in full: those are a handful of short texts.
    if sent := dict(_sent(item, call, report, said)):
        report.__dict__[_PACKAGE] = sent
    if fixture is not None and call.when == "teardown":
        del item.stash[_FIXTURE]  # pytest keeps the test to the end
    return report


def _sent(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, said: str
) -> Iterator[tuple[str, Any]]:
    """What the process that writes files gets to know of a test, by name; `said` is our message."""
    fixture = item.stash.get(_FIXTURE, None)
    if call.when == "teardown" and not item.stash.get(_EXCUSED, False):
        measured = [one.name for one in (fixture.results if fixture else ()) if one.measurements]
        entries = item.config.stash[_SESSION].entries.get(item.nodeid, ())
        if left := [name for name in entries if name not in measured]:
            yield "unmeasured", left
    if not _concerns_us(item):
        return
    from pytest_gpuperf.model.result import TEST_FAILED

    if fixture is not None and (unsent := fixture.unsent()):  # fixtures may measure, too
        from pytest_gpuperf.storage.files import to_json

        yield "results", [to_json(result) for result in unsent]
    if said and call.excinfo is not None:
        yield "told", item.config.option.tbstyle not in ("no", "line")
        if isinstance(call.excinfo.value, UsageFailure):
            yield "refusal", str(call.excinfo.value)
    if report.skipped and isinstance(report.longrepr, tuple):
        yield "skipped", report.longrepr[2].removeprefix("Skipped: ")
    # Where it failed by its verdict, the results say so.
    if report.failed and not (said and fixture and fixture.results):
        yield "skipped", TEST_FAILED


def _lose_gpu(item: pytest.Item) -> None:
    """Makes all later tests with our fixture report that this process has lost its GPU."""
    session, stash = item.config.stash[_SESSION], item.config.stash
    torch: Any = sys.modules.get("torch")
    if torch is None or "instrument" not in session.__dict__ or _REFUSAL in stash:
        return  # nobody measures here, or it was said
    if session.instrument.torch_device == "cuda" and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            told = f"{error}".split("\n")[0]
            stash[_REFUSAL] = pytest.fail.Exception(
                f"gpuperf: this process lost its GPU in {item.nodeid}: {told}. Later tests cannot "
                "use this GPU. Fix that test, or deselect it",
                pytrace=False,
            )


def _without_us(raised: pytest.ExceptionInfo[BaseException]) -> pytest.ExceptionInfo[BaseException]:
    """The exception without our lines: a test fails at its own. Errors in our code keep them."""
    every = [raised.tb]
    while (following := every[-1].tb_next) is not None:
        every.append(following)
    kept = [entry for entry in every if not _is_ours(entry.tb_frame)]
    meant = (GpuperfError, pytest.fail.Exception, pytest.skip.Exception)
    if not kept or (_is_ours(every[-1].tb_frame) and not isinstance(raised.value, meant)):
        return raised
    linked: TracebackType | None = None
    for entry in reversed(kept):
        linked = TracebackType(linked, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return pytest.ExceptionInfo.from_exception(raised.value.with_traceback(linked))


def _is_ours(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(f"{_PACKAGE}.")


def _message(item: pytest.Item, raised: pytest.ExceptionInfo[BaseException]) -> str:
    """The message of a test that we fail, fit for the terminal; its place comes last, as in pytest.

    "" for other failures.
    """
    from pytest_gpuperf.report.text.table import within
    from pytest_gpuperf.storage.files import short

    text = str(raised.value)
    if isinstance(raised.value, GpuperfError):
        text = f"gpuperf: {text}"
    elif not (isinstance(raised.value, pytest.fail.Exception) and text.startswith("gpuperf: ")):
        return ""
    if raised.value is item.config.stash.get(_REFUSAL, None):  # no line of the test has run
        file, line, _ = item.reportinfo()
    else:
        its = raised.traceback.filter(raised)
        last = [entry for entry in its if not _is_ours(entry.frame)][-1]
        file, line = last.path, last.lineno
    place = f"{short(Path(file), item.config.invocation_params.dir)}:{(line or 0) + 1}"
    return "\n".join([*within(text, item.config.stash[_SESSION].width), f"{place}: Failed"])


class _Gatherer:
    """Gathers the data of test reports in the process that writes files: the controller, if any."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ledger: Ledger | None = None
        """The ledger of all measurements; None before the first."""
        self._ran: set[str] = set()
        """Node ids of tests that have begun."""
        self._found: set[str] = set()
        self._order: Sequence[str] = ()
        """Node ids of the tests to run, in their order."""
        self._skipped: dict[str, str] = {}
        """The reason for each of our tests that was skipped or failed."""

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Notes the tests that were deselected."""
        self._found.update(item.nodeid for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Notes the collected tests."""
        self._order = [item.nodeid for item in session.items]
        self._found.update(self._order)
        if any("::" in argument for argument in session.config.args):
            self._found.clear()  # of a file of which one test was named nobody knows the others

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Notes the order of the tests, which is the same in all workers."""
        self._order = ids

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes the measurements of one test."""
        self._ran.add(report.nodeid)
        sent: dict[str, Any] = report.__dict__.pop(_PACKAGE, {})  # pytest keeps the report
        # What pytest-rerunfailures runs again is measured again: the last of it counts, once.
        if report.outcome == "rerun":  # type: ignore[comparison-overlap]
            return
        if "skipped" in sent:
            self._skipped[report.nodeid] = sent["skipped"]
        if "unmeasured" in sent:
            self._gathered().unmeasured[report.nodeid] = sent["unmeasured"]
        texts, refusal, told = sent.get("results", []), sent.get("refusal", ""), sent.get("told")
        if texts or refusal:
            ledger = self._gathered()
            ledger.collected = self._found
            place = report.location[:2]
            ledger.add(texts, refusal, failed=report.failed, told=bool(told), place=place)
            quiet = self._session.config.get_verbosity() <= 0
            if quiet and told and texts and report.failed:
                _shorten(report, ledger.repeated(self._session.width))
            if len(self._ran) != len(self._order):  # else the run itself follows
                ledger.save_draft(len(self._ran), len(self._order))

    @property
    def _lost(self) -> bool:
        """Whether workers with GPUs have collected tests, and none of these ever began."""
        return bool(self._order) and not self._ran and workers.dealt(self._session.config)

    def _gathered(self) -> Ledger:
        """The ledger, made at its first use."""
        if self._ledger is None:
            from pytest_gpuperf.plugin.ledger import Ledger
            from pytest_gpuperf.storage.run_files import command_line, within

            settings, typed = self._session.settings, self._session.config.invocation_params.args
            self._ledger = Ledger(settings, command_line(within(settings.root, typed)))
            self._ledger.skipped = self._skipped
        return self._ledger

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Saves the run, the reports, and baselines that were asked to be recorded.

        A session fails where it had to judge measurements and judged none.
        """
        ledger = self._ledger
        if ledger is None:
            if self._lost and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return
        ledger.arrange(self._order)
        try:
            ledger.save(self._session.context)
        except UsageFailure as refusal:
            # Raised, it would keep pytest from saying which tests failed.
            ledger.refusals.append(str(refusal))
        if ledger.refusals:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        elif session.exitstatus == pytest.ExitCode.OK and ledger.fails:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints one row per test, the next command to type, and the totals."""
        ledger, config = self._ledger, self._session.config
        if ledger is None:
            if self._lost:
                terminalreporter.write_line("gpuperf: the workers died before any test ran")
            return
        width, verbosity = terminalreporter._tw.fullwidth, config.get_verbosity()
        context, lines = self._session.context(ledger.saved), []
        if verbosity >= 0:
            lines += ledger.summary(width, context, verbose=verbosity > 0)
        if not self._session.origin.is_fresh:  # it measures only, and another process judges
            lines += ledger.closing(width, context)
        if not (lines or ledger.annotations):
            return
        terminalreporter.write_sep("=", "gpuperf")
        for annotation in ledger.annotations:
            terminalreporter.write_line(annotation)  # in one line, as GitHub reads it
        for line in lines:
            terminalreporter.write_line(line.text, **_MARKUP.get(line.tone, {}))


def _shorten(report: pytest.TestReport, lines: Sequence[str]) -> None:
    """Puts `lines`, if any, in place of what pytest prints of a failed test.

    Runs after other plugins have read the whole message, for JUnit files for example.
    """
    chain: Any = getattr(report.longrepr, "chain", None)
    if lines and chain:
        traceback, _, _ = chain[-1]
        traceback.reprentries[-1].lines[:] = lines


def _prepare(session: Session, items: list[pytest.Item]) -> None:
    """Prepares all that the first test needs. Raises UsageFailure."""
    from pytest_gpuperf.plugin import markers
    from pytest_gpuperf.storage import baseline_files, files, run_files

    traits = [(item, markers.traits_of(item)) for item in items]
    if session.config.option.collectonly:
        return
    for item in items:
        # Its node id may be that of a test in the root directory.
        if "gpuperf" in _fixtures(item) and not item.path.is_relative_to(session.config.rootpath):
            raise UsageFailure(
                f"{item.path} is outside of the root directory {session.config.rootpath}, whose "
                "baselines apply. Run this file by itself, or pass --rootdir with a folder above "
                "both"
            )
    device, settings = session.instrument.device, session.settings
    for file in (settings.run, *settings.reports):
        if file is not None:
            files.check_writable(file)
    if settings.run is None and settings.replay is None:
        run_files.own_folder(settings.root, run_files.FOLDER)
    for item in items:
        reason = markers.elsewhere(item, device, session.gpus_here)
        if reason:
            item.stash[_EXCUSED] = True
            item.add_marker(pytest.mark.skip(reason=reason))
    suites = {its.suite for item, its in traits if "gpuperf" in _fixtures(item)}
    # One that cannot have baselines is refused where it is measured, by its test's name.
    fit = [suite for suite in sorted(suites) if settings.judge and not files.name_problem(suite)]
    for suite in fit:
        known = baseline_files.load_for(settings.baselines, device, suite)
        if known is not None:
            session.entries.update((test, (*entries,)) for test, entries in known.tests.items())


def _fixtures(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


def _gpus(item: pytest.Item) -> int:
    """The number of GPUs that a test needs for itself, without other tests of the session."""
    if not _concerns_us(item):
        return 1 if item.get_closest_marker("gpu") else 0
    from pytest_gpuperf.plugin import markers

    return markers.gpus_of(item)


def _concerns_us(item: pytest.Item) -> bool:
    """Whether a test has the fixture or a marker of ours; many projects have a marker `gpu`."""
    names = ("gpu_arch", "gpuperf", "optimization")
    return "gpuperf" in _fixtures(item) or any(item.get_closest_marker(name) for name in names)
