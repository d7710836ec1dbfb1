"""Shares of a round: the passes of a metric set, counted on several GPUs at once.

Hardware counts a few metrics at a time, so a set of many takes as many executions of the step.
Where GPUs of one name agree on a metric, any of them may count it: each of the others gets a share
of the metrics, which a fresh process of the test counts there while this process counts its own.
What this process measures beside counters, times and traces, is of its GPU alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.measure.collector import Plan, Work
from pytest_gpuperf.measure.fresh_process import Finished
from pytest_gpuperf.measure.instrument import DeviceInstrument, Subject, ordered
from pytest_gpuperf.measure.replica import PASSES, VARIABLE, Replicas, Task
from pytest_gpuperf.model.measurement import Measurement, Peer, Unsupported
from pytest_gpuperf.model.metric import Metric

Share = tuple[Metric, ...]


def shares(
    metrics: Sequence[Metric],
    movable: Sequence[Metric],
    gpus: int,
    passes_of: Callable[[Sequence[Metric]], int],
) -> tuple[Share, ...]:
    """How `gpus` GPUs share a round of `metrics`: what each of them counts, none of it nothing.

    The first has what is not `movable`. A share takes the round's passes divided by the number of
    GPUs, or hardly more: a metric goes to the first share that has room for it, and else to the one
    that is shortest with it.
    """
    most = math.ceil(passes_of(metrics) / gpus)
    made: list[list[Metric]] = [[] for _ in range(gpus)]
    made[0] += [metric for metric in metrics if metric not in movable]
    for metric in movable:
        lengths: list[int] = []
        for share in made:
            lengths.append(passes_of([*share, metric]))
            if lengths[-1] <= most:  # to ask takes a millisecond or two
                break
        made[lengths.index(min(lengths))].append(metric)
    first, *others = (tuple(m for m in metrics if m in share) for share in made)
    return (first, *filter(None, others))


@dataclass(frozen=True)
class PassShares:
    """Measures with the help of other GPUs.

    `gpus` are their UUIDs, beside the one that this process measures; `time_limit` the seconds that
    a fresh process may take.
    """

    replicas: Replicas
    gpus: Sequence[str]
    time_limit: float

    def measure(
        self,
        instrument: DeviceInstrument,
        subject: Subject,
        work: Work,
        plan: Plan,
        movable: Sequence[Metric],
    ) -> tuple[Measurement, ...]:
        """The measurement of `subject`. Raises what `instrument` raises.

        What another GPU's process could not count is unsupported, with the reason.
        """
        try:
            own, *others = shares(plan.metrics, movable, 1 + len(self.gpus), instrument.passes)
        except GpuperfError:  # to count says the same, and goes on without counters
            others = []
        if not others:
            return instrument.measure(subject, work, plan)
        environments = []
        for gpu, share in zip(self.gpus, others, strict=False):
            task = Task(subject.test, PASSES, subject.name, tuple(metric.name for metric in share))
            told = {VARIABLE: json.dumps(asdict(task)), "CUDA_VISIBLE_DEVICES": gpu}
            environments.append(told)
        with self.replicas.together(Task(subject.test, PASSES), environments) as started:
            (measured,) = instrument.measure(subject, work, replace(plan, metrics=own))
            work.progress.begins("passes on other GPUs")
            finished = [started.finished(number, self.time_limit) for number in range(len(others))]
        for number, (share, ended) in enumerate(zip(others, finished, strict=True), 2):
            measured = _with_share(measured, number, share, ended)
        settings = {**measured.fingerprint.settings, "pass_shares": 1 + len(others)}
        return (replace(measured, fingerprint=replace(measured.fingerprint, settings=settings)),)


def _with_share(
    measured: Measurement, number: int, share: Share, finished: Finished
) -> Measurement:
    """With what another GPU has counted; it stands among the peers, by its GPU."""
    names = {metric.name for metric in share}
    counted = finished.measurement(measured.test, measured.name)
    if counted is None:
        ended = "took too long" if finished.timed_out else f"ended with exit code {finished.code}"
        last = "".join(finished.output.splitlines()[-1:])
        why = f"the process that was to count it on another GPU {ended}: {last}"
        lacking = tuple(Unsupported(metric.name, why) for metric in share)
        return replace(measured, unsupported=(*measured.unsupported, *lacking))
    peer = Peer(
        f"pass share {number}",
        counted.fingerprint.device,
        tuple(sample for sample in counted.samples if sample.metric in names),
        counted.fingerprint.conditions,
    )
    return replace(
        measured,
        samples=ordered((*measured.samples, *peer.samples)),
        unsupported=(
            *measured.unsupported,
            *(entry for entry in counted.unsupported if entry.metric in names),
        ),
        peers=(*measured.peers, peer),
    )
