"""The `gpuperf` fixture: measures a step, judges it, and fails the test on a regression."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import pytest

from pytest_gpuperf.baselines.judgement import (
    RECORDABLE,
    Judging,
    NotMeasured,
    Ratio,
    attributed,
    fails,
    not_collected,
)
from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import (
    CountersUnavailable,
    GpuperfError,
    MeasurementError,
    UnsoundStep,
    UsageFailure,
)
from pytest_gpuperf.judge import expectation
from pytest_gpuperf.measure.collector import Components, Phases, Plan, Work, no_reset
from pytest_gpuperf.measure.instrument import Source, Subject
from pytest_gpuperf.model.measurement import PAPER_WINDOW, STEP, Device, Measurement, Scalar
from pytest_gpuperf.model.result import Expectation, Outcome, Result
from pytest_gpuperf.model.settings import Settings
from pytest_gpuperf.plugin.markers import (
    TestTraits,
    allowed_distance,
    check_count,
    checked,
    metrics_of,
)
from pytest_gpuperf.plugin.options import selection
from pytest_gpuperf.plugin.session import session_of
from pytest_gpuperf.report.text import expectation_lines, failure, table
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.progress import Display
from pytest_gpuperf.storage import baseline_files, files


@dataclass
class Records:
    """What one test measured, until its report takes it along."""

    judged: list[Result] = field(default_factory=list)
    _sent: int = 0

    def unsent(self) -> list[Result]:
        """What was measured since the last call."""
        new = self.judged[self._sent :]
        self._sent = len(self.judged)
        return new


class GpuPerf:
    """What a test sees as `gpuperf`."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        instrument: Source,
        traits: TestTraits,
        records: Records,
        judging: Judging,
        display: Display,
    ) -> None:
        self._settings = settings
        self._instrument = instrument
        self._traits = traits
        self._records = records
        self._judging = judging
        self._display = display
        self._config = config
        self._phases = Phases()
        self._components = Components()

    @property
    def device(self) -> Device:
        """The device that is measured, or that the replayed run was measured on."""
        return self._instrument.device

    @property
    def torch_device(self) -> str:
        """Where the step's tensors belong: "cuda" or "cpu"."""
        return self._instrument.torch_device

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Marks a part of the step: `with gpuperf.phase("backward"): ...`.

        Free when nothing is measured. Phases follow each other; one inside another raises
        MeasurementError while measuring.
        """
        return self._phases.mark(name)

    def component(self, name: str) -> AbstractContextManager[None]:
        """Marks a part of the step by what it computes: `with gpuperf.component("conv2d"): ...`.

        What is launched inside counts for the innermost component. Free unless the set `activity`
        is being measured; then a name that a phase has, too, raises MeasurementError.
        """
        return self._components.mark(name)

    def measure(
        self,
        step: Callable[[], object],
        *,
        reset: Callable[[], object] | None = None,
        name: str = STEP,
        workload: Mapping[str, Scalar] | None = None,
        repetitions: int | None = None,
        reproducible: float | bool | None = None,
        settings: Callable[[], Mapping[str, Scalar]] | None = None,
    ) -> Measurement:
        """Measures `step`, compares it with its baseline, and fails the test if it got worse.

        `reset` puts the step's state back before every execution and is not measured. `name` tells
        several measurements of one test apart. `workload` says what was run (sizes, data): a
        baseline of another workload is not compared with. `repetitions` is how often it is timed;
        given here or in the marker, best, worst and mean wall time are reported by themselves.
        `settings` is asked after the step was measured for more to save beside it; seconds, under
        names that end in "_s", are never compared.

        `step` may return its loss, a float or a tensor: where it is NaN or infinite, or differs by
        more than `reproducible` between two executions after `reset`, the test fails before
        anything is counted. `reproducible` is relative (default 0.001), 0 asks for the same bits,
        False for nothing; without it the marker's keyword applies.

        Returns the measurement. Fails the test (pytest.fail) on a regression or beyond a limit, and
        on an inconclusive verdict, a missing baseline or missing counters as the settings say; and
        where the step runs out of memory. Raises UsageFailure for a name that the test has used,
        and for text that no file can hold.
        """
        traits = self._traits
        allowed = allowed_distance(traits.reproducible if reproducible is None else reproducible)
        if any(name == m.name for other in self._records.judged for m in other.measurements):
            raise UsageFailure(
                f'{traits.nodeid} measures "{name}" twice: give each measurement of a test a name '
                "of its own, gpuperf.measure(step, name=...)"
            )
        subject = Subject(
            test=traits.nodeid,
            name=name,
            suite=traits.suite,
            configuration=traits.configuration,
            workload=dict(workload or {}),
            metric_set=metrics_of(traits.metrics, self._settings.metrics),
            settings=settings or dict,
        )
        _check_text(subject)
        plan = self._plan(subject.metric_set, repetitions)
        work = Work(
            step,
            self._phases,
            reset or no_reset,
            traits.nodeid,
            name,
            self._display,
            self._components,
            reproducible=allowed,
        )
        with self._display.of(_title(subject)):
            try:
                judged = self._judged(subject, work, plan)
            except (CountersUnavailable, UnsoundStep) as error:
                pytest.fail(f"gpuperf: {error}", pytrace=False)
        measurements = judged.measurements
        self._records.judged.append(judged)
        self._config.hook.pytest_gpuperf_judged(
            config=self._config, measurement=measurements[0], verdicts=judged.verdicts
        )
        unfit = [verdict for verdict in judged.verdicts if verdict.outcome is Outcome.UNFIT]
        if unfit:
            pytest.skip(f"gpuperf: nothing is judged, the device was {unfit[0].detail}")
        self._judging.keep(judged.measurements)
        failing = [verdict for verdict in judged.verdicts if fails(verdict, self._settings)]
        limits = [limit for limit in judged.expectations if fails(limit, self._settings)]
        if failing or limits:
            pytest.fail(
                failure.failure(
                    measurements[0],
                    judged.verdicts,
                    failing,
                    self._session(),
                    judged.notes,
                    limits,
                    judged.attribution,
                ),
                pytrace=False,
            )
        return measurements[0]

    def _plan(self, metric_set: str, repetitions: int | None) -> Plan:
        """How it is measured. Raises UsageFailure for a number that is none."""
        check_count("repetitions", repetitions)
        selected = catalogue().selected(metric_set)
        plan = Plan(
            metrics=tuple(metric for metric in selected if not metric.traced),
            rounds=self._traits.rounds or self._settings.rounds,
            activity=tuple(metric for metric in selected if metric.traced),
        )
        asked = repetitions or self._traits.repetitions
        return replace(plan, repetitions=asked, extremes=True) if asked else plan

    def expect_ratio(
        self,
        metric: str,
        numerator: str,
        denominator: str,
        *,
        above: float | None = None,
        below: float | None = None,
        verified: Collection[str] | None = None,
    ) -> Expectation | None:
        """Expects `metric` of one measurement to be so many times that of another.

        Both were measured earlier in this session: as measurements of this test with these names,
        or in this suite as configurations of these names (the marker `optimization`). `verified`
        are architectures on which somebody has seen this hold; reports of any other say that nobody
        has.

        Returns what came of it, or None under --gpuperf-no-judge. Skips the test when one of the
        two was not measured in this process, or lacks the metric (which fails under
        --gpuperf-require-counters), and when both are 0. Fails the test when the ratio is shown to
        be beyond a bound, and when it is undecided as the settings say. Raises UsageFailure for an
        unknown metric or architecture, and for bounds that make no sense.
        """
        known = catalogue().metrics.get(metric)
        if known is None:
            raise UsageFailure(f'expect_ratio of "{metric}": no such metric (docs/metrics.md)')
        expectation.check_bounds(above, below)
        label = ""
        if verified is not None:
            # All of them are looked at, so that a misspelt one does not hide behind another.
            names = [verified] if isinstance(verified, str) else verified
            seen = [architectures.matches(name, self.device.arch) for name in names]
            label = "" if any(seen) else expectation_lines.unverified(self.device.arch)
        if not self._settings.judge:
            return None
        test, suite = self._traits.nodeid, self._traits.suite
        comparison = Ratio(test, suite, known, numerator, denominator, above, below)
        try:
            over, under = self._judging.pair(comparison)
        except NotMeasured as error:
            pytest.skip(f"gpuperf: {error}")
        lacking = not_collected(metric, [(numerator, over[0]), (denominator, under[0])])
        if lacking and not self._settings.require_counters:
            pytest.skip(f"gpuperf: {lacking}")
        with self._display.of(table.name_of_test(self._traits.nodeid)):
            found = self._judging.expect(comparison, over, under)
        if found.reason == "both-zero":
            pytest.skip(f"gpuperf: {expectation_lines.line(found)}")
        if lacking:
            found = replace(found, detail=lacking)
        if label:
            detail = f"{found.detail}; {label}" if found.detail else label
            found = replace(found, verified=False, detail=detail)
        self._records.judged.append(Result(found.test, found.subject, (), expectations=(found,)))
        if fails(found, self._settings):
            pytest.fail(expectation_lines.failure(found, self.device), pytrace=False)
        return found

    def _judged(self, subject: Subject, work: Work, plan: Plan) -> Result:
        """What is measured of `subject`, all that the settings ask for, and said of it."""
        measurements = self._instrument.measure(subject, work, plan)
        first, baseline = measurements[0], None
        judged = Result(first.test, first.name, measurements)
        if self._settings.judge:
            baseline = self._judging.baseline(first)
            traits = self._traits
            judged = self._judging.settle(measurements, baseline, traits.tolerance, traits.limit)
        if self._wants_kernels(judged):
            first, *others = judged.measurements
            first = self._instrument.with_kernels(first, work, plan)
            judged = replace(judged, measurements=(first, *others))
        if self._settings.timeline == "always":
            first, *others = judged.measurements
            first = self._instrument.with_timeline(first, work)
            judged = replace(judged, measurements=(first, *others))
        if baseline is not None:
            judged = attributed(judged, baseline)
        windowed = self._settings.protocol == PAPER_WINDOW
        return self._with_window(judged, work) if windowed else judged

    def _with_window(self, judged: Result, work: Work) -> Result:
        """The same with the paper's window, or a note of why it could not be counted."""
        first, *others = judged.measurements
        try:
            first = self._instrument.with_window(first, work)
        except MeasurementError as error:
            return replace(judged, notes=(*judged.notes, f"no paper window: {error}"))
        return replace(judged, measurements=(first, *others))

    def _wants_kernels(self, judged: Result) -> bool:
        wanted = self._settings.kernels
        regressed = any(verdict.outcome is Outcome.REGRESSED for verdict in judged.verdicts)
        # The baseline that is recorded of this run has them, or its regressions would name none.
        recorded = self._settings.missing == "record" and any(
            verdict.reason in RECORDABLE for verdict in judged.verdicts
        )
        return wanted == "always" or (wanted == "on-regression" and (regressed or recorded))

    def _session(self) -> CommandContext:
        typed = self._config.invocation_params
        return session_of(self._settings, shlex.join(selection(typed.args)), typed.dir)


