"""How each measurement of a run stands, the worst first: what a report of failures begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.judge.blamed import Blame
from pytest_gpuperf.model import STEP, Expectation, Measurement, Outcome, Run, Verdict
from pytest_gpuperf.report import expectations, messages, numbers, order

_CHANGED = (*order.FAULTS, *order.DOUBTS, Outcome.IMPROVED)


@dataclass(frozen=True)
class Standing:
    """One measurement, its processes together, or a ratio of two, and what was said of it."""

    test: str
    name: str
    """The measurement's name within its test; of a ratio, what is expected something of."""
    measurements: tuple[Measurement, ...]
    """One per process; none for a ratio."""
    verdicts: tuple[Verdict, ...]
    """Of the whole step."""
    expectations: tuple[Expectation, ...] = ()
    """Its limits, or the ratio."""
    blame: Blame | None = None

    @property
    def outcome(self) -> Outcome | None:
        """The worst of all that was said; None where nothing was judged.

        Kernels that changed explain an outcome, and are none of their own.
        """
        said: Sequence[Verdict | Expectation] = (*self.verdicts, *self.expectations)
        outcomes = [entry.outcome for entry in said]
        return order.worst(o for o in outcomes if o is not Outcome.KERNELS_CHANGED)

    @property
    def telling(self) -> tuple[Verdict | Expectation, ...]:
        """Verdicts and expectations that are not as one would have them, the worst first."""
        said: list[Verdict | Expectation] = [*self.verdicts, *self.expectations]
        found = [entry for entry in said if entry.outcome in _CHANGED]
        return tuple(sorted(found, key=lambda entry: order.rank(entry.outcome)))


def standings(run: Run) -> list[Standing]:
    """Every measurement and every ratio of `run`, the worst first, and else in the run's order."""
    measured: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in run.measurements:
        measured.setdefault((measurement.test, measurement.name), []).append(measurement)
    verdicts: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in run.verdicts:
        if verdict.phase == STEP:
            verdicts.setdefault((verdict.test, verdict.name), []).append(verdict)
    limits: dict[tuple[str, str], list[Expectation]] = {}
    ratios = []
    for expectation in run.expectations:
        key = (expectation.test, expectation.subject)
        if expectation.unit and key in measured:
            limits.setdefault(key, []).append(expectation)
        else:
            ratios.append(expectation)
    blames = {(entry.test, entry.name): entry.blame for entry in run.blames}
    found = [
        Standing(
            *key,
            tuple(measurements),
            tuple(verdicts.get(key, ())),
            tuple(limits.get(key, ())),
            blames.get(key),
        )
        for key, measurements in measured.items()
    ]
    found += [Standing(entry.test, entry.subject, (), (), (entry,)) for entry in ratios]
    return sorted(found, key=lambda standing: order.rank(standing.outcome))


def counted(found: Sequence[Standing]) -> str:
    """How many stand how, the worst first: "1 regressed, 2 unchanged"."""
    outcomes = [standing.outcome for standing in found]
    parts = [f"{outcomes.count(o)} {o.value}" for o in order.WORST_FIRST if o in outcomes]
    parts += [f"{outcomes.count(None)} not judged"] if None in outcomes else []
    return ", ".join(parts)


def title(standing: Standing) -> str:
    """How it stands in one line: "test_step[tf32] regressed on NVIDIA H200 (sm90)"."""
    says = messages.SAYS.get(standing.outcome or Outcome.REPORTED, "passed")
    if not standing.measurements:
        return f"{standing.name} in {standing.test} {says}"
    device = standing.measurements[0].fingerprint.device
    return f"{messages.subject(standing.measurements[0])} {says} on {device.name} ({device.arch})"


def reasons(standing: Standing) -> list[str]:
    """What of it is not as one would have it, the worst first, each thing once."""
    return list(dict.fromkeys(_reason(entry) for entry in standing.telling))


def _reason(entry: Verdict | Expectation) -> str:
    if isinstance(entry, Expectation):
        return expectations.line(entry)
    if entry.change is None and entry.detail:
        return entry.detail
    text = f"{entry.metric} {numbers.change(entry)}"
    known = [numbers.value(value, entry.unit) for value in (entry.baseline, entry.measured)]
    text += f" ({' -> '.join(known)}"
    if entry.tolerance is not None:
        text += f", tolerance {numbers.tolerance(entry)}"
    if entry.outcome is Outcome.INCONCLUSIVE and entry.low is not None and entry.high is not None:
        low, high = (numbers.moved(end, points=entry.points) for end in (entry.low, entry.high))
        text += f", somewhere between {low} and {high}"
    return text + ")"
