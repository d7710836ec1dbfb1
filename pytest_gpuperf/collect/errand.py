"""What a fresh process does in place of measuring, when it was started for one number only.

Some numbers cannot be had where the test runs: a profiler has to be there before the process is
(ncu), or the count begins with the process (the paper's window). So the test is run again in a
process of its own, and this says what its `gpuperf.measure` does there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from pytest_gpuperf.collect.base import Collected, Collector, Plan, Work
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.fresh import Finished
from pytest_gpuperf.model import Device

VARIABLE = "GPUPERF_ERRAND"
"""The environment variable that tells a process its errand."""

PROFILED_S = "profiled_s"
"""The setting that has the seconds between the marks."""

PROFILED = "profiled"
"""Run the step once between marks, for the profiler that this process runs under."""
FIRST = "first"
"""Run the step once: somebody watches the process from its start."""
WINDOW = "window"
"""Count the first launches of the test oneself."""


@dataclass(frozen=True)
class Errand:
    """What a fresh process is to do."""

    kind: str
    """profiled, first or window."""
    name: str
    """The measurement that it is about; others of the same test are passed over."""

    def environment(self) -> dict[str, str]:
        """The variable that tells a child."""
        return {VARIABLE: json.dumps(asdict(self))}


class Rerun(Protocol):
    """Runs one test of this session again, alone in a fresh process, and waits for it."""

    def __call__(
        self,
        test: str,
        errand: Errand,
        *,
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Finished:
        """`test` is a node id; `under` a command that starts the process, a profiler's."""
        ...


def no_rerun(
    test: str,
    errand: Errand,  # noqa: ARG001
    *,
    under: Sequence[str] = (),  # noqa: ARG001
    environment: Mapping[str, str] | None = None,  # noqa: ARG001
) -> Finished:
    """Where no session is there to run a test of. Raises MeasurementError."""
    raise MeasurementError(f"{test or 'the step'} can be run again by a pytest session only")


class Marks(Protocol):
    """Tells a profiler around this process where the step is."""

    def enter(self, phase: str) -> None:
        """A phase of the step begins."""
        ...

    def leave(self, phase: str) -> None:
        """It ends."""
        ...

    def begin(self) -> None:
        """The step begins."""
        ...

    def end(self) -> None:
        """The device has done all of the step."""
        ...


class Runner:
    """In a collector's place: runs the step as the errand says, and brings back nothing.

    What was counted is in the hands of who started this process.
    """

    def __init__(self, errand: Errand, collector: Collector, marks: Marks) -> None:
        self._errand = errand
        self._collector = collector
        self._marks = marks
        self.name = f"{collector.name} ({errand.kind})"
        self.torch_device = collector.torch_device

    def device(self) -> Device:
        """The device of the collector that would measure here."""
        return self._collector.device()

    def software(self) -> dict[str, str]:
        """Nothing: the process that waits says it."""
        return {}

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Executes the step: warmed up and marked, or once as it comes.

        The settings say how long it took between the marks: with a profiler, the profiling.
        """
        if work.name != self._errand.name:
            return Collected(())
        if self._errand.kind == FIRST:
            work.step()
            return Collected(())
        return Collected((), settings={PROFILED_S: self._marked(work, plan)})

    def _marked(self, work: Work, plan: Plan) -> float:
        for _ in range(max(plan.warmup, 1)):
            work.reset()
            work.step()
        work.reset()
        before = time.perf_counter()
        self._marks.begin()
        with work.phases.heard_by(self._marks):
            work.step()
        self._marks.end()
        return round(time.perf_counter() - before, 3)


def asked_for() -> Errand | None:
    """What this process is to do; None where it is to measure.

    Takes it out of the environment: processes that a test starts have none.
    """
    text = os.environ.pop(VARIABLE, None)
    return None if text is None else Errand(**json.loads(text))