def _check_text(subject: Subject) -> None:
    """Raises UsageFailure for text that neither a run nor a baseline can hold."""
    texts: list[tuple[str, object]] = [
        ("the test's id", subject.test),
        ("the measurement's name", subject.name),
        ("the name of the optimization", subject.configuration),
        *(("a key of the workload", key) for key in subject.workload),
        *(("a value of the workload", value) for value in subject.workload.values()),
    ]
    for what, text in texts:
        if isinstance(text, str) and files.writable(text) != text:
            raise UsageFailure(
                f'{files.writable(subject.test)}: {what}, "{files.writable(text)}", has half of a '
                "surrogate pair, which no file can hold. Nothing was measured: write it otherwise"
            )


def _title(subject: Subject) -> str:
    """What is measured, in a few words: the test, its configuration, the measurement."""
    test = table.name_of_test(subject.test)
    named = subject.configuration in test or not subject.configuration
    configured = test if named else f"{test} ({subject.configuration})"
    return configured if subject.name == STEP else f"{configured}, {subject.name}"


def traits_of(item: pytest.Item) -> TestTraits:
    """Reads a test's place and markers. Raises UsageFailure for a marker that makes no sense.

    The suite is the folder that holds the test's file; in the root directory, the file itself.
    """
    folder = item.path.parent
    suite = item.path.stem if folder == item.config.rootpath else folder.name
    configuration = ""
    try:
        for pattern in (p for marker in item.iter_markers("gpu_arch") for p in _names(marker)):
            architectures.matches(pattern, architectures.CPU)
    except UsageFailure as error:
        raise UsageFailure(f"{item.nodeid}: @pytest.mark.gpu_arch: {error}") from None
    for marker in item.iter_markers("optimization"):
        if len(marker.args) != 1 or not isinstance(marker.args[0], str) or marker.kwargs:
            raise UsageFailure(
                f"{item.nodeid}: the marker optimization takes one name, "
                'for example @pytest.mark.optimization("tf32")'
            )
        configuration = configuration or marker.args[0]
    options: dict[str, object] = {}
    for marker in reversed(list(item.iter_markers("gpuperf"))):
        if marker.args:
            raise UsageFailure(
                f"{item.nodeid}: the marker gpuperf takes keywords only, not {marker.args[0]!r}"
            )
        options.update(marker.kwargs)
    try:
        return TestTraits(item.nodeid, suite, configuration, **checked(options))  # type: ignore[arg-type]
    except GpuperfError as error:
        raise UsageFailure(f"{item.nodeid}: @pytest.mark.gpuperf: {error}") from None


def _names(marker: pytest.Mark) -> tuple[str, ...]:
    if not marker.args or marker.kwargs or not all(isinstance(a, str) for a in marker.args):
        raise UsageFailure('architectures are needed, for example ("sm80", "sm90") or ("sm80+")')
    return marker.args


def elsewhere(item: pytest.Item, device: Device) -> str:
    """Why `item` cannot run on `device`, by its markers; "" when it can."""
    if item.get_closest_marker("gpu") and device.arch == architectures.CPU:
        return "needs a GPU; there is none here, or --gpu-arch cpu was asked for"
    for marker in item.iter_markers("gpu_arch"):
        if not any(architectures.matches(pattern, device.arch) for pattern in marker.args):
            return f"only on {', '.join(marker.args)}; this device is {device.arch}"
    return ""


def check_baselines(settings: Settings, device: Device, suites: Iterable[str]) -> None:
    """Reads the baselines of `suites`, so that a bad file stops everything before the first test.

    Raises BadFile.
    """
    if settings.judge:
        for suite in sorted(suites):
            baseline_files.load_for(settings.baselines, device, suite)
