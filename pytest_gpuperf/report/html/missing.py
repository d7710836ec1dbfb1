"""What a run lacks for a figure, and the flag that collects it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuperf.metrics import catalogue, timeline_metrics
from pytest_gpuperf.report.html.subject import Subject
from pytest_gpuperf.report.html.wording import of_each

KERNELS = "--gpuperf-kernels always"
WINDOW = "--gpuperf-protocol paper-window"
TIMELINE = "--gpuperf-timeline always"


def metrics(subjects: Sequence[Subject], names: Sequence[str], *, per_kernel: bool = False) -> str:
    """Which of these metrics no subject has, with the reason or the flag; "" when all are there.

    `per_kernel` asks for values of each kernel, not of the whole step. What these architectures do
    not have is missed only where they have none of the metrics; the first screen names it.
    """
    absent = [n for n in names if not any(_has(subject, n, per_kernel) for subject in subjects)]
    reasons = {
        unsupported.metric: unsupported.reason
        for subject in subjects
        for measurement in subject.measurements
        for unsupported in measurement.unsupported
    }
    possible = [name for name in absent if _exists(subjects, name)]
    if absent and not possible and len(absent) == len(names) and subjects:
        archs = " and ".join(dict.fromkeys(subject.device.arch for subject in subjects))
        return f"Not available here: {archs} does not have {', '.join(absent)}"
    absent = possible if subjects else absent
    if not absent:
        return ""
    told = [f"{name} ({reasons[name]})" for name in absent if name in reasons]
    wanted = [name for name in absent if name not in reasons]
    parts = [f"not available here: {'; '.join(told)}"] if told else []
    if wanted:
        flags = [flag for flag in (_set_flag(wanted), KERNELS if per_kernel else "") if flag]
        by = f": measure with {' '.join(flags)}" if flags else ""
        of = " of each kernel" if per_kernel else ""
        parts.append(f"this run has no {', '.join(wanted)}{of}{by}")
    return _sentence("; ".join(parts))


def collectable(text: str) -> bool:
    """Whether what is missing, as the functions here say it, is collected by a flag.

    The paper's window is not: it is another protocol, to be asked for by name.
    """
    return "measure with" in text and WINDOW not in text


def kernels(subjects: Sequence[Subject]) -> str:
    """That no subject has a kernel table, and the flag that collects one; "" when one has."""
    if any(subject.kernels for subject in subjects):
        return ""
    return f"This run has no kernels: measure with {KERNELS}"


def timelines(subjects: Sequence[Subject]) -> str:
    """Which subjects have no timeline, or not all of it: with the reason, or with the flag that
    collects it; "" when nothing is missing.
    """
    archs = dict.fromkeys(subject.device.arch for subject in subjects)
    if subjects and not any(m.exists_on(arch) for m in timeline_metrics() for arch in archs):
        return f"Not available here: {' and '.join(archs)} cannot be sampled"
    absent: dict[str, list[str]] = {}
    for subject in subjects:
        for reason in _not_sampled(subject):
            absent.setdefault(reason, []).append(subject.label)
    parts = [
        reason if len(labels) == len(subjects) else of_each([(reason, one) for one in labels])
        for reason, labels in absent.items()
    ]
    asked = [subject for subject in subjects if subject.sampled]
    if not asked:
        parts.append(f"this run has no timeline: measure with {TIMELINE}")
    elif len(asked) < len(subjects):
        labels = ", ".join(subject.label for subject in subjects if not subject.sampled)
        parts.append(f"this run has no timeline of {labels}: measure with {TIMELINE}")
    return _sentence("; ".join(parts))


def _not_sampled(subject: Subject) -> Iterator[str]:
    """Why a subject has no timeline, or which of its metrics are not in it."""
    found = subject.sampled.timeline if subject.sampled else None
    if found is None:
        return
    if found.obstacle:
        yield f"not sampled ({found.obstacle})"
    for entry in found.unsupported:
        yield f"no {entry.metric} ({entry.reason})"


def _set_flag(names: Sequence[str]) -> str:
    """The flag for the first set of the catalogue that has all of these; "" where none has."""
    for name, members in catalogue().sets.items():
        if set(names) <= set(members):
            return f"--gpuperf-metrics {name}"
    return ""


def _exists(subjects: Sequence[Subject], name: str) -> bool:
    """Whether one of the architectures that were measured has it, as far as the catalogue knows."""
    metric = catalogue().metrics.get(name)
    return metric is None or any(metric.exists_on(subject.device.arch) for subject in subjects)


def _has(subject: Subject, metric: str, per_kernel: bool) -> bool:
    if not per_kernel:
        return subject.value(metric) is not None
    table = subject.kernels
    return table is not None and not table.mismatch and metric in table.metrics


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
