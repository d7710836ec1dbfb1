"""A/A trials: identical code judged against itself, and the false alarm rate that this shows.

A trial is one process of one test that was held out of a baseline, judged against it, with more
processes of its allocation where the judge asks for another look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.judge.spread import Tests, allocation
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Outcome

BASELINE = 5
"""Processes of a baseline, as `gpuperf record` makes it."""
FOLDS = 3
"""Baselines that each test's processes are judged against."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Look:
    """What the judge says of the processes at hand."""

    outcome: Outcome
    """regressed, inconclusive, or anything else: no alarm."""
    further: int | None
    """How many processes to look at next; None when it is settled."""


Alarmed = Callable[[Sequence[Measurement], Sequence[Measurement]], Look]
"""Judges new measurements of a test (the second) against a baseline (the first)."""


@dataclass(frozen=True)
class Trials:
    """What became of the A/A trials."""

    count: int
    """Distinct pairs of a test and a process that was held out."""
    false_alarms: int
    """Those that ended as regressed, in any of the folds."""
    inconclusive: int
    """Those that stayed inconclusive in any of the folds, and did not alarm in one."""

    @property
    def at_most(self) -> float | None:
        """The false alarm rate is below this with 95 % confidence; None without trials.

        One-sided, by Clopper and Pearson: b with P(at most `false_alarms` of `count` | b) = 0.05.
        """
        if not self.count:
            return None
        from scipy import stats

        test = stats.binomtest(self.false_alarms, self.count, alternative="less")
        return float(test.proportion_ci(CONFIDENCE, method="exact").high)


def trials(tests: Tests, alarmed: Alarmed) -> Trials:
    """Judges each process of each test against baselines that it is no part of.

    A baseline is 5 processes, spread over as many allocations as there are. Each other process
    starts a trial alone; where `alarmed` asks for more, the following processes of its allocation
    that are not in the baseline join it (cyclically), as long as there are enough of them.

    The choice of the baseline rotates over 3 folds, so that those of the first are held out too.
    The folds share their processes, so they are no further evidence: what is counted are distinct
    pairs of a test and a held-out process, however many folds judged them, and such a pair is a
    false alarm when it was one in any fold. Each allocation is also judged against baselines of the
    others alone, as a new day or another GPU is. Tests that one process measured are counted apart
    although they may share its luck. Tests of fewer than 6 processes have no trial.
    """
    ended: dict[tuple[object, str], set[Outcome]] = {}
    for test, processes in tests.items():
        for baseline, held_out in (*folds(processes), *strangers(processes)):
            for process in held_out:
                beside = [m for m in held_out if allocation(m) == allocation(process)]
                start = beside.index(process)
                outcome = _trial(baseline, beside[start:] + beside[:start], alarmed)
                ended.setdefault((test, process.process), set()).add(outcome)
    alarms = sum(Outcome.REGRESSED in outcomes for outcomes in ended.values())
    return Trials(
        count=len(ended),
        false_alarms=alarms,
        inconclusive=sum(
            Outcome.INCONCLUSIVE in outcomes and Outcome.REGRESSED not in outcomes
            for outcomes in ended.values()
        ),
    )


def folds(
    processes: Sequence[Measurement],
) -> Iterator[tuple[list[Measurement], list[Measurement]]]:
    """Baselines of 5 of these processes, each with those that are held out of it.

    The order of `processes` does not matter: they are taken in turn from their allocations, those
    first that were not in the baseline before.
    """
    by_allocation: dict[tuple[str, str], list[Measurement]] = {}
    for process in sorted(processes, key=lambda m: (allocation(m), m.process)):
        by_allocation.setdefault(allocation(process), []).append(process)
    if len(processes) <= BASELINE:
        return
    rows = list(by_allocation.values())
    for _ in range(FOLDS):
        order = [row[i] for i in range(max(map(len, rows))) for row in rows if i < len(row)]
        baseline, held_out = order[:BASELINE], order[BASELINE:]
        yield baseline, held_out
        # Next time those come first that were not taken, of this allocation and of others.
        taken = {process.process for process in baseline}
        rows = [sorted(row, key=lambda m: m.process in taken) for row in (*rows[1:], rows[0])]


def strangers(
    processes: Sequence[Measurement],
) -> Iterator[tuple[list[Measurement], list[Measurement]]]:
    """Per allocation that leaves 5 processes elsewhere: a baseline of those, and its own."""
    places = sorted({allocation(process) for process in processes})
    for place in places:
        elsewhere = [process for process in processes if allocation(process) != place]
        own = sorted((p for p in processes if allocation(p) == place), key=lambda m: m.process)
        if len(elsewhere) == BASELINE:
            yield elsewhere, own
        elif len(elsewhere) > BASELINE:
            yield next(iter(folds(elsewhere)))[0], own


def _trial(
    baseline: Sequence[Measurement], queue: Sequence[Measurement], alarmed: Alarmed
) -> Outcome:
    """How a trial ends that may look at these measurements, in their order."""
    count = 1
    while True:
        look = alarmed(baseline, queue[:count])
        if look.further is None or look.further > len(queue):
            return look.outcome
        count = look.further
