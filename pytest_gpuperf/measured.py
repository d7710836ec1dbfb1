"""What this process has measured in this session, for tests that compare measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.errors import GpuperfError, UsageFailure
from pytest_gpuperf.metrics import ALWAYS, catalogue
from pytest_gpuperf.model import STEP, Device, Measurement

Processes = tuple[Measurement, ...]
"""One measurement, once per process that made it."""


class NotMeasured(GpuperfError):
    """A measurement that is to be compared was not made in this process, or lacks the metric."""


@dataclass(frozen=True)
class Comparison:
    """Two measurements that a test compares, by name or by configuration."""

    test: str
    """The node id of the test that compares."""
    suite: str
    device: Device
    numerator: str
    denominator: str

    @property
    def subject(self) -> str:
        """The ratio, for reports: "tf32 / baseline"."""
        return f"{self.numerator} / {self.denominator}"


class Measured:
    """The session's measurements in this process, the latest where a test was run again."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Processes] = {}

    def add(self, measurements: Processes) -> None:
        """Takes a measurement, once per process that made it."""
        self._found[measurements[0].test, measurements[0].name] = measurements

    def pair(self, comparison: Comparison) -> tuple[Processes, Processes]:
        """The measurements of numerator and denominator.

        Each is the test's own measurement of that name, or else the one of that configuration in
        the suite. Where several tests of the suite measure both configurations, it takes two of one
        test. Raises NotMeasured, and UsageFailure where several are meant.
        """
        over = self._candidates(comparison, comparison.numerator)
        under = self._candidates(comparison, comparison.denominator)
        pairs = [(one, other) for one in over for other in under]
        if len(pairs) > 1:
            pairs = [pair for pair in pairs if _place(pair[0]) == _place(pair[1])]
        if len(pairs) != 1:
            found = ", ".join(dict.fromkeys(entry[0].test for entry in (*over, *under)))
            raise UsageFailure(
                f'{comparison.test}: which "{comparison.numerator}" and '
                f'"{comparison.denominator}" are compared? There are {found}. Measure both in one '
                "test, gpuperf.measure(step, name=...), and compare them there"
            )
        return pairs[0]

    def _candidates(self, comparison: Comparison, wanted: str) -> list[Processes]:
        own = self._found.get((comparison.test, wanted))
        if own is not None:
            return [own]
        found = [
            measurements
            for measurements in self._found.values()
            if measurements[0].configuration == wanted
            and measurements[0].suite == comparison.suite
            and _kind(measurements[0].fingerprint.device) == _kind(comparison.device)
        ]
        if not found:
            raise NotMeasured(
                f'"{wanted}" was not measured in this process: its test was not selected, was '
                "skipped, failed before it measured, or runs later or in another worker of "
                "pytest-xdist (-n0 keeps all tests in one process)"
            )
        return found


def not_collected(metric: str, sides: Sequence[tuple[str, Measurement]]) -> str:
    """Which of these named measurements lacks `metric`, why, and what would collect it.

    "" when all have it for the whole step.
    """
    for name, measurement in sides:
        if any((s.metric, s.phase) == (metric, STEP) for s in measurement.samples):
            continue
        said = next((u.reason for u in measurement.unsupported if u.metric == metric), "")
        sets = [name for name, metrics in catalogue().sets.items() if metric in metrics]
        asked = str(measurement.fingerprint.settings.get("metrics", "")).split(",")
        if not said and sets and not {ALWAYS, *map(str.strip, asked)} & {metric, *sets}:
            said = f"--gpuperf-metrics {sets[0]} has it"
        said = said or f"what measures {measurement.fingerprint.device.name} does not count it"
        return f"{metric} was not collected for {name}: {said}"
    return ""


def _place(measurements: Processes) -> tuple[str, str]:
    """A measurement's test without its parameters, and its name there."""
    return measurements[0].test.partition("[")[0], measurements[0].name


def _kind(device: Device) -> tuple[str, str]:
    """What is compared with each other: GPUs of one name, not only the very same."""
    return device.arch, device.slug
