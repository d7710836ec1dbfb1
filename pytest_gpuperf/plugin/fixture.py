"""The `gpuperf` fixture: measures a step, judges it, and fails the test on a regression."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_gpuperf.baselines import judgement
from pytest_gpuperf.baselines.reference import Baseline
from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import ALWAYS, catalogue, no_metric
from pytest_gpuperf.errors import (
    CountersUnavailable,
    MeasurementError,
    UnsoundStep,
    UsageFailure,
    printable_lines,
)
from pytest_gpuperf.judge import expectation, stopping
from pytest_gpuperf.measure.collector import Components, Phases, Plan, Work, never, no_reset
from pytest_gpuperf.measure.instrument import PROVING, Measurer, RecordedRun, Subject
from pytest_gpuperf.measure.ranks import Rank, RankLauncher
from pytest_gpuperf.model.measurement import (
    PAPER_WINDOW,
    SLOWDOWN,
    STEP,
    Device,
    Measurement,
    Scalar,
    plain_name,
    title_of,
)
from pytest_gpuperf.model.result import Expectation, Outcome, Result, Verdict
from pytest_gpuperf.plugin.markers import MarkerOptions, allowed_distance, check_count
from pytest_gpuperf.plugin.rank_role import FOLLOWED
from pytest_gpuperf.plugin.session import Session
from pytest_gpuperf.report.text import expectation_lines, failure
from pytest_gpuperf.storage import files

if TYPE_CHECKING:
    import torch

    from pytest_gpuperf.measure.reset import Stateful

_NOT_HERE = no_reset
"""The reset of a step that other processes execute."""


class GpuPerf:
    """The object that a test gets as `gpuperf`."""

    def __init__(self, session: Session, traits: MarkerOptions) -> None:
        self.results: list[Result] = []
        """The results that this execution of the test measured."""
        self.used = False
        """Whether the test has measured or compared something, or asked for its device."""
        self._sent = 0
        self._measuring = ""
        """The name of the measurement in progress."""
        self._session = session
        self._settings = session.settings
        self._instrument = session.instrument
        self._traits = traits
        self._phases = Phases()
        self._components = Components()

    def unsent(self) -> list[Result]:
        """The results since the last call, to be sent along with the test's report."""
        new = self.results[self._sent :]
        self._sent = len(self.results)
        return new

    @property
    def device(self) -> Device:
        """The device that is measured, or that the replayed run was measured on."""
        self.used = True
        return self._instrument.device

    @property
    def torch_device(self) -> torch.device:
        """The device for the step's tensors: the measured GPU, or the CPU."""
        import torch

        self.used = True
        return torch.device(self._instrument.torch_device)

    def reset_of(self, *parts: Stateful) -> Callable[[], None]:
        """A `reset` for `measure`: restores the present state of modules, optimizers and others.

        It also restores the states of Python's, NumPy's and torch's random generators. Raises
        UsageFailure for a part without a state_dict.
        """
        from pytest_gpuperf.measure.reset import reset_of

        return reset_of(*parts)

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the test's GPUs, as CUDA_VISIBLE_DEVICES takes them.

        The first is the one that this process measures. `@pytest.mark.gpus(n)` asks for n: the
        others are for processes that the test starts. No other test of the session uses these GPUs
        meanwhile. Empty without a GPU, and where a recorded run is judged.
        """
        self.used = True
        return tuple(self._session.held) or (self._session.gpus_here or ())[:1]

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Marks a part of the step: `with gpuperf.phase("backward"): ...`.

        Free when nothing is measured. Phases follow each other; one inside another raises
        MeasurementError while measuring.
        """
        return self._phases.mark(name)

    def component(self, name: str) -> AbstractContextManager[None]:
        """Marks a part of the step by what it computes: `with gpuperf.component("conv2d"): ...`.

        Launches inside count for the innermost component. Free unless the set `activity`
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
        anything is judged. `reproducible` is relative (default 0.001), 0 asks for the same bits,
        False for nothing; without it the marker's keyword applies.

        Returns the measurement. Fails the test (pytest.fail) on a regression or beyond a limit, and
        on an inconclusive verdict, a missing baseline, missing counters or no verdict at all as the
        settings say. Raises UnsoundStep for a step that runs out of memory or that cannot be seen,
        CountersUnavailable where nothing can be read, and UsageFailure for a step or reset
        that cannot be called, for a name that the test has used, and for a name, a workload or
        settings that no file can hold: they are texts, bools and finite numbers. Called inside a
        step that is being measured, it fails the test.
        """
        asked = (name, workload, repetitions, reproducible)
        return self._measured(self._instrument, step, reset, settings, *asked)

    def measure_ranks(
        self,
        entry: Callable[[int], Callable[[], object]],
        ranks: int = 2,
        *,
        gpus: Sequence[str] | None = None,
        name: str = STEP,
        workload: Mapping[str, Scalar] | None = None,
        repetitions: int | None = None,
        reproducible: float | bool | None = None,
    ) -> Measurement:
        """Measures a step that several ranks execute together, and starts the ranks.

        Each rank is a fresh process that runs this test up to here, with torchrun's variables
        (RANK, WORLD_SIZE, MASTER_ADDR and so on) in its environment and a GPU of its own as its
        only one. There `entry(rank)` is called, which opens the process group and returns the step;
        where that has a `reset`, it is called before every execution. Where torchrun has started
        the ranks already, these ranks are measured. Each test in turn calls `entry` in them, and
        `entry` finds the process group of the test before. A different number skips the test.

        `gpus` are the UUIDs of the GPUs; without it those of `gpuperf.gpus`, or all that the test
        may have. The test is skipped with fewer GPUs than ranks. Otherwise as `measure`: one
        measurement, one verdict, the workload says how many ranks there were, and the file has the
        samples of each.
        """
        asked = (name, workload, repetitions, reproducible)
        check_count("ranks", ranks)
        role = self._session.role
        own = role.rank if role is not None else None
        # What a session of ours has started was counted there: here is one GPU to see.
        if own is not None and not own.launched and own.count != ranks:
            self.used = True
            _skip(
                f"gpuperf: this test measures {ranks} ranks, but torchrun started {own.count}. "
                f"Type torchrun --nproc-per-node {ranks} -m pytest ..."
            )
        if own is not None and own.only in ("", name):
            step = self._entered(entry, own, name)
            reset = getattr(step, "reset", None)
            return self._measured(self._instrument, step, reset, None, *asked)
        if own is not None or isinstance(self._instrument, RecordedRun):
            return self._measured(self._instrument, _NOT_HERE, None, None, *asked)
        on_cpu = self._instrument.torch_device == "cpu"
        given = () if on_cpu else gpus or self._session.held or self._session.gpus_here or ()
        if not on_cpu and len(given) < ranks:
            _skip(f"gpuperf: {ranks} ranks need {ranks} GPUs, but this test has only {len(given)}")
        replicas, decides = self._session.replicas, self._session.decides
        kernels = self._settings.kernels == "always"
        launcher = RankLauncher(replicas, ranks, given, decides=decides, kernels=kernels)
        return self._measured(launcher, _NOT_HERE, None, None, *asked)

    def _entered(
        self, entry: Callable[[int], Callable[[], object]], own: Rank, name: str
    ) -> Callable[[], object]:
        """The step that this rank makes. The other ranks may wait for this rank meanwhile."""
        others = self._session.others  # None where a recorded run is judged
        try:
            with others.entering(name, self._traits.nodeid) if others else nullcontext():
                return entry(own.number)
        except UnsoundStep:
            raise
        except BaseException as error:
            # Under torchrun all ranks skip what cannot run here, and go on to the next test.
            if others and (own.launched or not isinstance(error, pytest.skip.Exception)):
                others.client.fails(error)
            raise

    def _measured(
        self,
        measurer: Measurer,
        step: Callable[[], object],
        reset: Callable[[], object] | None,
        settings: Callable[[], Mapping[str, Scalar]] | None,
        name: str,
        workload: Mapping[str, Scalar] | None,
        repetitions: int | None,
        reproducible: float | bool | None,
    ) -> Measurement:
        self.used = True
        if self._measuring:  # it would wait for the device, which this very measurement holds
            _fail(
                f'gpuperf: the step of "{self._measuring}" calls gpuperf.measure (name "{name}"), '
                "but measurements cannot be nested. Measure one after the other, or mark a part "
                "of the step with gpuperf.phase"
            )
        traits = self._traits
        allowed = allowed_distance(traits.reproducible if reproducible is None else reproducible)
        if any(name == result.name for result in self.results if result.measurements):
            raise UsageFailure(
                f'{traits.nodeid} measures "{name}" twice. Give each measurement of a test its own '
                "name: gpuperf.measure(step, name=...)"
            )
        for what, given, call in (
            ("step", step, "step"),
            ("reset", reset or no_reset, "step, reset=reset"),
        ):
            if not callable(given):
                raise UsageFailure(
                    f"{traits.nodeid}: the {what} is of type {type(given).__name__}. Pass the "
                    f"function itself, gpuperf.measure({call}), not its return value"
                )
        subject = Subject(
            test=traits.nodeid,
            name=name,
            suite=traits.suite,
            configuration=traits.configuration,
            workload=_scalars("workload", workload or {}),
            metric_set=traits.measured(self._settings.metrics),
            settings=lambda: _scalars("settings", settings() if settings else {}),
            tolerance=traits.tolerance,
        )
        _check_text(subject)
        plan = self._plan(subject.metric_set, repetitions)
        work = Work(
            step,
            self._phases,
            reset or no_reset,
            traits.nodeid,
            name,
            self._session.display,
            self._components,
            reproducible=allowed,
        )
        self._measuring = name
        try:
            with self._agreed():
                if PROVING in os.environ and step is not _NOT_HERE and not self._session.role:
                    return self._proven(measurer, subject, work, plan)
                return self._judged(measurer, subject, work, plan)
        finally:
            self._measuring = ""

    def _proven(self, measurer: Measurer, subject: Subject, work: Work, plan: Plan) -> Measurement:
        """Measures the step as it is, and with each slowdown of `gpuperf prove`.

        Fails the test if any of these measurements would fail it.
        """
        from pytest_gpuperf.measure.slowdown import slowed_steps

        device, failed = self._instrument.torch_device, []
        # On a CPU one execution tells counts; a slowdown is far larger than what rounds differ by.
        slowed = replace(plan, rounds=1, repetitions=1 if device == "cpu" else 2)
        plain = slowed if device == "cpu" else plan
        measured = partial(self._judged, measurer, subject, work, plain)
        for step in slowed_steps(work, device, self._settings.root, measured):
            name = f"{subject.name} [{step}]"
            reset = work.reset if work.reset is no_reset else step.reset
            its_work = replace(work, step=step.step, reset=reset, name=name, phases=Phases())
            both = subject.settings, step.settings
            its_subject = replace(subject, name=name, settings=partial(_joined, *both))
            try:
                self._judged(measurer, its_subject, its_work, slowed)
            except (pytest.fail.Exception, CountersUnavailable, UnsoundStep):
                failed.append(str(step))
            except pytest.skip.Exception:
                continue
        if failed:
            _fail(f"gpuperf: this test fails with {', '.join(failed)}")
        return self.results[-1].first

    @contextmanager
    def _agreed(self) -> Iterator[None]:
        """A block that ends on all ranks in the same way as on the leading rank.

        The ranks go on together: a rank that waits for the verdict would meet another's next test.
        """
        outcome = "failed"
        try:
            yield
            outcome = "passed"
        except pytest.skip.Exception:
            outcome = "skipped"
            raise
        finally:
            if self._session.others is not None:
                outcome = self._session.others.verdict(outcome)
        if outcome == "failed":
            _fail(f"gpuperf: {FOLLOWED}, and the test failed there")
        if outcome == "skipped":
            _skip(f"gpuperf: {FOLLOWED}, and the test was skipped there")

    def _judged(self, measurer: Measurer, subject: Subject, work: Work, plan: Plan) -> Measurement:
        """The result of measuring and judging `subject`; fails or skips the test."""
        with self._session.display.of(title_of(subject.test, subject.name)):
            result = self._result(measurer, subject, work, plan)
        self.results.append(result)
        self._conclude(result)
        return result.first

    def _conclude(self, result: Result) -> None:
        """Fails or skips the test where the verdict on its measurement asks for that."""
        lack = judgement.unjudged_reason(result)
        unfit = [verdict for verdict in result.verdicts if verdict.outcome is Outcome.UNFIT]
        if unfit and not self._settings.require_judged:
            _skip(f"gpuperf: not compared, as the device was {unfit[0].detail}")
        if not unfit and SLOWDOWN not in result.first.fingerprint.settings:
            self._session.judging.keep(result.measurements)
        said: list[Verdict | Expectation] = [*result.verdicts, *result.expectations]
        failing = [entry for entry in said if judgement.fails(entry, self._settings)]
        if failing:
            context = self._session.context()
            _fail(failure.failure(result, failing, context, self._session.width))
        if lack is judgement.Unjudged.MACHINE and not self._settings.require_judged:
            _skip(f"gpuperf: {failure.machine(result)}")
        if lack and self._settings.require_judged:
            _fail(failure.unjudged(result, lack, self._session.context()))

    def _plan(self, metric_set: str, repetitions: int | None) -> Plan:
        """The plan of the measurement. Raises UsageFailure for an invalid number of repetitions."""
        check_count("repetitions", repetitions)
        selected = catalogue().selected(metric_set)
        plan = Plan(
            metrics=tuple(metric for metric in selected if not metric.traced),
            rounds=self._traits.rounds or self._settings.rounds,
            enough=partial(
                stopping.enough_rounds,
                metrics=catalogue().metrics,
                tolerances=self._traits.tolerance,
            )
            if self._session.decides
            else never,
            activity=tuple(metric for metric in selected if metric.traced),
            components=any(m.traced and m.name not in catalogue().sets[ALWAYS] for m in selected),
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
        are architectures on which this ratio has been observed; reports of others say that it
        has not.

        Returns the result, or None under --gpuperf-no-judge. Skips the test when one of the
        two was not measured in this process, or lacks the metric (which fails under
        --gpuperf-require-counters), and when both are 0. Fails the test when the ratio is shown to
        be beyond a bound, and when it is undecided as the settings say. Raises UsageFailure for an
        unknown metric or architecture, and for bounds that make no sense.
        """
        self.used = True
        known = catalogue().metrics.get(metric)
        if known is None:
            raise UsageFailure(f'expect_ratio of "{metric}": {no_metric(metric)}')
        expectation.check_bounds(above, below)
        label = ""
        if verified is not None:
            # All of them are looked at, so that a misspelt one does not hide behind another.
            names = [verified] if isinstance(verified, str) else verified
            seen = [architectures.matches(name, self.device.arch) for name in names]
            label = "" if any(seen) else f"not yet verified on {self.device.arch}"
        if not self._settings.judge:
            return None
        test, suite = self._traits.nodeid, self._traits.suite
        ratio = expectation.Ratio(test, suite, known, numerator, denominator, above, below)
        judging = self._session.judging
        try:
            over, under = judging.pair(ratio)
        except judgement.NotMeasured as error:
            _skip(f"gpuperf: {error}")
        lacking = judgement.not_collected(metric, [(numerator, over[0]), (denominator, under[0])])
        if lacking and not self._settings.require_counters:
            _skip(f"gpuperf: {lacking}")
        with self._session.display.of(title_of(test)):
            expected = judging.expect(ratio, over, under)
        if expected.reason == "both-zero":
            _skip(f"gpuperf: {expectation_lines.line(expected)}")
        detail = "; ".join(filter(None, [lacking or expected.detail, label]))
        expected = replace(expected, verified=not label, detail=detail)
        self.results.append(Result(test, ratio.subject, (), expectations=(expected,)))
        if judgement.fails(expected, self._settings):
            _fail(expectation_lines.failure(expected, self.device))
        return expected

    def _result(self, measurer: Measurer, subject: Subject, work: Work, plan: Plan) -> Result:
        """The result for `subject`: its measurements, as the settings ask, and their verdicts."""
        measurements = measurer.measure(subject, work, plan)
        with_kernels = cache(lambda: measurer.with_kernels(measurements[0], work, plan))
        judging, traits = self._session.judging, self._traits
        baseline, notes = self._baseline(measurements[0])
        of_suite = {} if baseline is None else baseline.suite.tolerance
        tolerance = {**of_suite, **traits.tolerance}
        measurements = tuple(replace(one, tolerance=tolerance) for one in measurements)
        result = Result(subject.test, subject.name, measurements, notes=notes)
        if baseline is not None and self._settings.judge:
            # By then the counts of a regression's kernels are there, and else nobody wants them.
            meanwhile = with_kernels if self._settings.kernels == "on-regression" else None
            result = judging.settle(measurements, baseline, traits.limit, meanwhile)
        first, *others = result.measurements
        if self._wants_kernels(result):
            first = with_kernels()
        notes = (*result.notes, *judgement.notes_on((first, *others)))
        result = replace(result, measurements=(first, *others), notes=notes)
        if baseline is not None and self._settings.judge:
            result = judgement.attributed(result, baseline)
            notes = (*result.notes, *judgement.much_longer(result, baseline))
            result = replace(result, notes=notes)
        if self._settings.protocol == PAPER_WINDOW:
            try:
                first = measurer.with_window(first, work)
            except MeasurementError as error:
                return replace(result, notes=(*result.notes, f"paper window missing: {error}"))
        return replace(result, measurements=(first, *others))

    def _baseline(self, measured: Measurement) -> tuple[Baseline | None, tuple[str, ...]]:
        """The baseline and notes on it. Where nothing is judged, only its tolerance is needed.

        `gpuperf ab` judges by that tolerance. Raises UsageFailure for an unreadable baseline.
        """
        try:
            return self._session.judging.baseline(replace(measured, name=plain_name(measured))), ()
        except UsageFailure as error:
            if self._settings.judge:
                raise
            return None, (f"the tolerances of the suite's baseline cannot be read: {error}",)

    def _wants_kernels(self, result: Result) -> bool:
        if self._settings.kernels != "on-regression":
            return self._settings.kernels == "always"
        # The baseline that is recorded of this run has them, or its regressions would name none.
        recording = self._settings.missing == "record"
        return any(
            v.outcome is Outcome.REGRESSED or (recording and v.reason in judgement.RECORDABLE)
            for v in result.verdicts
        )


def _joined(*settings: Callable[[], Mapping[str, Scalar]]) -> dict[str, Scalar]:
    return {key: value for own in settings for key, value in own().items()}


def _fail(why: str) -> NoReturn:
    """Fails the test. pytest prints the reason as it is, so names in it are made harmless here."""
    pytest.fail(printable_lines(why), pytrace=False)


def _skip(why: str) -> NoReturn:
    """Skips the test; names in the reason are made harmless here, too."""
    pytest.skip(printable_lines(why))


def _scalars(what: str, values: object) -> dict[str, Scalar]:
    """Values that a run can hold, by name; numbers of numpy as Python's. Raises UsageFailure."""
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise UsageFailure(f"{what} is {_quoted(values)}, but must be a dict with names as keys")
    return {key: _scalar(f'{what}["{key}"]', value) for key, value in values.items()}


def _scalar(what: str, value: object) -> Scalar:
    if isinstance(value, (str, bool)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise UsageFailure(
        f"{what} is {_quoted(value)}, but must be a str, a bool or a finite number. Convert the "
        "value, for example by str(...)"
    )


def _quoted(value: object) -> str:
    return files.writable(reprlib.repr(value))


def _check_text(subject: Subject) -> None:
    """Raises UsageFailure for text that a run or a baseline can neither hold nor have as a name."""
    if not (isinstance(subject.name, str) and subject.name):
        raise UsageFailure(
            f"the measurement's name is {_quoted(subject.name)}, but must be a str: "
            'gpuperf.measure(step, name="...")'
        )
    named = (subject.test, subject.name, subject.configuration)
    for text in (*named, *subject.workload, *map(str, subject.workload.values())):
        if files.writable(text) != text:
            raise UsageFailure(
                f'{files.writable(subject.test)}: "{files.writable(text)}" has half of a surrogate '
                "pair, which UTF-8 cannot encode. gpuperf measured nothing. Change this text"
            )
    if problem := files.name_problem(subject.suite):
        raise UsageFailure(
            f"{subject.test}: the folder or file of this test names its baseline file, but "
            f"{problem}. gpuperf measured nothing. Rename the folder or file"
        )
