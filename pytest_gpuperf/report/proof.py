"""The proof that gates can fire: what a run of `gpuperf prove` says of each slowdown in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.units import few, tolerance
from pytest_gpuperf.judge.verdict import NEW_METRIC
from pytest_gpuperf.model.measurement import (
    SLOWDOWN,
    SLOWDOWN_AT,
    SLOWDOWN_SHARE,
    STEP,
    UNSEEN,
    Device,
    plain_name,
    title_of,
)
from pytest_gpuperf.model.result import (
    DOUBTS,
    FAULTS,
    TEST_FAILED,
    TEST_NOT_FAILED,
    Result,
    Run,
    Verdict,
)
from pytest_gpuperf.report import view
from pytest_gpuperf.report.text.step_tables import step_values

_SHOWN = 2
_RANKS = "no slowdown can be put into a step of several ranks"


class Firing(str, Enum):
    """The answer of a test to a slowdown."""

    RED = "red"
    PASSED = "passed"
    UNJUDGED = "not judged"


@dataclass(frozen=True)
class Trial:
    """One slowdown in one measurement of a test."""

    test: str
    name: str
    """The measurement's name within its test."""
    slowdown: str
    share: float
    """The slowdown's size as a share of the step's time; 0 for one without a size."""
    firing: Firing
    why: str
    """The metrics that regressed with their changes; for other answers the reason."""
    at: str = ""
    """The line of code where it was put in, "model/layers.py:118"; "" if unknown."""
    named: str = ""
    """The line that the verdict names as the cause, or as the worst of several; "" for none."""

    @property
    def gate(self) -> tuple[str, str, str]:
        """What all sizes of a slowdown in one measurement have in common."""
        return self.test, self.name, self.slowdown

    @property
    def line(self) -> str:
        """The line of a red verdict: right, wrong or none; "-" where no line is known."""
        if self.firing is not Firing.RED or not self.at:
            return "-"
        return "right" if self.at == self.named else "wrong" if self.named else "none"


@dataclass(frozen=True)
class Proof:
    """The trials of one `gpuperf prove`."""

    created: str
    """UTC, ISO 8601."""
    device: Device
    trials: tuple[Trial, ...]
    doubts: tuple[str, ...] = ()
    """Sentences: which tests are not proven and why, and what no gate of a test sees."""

    @property
    def dead(self) -> list[Trial]:
        """The slowdowns that passed in every size, each in its largest."""
        red = {trial.gate for trial in self.trials if trial.firing is Firing.RED}
        passed = (trial for trial in self.trials if trial.firing is Firing.PASSED)
        by_size = sorted(passed, key=lambda trial: trial.share)
        return [*{trial.gate: trial for trial in by_size if trial.gate not in red}.values()]

    @property
    def holds(self) -> bool:
        """Whether every gate that was tried fired."""
        return not (self.dead or self.doubts)


def proof_of(run: Run) -> Proof | None:
    """The proof that a run of `gpuperf prove` is; None for a run without measurements."""
    results = [result for result in run.results() if result.measurements]
    if not results:
        return None
    plain = [r for r in results if SLOWDOWN not in r.first.fingerprint.settings]
    slowed = [r for r in results if SLOWDOWN in r.first.fingerprint.settings]
    trials = [_trial(result, run.skipped.get(result.test, "")) for result in slowed]
    tried = {(trial.test, trial.name) for trial in trials}
    failing = {test: "the test fails" for test, why in run.skipped.items() if why == TEST_FAILED}
    for result in plain:
        if result.outcome in (*DOUBTS, *FAULTS, None):
            failing[result.test] = _reason(result)
        elif (result.test, result.name) not in tried:
            trials.append(Trial(result.test, result.name, "any", 0.0, Firing.UNJUDGED, _RANKS))
    doubts = [f"{title_of(test)} is not proven: {why}" for test, why in failing.items()]
    for result in plain:
        doubts += [f"{title_of(result.test)} does not see all: {it}" for it in _unseen(result)]
    device = results[0].first.fingerprint.device
    return Proof(run.created, device, tuple(trials), tuple(doubts))


def _trial(result: Result, ended: str) -> Trial:
    settings = result.first.fingerprint.settings
    said = result.attribution
    lines = [said.cause.line] if said and said.cause else []
    lines += [entry.line for entry in said.lines] if said else []
    return Trial(
        result.test,
        plain_name(result.first),
        str(settings[SLOWDOWN]),
        float(settings[SLOWDOWN_SHARE]),
        *_firing(result, ended),
        at=str(settings.get(SLOWDOWN_AT, "")),
        named=next(filter(None, lines), ""),
    )


def _reason(result: Result) -> str:
    return "; ".join(view.reasons(result)) or "it has no verdict"


def _firing(result: Result, ended: str) -> tuple[Firing, str]:
    """The answer of a test, and its reason."""
    verdicts = [entry for entry in result.said if isinstance(entry, Verdict)]
    if red := [verdict for verdict in verdicts if verdict.outcome in FAULTS]:
        moves = few(view.moves(red), _SHOWN)
        if ended == TEST_NOT_FAILED:
            return Firing.PASSED, f"pytest counts no failure, though {moves}"
        return Firing.RED, moves
    if result.outcome in (*DOUBTS, None):
        return Firing.UNJUDGED, _reason(result)
    worse = [v for v in verdicts if v.change and v.change > 0 and v.tolerance]
    worse.sort(key=lambda verdict: -(verdict.change or 0) / (verdict.tolerance or 1))
    said = [f"{view.moves([v])[0]} (tolerance {tolerance(v)})" for v in worse]
    return Firing.PASSED, few(said, _SHOWN) or "no metric that is compared got worse"


def _unseen(result: Result) -> Iterator[str]:
    """What no gate of a test sees, whatever is put in."""
    values = step_values(result.measurements)
    fingerprint = result.first.fingerprint
    if unseen := fingerprint.settings.get(UNSEEN):
        yield str(unseen)
    work = "operators" if fingerprint.device.arch == architectures.CPU else "launches"
    if values.get(work) == 0:
        yield f"the step does nothing that is counted ({work} 0)"
    new = [v.metric for v in result.verdicts if v.phase == STEP and v.reason == NEW_METRIC]
    if new:
        yield f"the baseline lacks {', '.join(new)}: accept a run that has it"
