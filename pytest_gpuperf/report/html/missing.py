"""What a run lacks for a figure, and the flag that collects it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.report.html.subject import Subject

KERNELS = "--gpuperf-kernels always"
WINDOW = "--gpuperf-protocol paper-window"


def metrics(subjects: Sequence[Subject], names: Sequence[str], *, per_kernel: bool = False) -> str:
    """Which of these metrics no subject has, with the reason or the flag; "" when all are there.

    `per_kernel` asks for values of each kernel, not of the whole step.
    """
    absent = [n for n in names if not any(_has(subject, n, per_kernel) for subject in subjects)]
    if not absent:
        return ""
    reasons = {
        unsupported.metric: unsupported.reason
        for subject in subjects
        for measurement in subject.measurements
        for unsupported in measurement.unsupported
    }
    told = [f"{name} ({reasons[name]})" for name in absent if name in reasons]
    wanted = [name for name in absent if name not in reasons]
    parts = [f"not available here: {'; '.join(told)}"] if told else []
    if wanted:
        flags = [flag for flag in (_set_flag(wanted), KERNELS if per_kernel else "") if flag]
        by = f": measure with {' '.join(flags)}" if flags else ""
        of = " of each kernel" if per_kernel else ""
        parts.append(f"this run has no {', '.join(wanted)}{of}{by}")
    return _sentence("; ".join(parts))


def kernels(subjects: Sequence[Subject]) -> str:
    """That no subject has a kernel table, and the flag that collects one; "" when one has."""
    if any(subject.kernels for subject in subjects):
        return ""
    return f"This run has no kernels: measure with {KERNELS}"


def _set_flag(names: Sequence[str]) -> str:
    """The flag for the first set of the catalogue that has all of these; "" where none has."""
    for name, members in catalogue().sets.items():
        if set(names) <= set(members):
            return f"--gpuperf-metrics {name}"
    return ""


def _has(subject: Subject, metric: str, per_kernel: bool) -> bool:
    if not per_kernel:
        return subject.value(metric) is not None
    table = subject.kernels
    return table is not None and not table.mismatch and metric in table.metrics


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
