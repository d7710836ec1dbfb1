"""Objections to accepting measurements as a baseline, and notes on what is worth knowing of them.

An objection refuses them unless --force overrules it; a note does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_gpuperf.baselines.reference import other_work
from pytest_gpuperf.catalogue import architectures, units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.catalogue.units import from_zero_or, moved
from pytest_gpuperf.judge.drift import Drift, Recorded, drifts
from pytest_gpuperf.judge.interval import centre, medians
from pytest_gpuperf.judge.noise import PRIOR_WEIGHT, Variance, on_judged_scale, outliers
from pytest_gpuperf.judge.tolerance import is_judged, tolerance_for
from pytest_gpuperf.judge.verdict import samples_by_phase
from pytest_gpuperf.measure.device import guard
from pytest_gpuperf.model.entry import Accepted, Calibration, Entry
from pytest_gpuperf.model.measurement import ELSEWHERE, STEP, Conditions, Measurement
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.storage import baseline_files

PROCESSES_NEEDED = 3
"""The processes needed to call a test regressed; fewer say too little about the noise between
processes (docs/verdict.md). `gpuperf record` makes more."""
NEW_ORIGIN = "new origin"
"""The text in the log for an entry that starts over as its own origin."""
_QUOTED = 3
"""The largest number of complaints about the device that is quoted."""


@dataclass(frozen=True)
class Objection:
    """A reason not to accept."""

    short: str
    """The objection in a few words, for the log of a forced acceptance: "1 process of 3"."""
    text: str
    """The fault, with numbers, and the remedy."""
    more_processes: bool = False
    """Whether further processes of the same test would answer the objection."""


def about_measurements(measurements: Sequence[Measurement]) -> tuple[Objection, ...]:
    """The objections to how measurements were made: few processes, an unfit device, dirty code."""
    objections = []
    count = len(_processes(measurements))
    # On a CPU counts alone are judged, and other_work says where they differ between executions.
    is_counted = measurements[0].fingerprint.device.arch == architectures.CPU
    if count < PROCESSES_NEEDED and not is_counted:
        short = f"{count} process{'es' if count > 1 else ''} of {PROCESSES_NEEDED}"
        text = f"{short}, too few to estimate their spread. Use gpuperf record --processes N -- ..."
        objections.append(Objection(short, text, more_processes=True))
    unfit = _complaints(measurements, guard.unfit)
    if unfit:
        share = f"{len(dict(unfit))} of {count}"
        text = (
            f"in {share} processes the device was {_quoted(unfit)}. Record again when the GPU is "
            "cool and no other process uses it"
        )
        objections.append(Objection(f"unfit device in {share}", text))
    if text := _odd_process(measurements):
        objections.append(Objection("one odd process", text, more_processes=True))
    if text := other_work(measurements):
        objections.append(Objection("other work each time", text))
    revisions = dict.fromkeys(m.fingerprint.revision for m in measurements)
    dirty = [revision for revision in revisions if revision.endswith("+dirty")]
    if dirty:
        text = (
            f"measured at {', '.join(dirty)}, with uncommitted code, so this measurement cannot be "
            "repeated. Commit the code, and record again"
        )
        objections.append(Objection("dirty tree", text))
    if used := measurements[0].fingerprint.settings.get(ELSEWHERE):
        text = f"the tests used {used}. Type `pip install -e .`, and record again"
        objections.append(Objection("other code than the checkout's", text))
    return tuple(objections)


def _odd_process(measurements: Sequence[Measurement]) -> str:
    """The complaint that one process is apart from two that agree; "" if none or outvoted."""
    step = samples_by_phase(measurements).get(STEP, {})
    names = [*dict.fromkeys(m.process for m in measurements)]
    of_one_gpu = len({m.fingerprint.device.identity for m in measurements}) == 1
    for name, rounds in step.items() if len(names) == PROCESSES_NEEDED and of_one_gpu else ():
        metric, written = catalogue().metrics[name], measurements[0].tolerance.get(name)
        is_time = metric.metric_class is MetricClass.CYCLE and is_judged(metric, written)
        values = medians(rounds)
        if not is_time or len(values) < PROCESSES_NEEDED or min(values) <= 0:
            continue
        allowed, logs = tolerance_for(metric, written), on_judged_scale(values, None)
        assumed = Variance(allowed.scale**2, PRIOR_WEIGHT)
        for odd in outliers(logs, [range(len(logs))], assumed, least=PROCESSES_NEEDED - 1):
            away = math.expm1(logs[odd] - fmean(v for n, v in enumerate(logs) if n != odd))
            if abs(away) > allowed.floor:
                return (
                    f"{name} of process {names[odd]} is {moved(away)} from the two others, which "
                    "agree. This process would make the tolerance many times wider. Record the "
                    "test again, or with more processes"
                )
    return ""


def limitations(measurements: Sequence[Measurement], entry: Entry) -> tuple[str, ...]:
    """The notes on limits of the new entry: one allocation, a power cap, several revisions."""
    notes = []
    count = len(_processes(measurements))
    gpus, days = set(entry.gpus), set(entry.days)
    # What a CPU is judged by is the same on all of them.
    on_gpu = measurements[0].fingerprint.device.arch != architectures.CPU
    if on_gpu and count > 1 and len(gpus) == len(days) == 1 and all(gpus):
        notes.append(
            f"all {count} processes are from one GPU and one day ({entry.days[0]}), but other GPUs "
            "and days differ. To accept runs of several, type gpuperf update-baseline RUN RUN ..."
        )
    # What a device endures all day, such as its power cap, is no objection. It explains numbers.
    endured = _complaints(measurements, guard.complaints)
    if endured and not _complaints(measurements, guard.unfit):
        share = f"{len(dict(endured))} of {count}"
        notes.append(f"in {share} processes the device was {_quoted(endured)}")
    revisions = dict.fromkeys(m.fingerprint.revision for m in measurements)
    if len(revisions) > 1:
        listed = ", ".join(revision or "unknown" for revision in revisions)
        notes.append(f"the processes are from {len(revisions)} revisions of the code: {listed}")
    return tuple(notes)


def counts_as_before(old: Entry, new: Entry) -> bool:
    """Whether every gated count of the whole step that both have is unchanged, within delta1.

    Then the step launches what it launched, and a table of its kernels still holds.
    """
    before, after = old.step, new.step
    counts = [
        (metric, centre(before[name]), centre(after[name]))
        for name, metric in catalogue().metrics.items()
        if metric.gated and metric.metric_class is MetricClass.DETERMINISTIC
        if name in before and name in after
    ]
    return bool(counts) and all(
        abs(now - then) <= tolerance_for(metric).equivalence * abs(then)
        for metric, then, now in counts
    )


def without_kernels(measurements: Sequence[Measurement], old: Entry | None) -> str:
    """The note for a new entry for which no process has a kernel table."""
    dropped = f"; the old table of {old.recorded} is dropped" if old and old.data else ""
    mismatch = next((m.kernels.mismatch for m in measurements if m.kernels), "")
    reason = f" ({mismatch})" if mismatch else ""
    return (
        f"no kernel table{reason}{dropped}. If this test gets slower, gpuperf cannot name the "
        "kernels. Record with gpuperf record, or with --gpuperf-kernels always"
    )


@dataclass(frozen=True)
class Creep:
    """The drift of a new entry from the origin of the replaced entry, and the consequences."""

    origin: Accepted | None = None
    """The origin that later entries are compared with; None if the entry is its own origin."""
    objections: tuple[Objection, ...] = ()
    """Slowdowns that no single acceptance has shown."""
    notes: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()
    """The texts about creep for the log."""


def creep_since(
    new: Entry,
    old: Entry | None,
    tolerances: Mapping[str, str],
    calibration: Calibration | None,
    *,
    new_origin: bool,
) -> Creep:
    """The metrics that got worse since the origin, and whether `old` to `new` shows that change.

    A metric that drifted since the origin and by the same test did not since `old` is creep: an
    objection. One that did is in front of the reviewer's eyes: a note. Where `old` itself had not
    drifted, that is all of it, and later ones are held against what is accepted now; so they are
    where the workload is another, or a `new_origin` is asked for.
    """
    if old is None:
        return Creep()
    origin = baseline_files.origin_of(old)
    day = origin.recorded
    if dict(old.workload) != dict(new.workload):
        note = (
            f"the workload changed ({units.differences(old.workload, new.workload)}), so the "
            f"origin of {day} does not apply. Later runs are compared with these samples"
        )
        return Creep(notes=(note,))
    metrics = catalogue().metrics

    def since_then(then: Accepted, now: Entry = new) -> tuple[Drift, ...]:
        return drifts(recorded(now), recorded(then), metrics, tolerances, calibration)

    since = since_then(origin)
    notes = []
    if old.origin and since:
        notes.append(f"since the first accepted samples ({day}): {moved_metrics(since)}")
    if new_origin:
        notes.append(f"these samples replace the origin of {day}: creep is measured from them")
        return Creep(notes=tuple(notes), forced=(NEW_ORIGIN,))
    latest = {drift.metric: drift for drift in since_then(old)}
    worse = [drift for drift in since if drift.drifted]
    visible = [d for d in worse if d.metric in latest and latest[d.metric].drifted]
    hidden = [drift for drift in worse if drift not in visible]
    moves = bool(visible) and not (
        hidden or any(drift.drifted for drift in since_then(origin, old))
    )
    if visible:
        follows = (
            "later creep is measured from these samples"
            if moves
            else "creep is still measured from that origin, unless you pass --new-origin"
        )
        notes.append(
            f"worse since the first accepted samples (origin) of {day}: {_listed(visible)}. This "
            f"change shows {moved_metrics(latest[d.metric] for d in visible)}, so {follows}"
        )
    step = recorded(new).samples
    missing = [name for name in step if metrics[name].gated and name not in origin.step]
    if missing:
        notes.append(
            f"the first accepted samples (origin) of {day} have no {', '.join(missing)}, so "
            "gpuperf cannot see creep of it. --new-origin starts over from these samples"
        )
    objections = []
    if hidden:
        shown = moved_metrics(latest[d.metric] for d in hidden if d.metric in latest) or "nothing"
        text = (
            f"creep, many small slowdowns since the first accepted samples (origin) of {day}: "
            f"{_listed(hidden)}. This change alone shows {shown}; the log `accepted` lists earlier "
            "ones. If all are intended, --new-origin starts over from these samples"
        )
        objections.append(Objection(f"creep: {moved_metrics(hidden)}", text))
    return Creep(None if moves else origin, tuple(objections), tuple(notes))


def recorded(entry: Accepted) -> Recorded:
    """The whole step of an entry or an origin, as the judge takes it."""
    # A process on a GPU that nobody knows could be on any of the others.
    gpus = entry.gpus if all(entry.gpus) else ()
    return Recorded(entry.step, gpus, entry.days)


def _complaints(
    measurements: Sequence[Measurement], about: Callable[[Conditions], tuple[str, ...]]
) -> list[tuple[str, str]]:
    """The complaints about the device, each with the process that the complaint is about."""
    return [
        (measurement.process, text)
        for measurement in measurements
        if measurement.fingerprint.conditions
        for text in about(measurement.fingerprint.conditions)
    ]


def _quoted(complaints: Sequence[tuple[str, str]]) -> str:
    texts = list(dict.fromkeys(text for _, text in complaints))
    more = len(texts) - _QUOTED
    return "; ".join(texts[:_QUOTED]) + (f"; and {more} more" if more > 0 else "")


def _processes(measurements: Sequence[Measurement]) -> set[str]:
    return {measurement.process for measurement in measurements}


def _listed(worse: Iterable[Drift]) -> str:
    return ", ".join(f"{moved_metrics([d])} (tolerance {_tolerance(d)})" for d in worse)


def moved_metrics(drifted: Iterable[Drift]) -> str:
    """The metrics with their changes in readable form: "cycles +0.34 %, copies from 0"."""
    return ", ".join(f"{d.metric} {from_zero_or(d.change, points=d.points)}" for d in drifted)


def _tolerance(drift: Drift) -> str:
    return f"{drift.tolerance:.3g} pt" if drift.points else f"{drift.tolerance * 100:.3g} %"
