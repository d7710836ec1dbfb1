"""Accepting measurements as baselines: what `gpuperf update-baseline` writes, and why.

Works from a saved run; needs no GPU and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf import baselines, files
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.model import STEP, Device, Measurement


@dataclass(frozen=True)
class Proposal:
    """One measurement of one test, from one or more processes, to be accepted."""

    file: Path
    device: Device
    measurements: tuple[Measurement, ...]
    acceptance: baselines.Acceptance

    @property
    def test(self) -> str:
        """The node id of the test."""
        return self.measurements[0].test


def proposals(
    measurements: Iterable[Measurement], folder: Path, reason: str, created: str
) -> list[Proposal]:
    """What accepting `measurements` would change, test by test, in their order.

    `created` is when they were measured. Raises BadFile when a baseline file that would be changed
    cannot be read: it is not overwritten; UsageFailure when processes measured different workloads.
    """
    found = []
    for group in _by_test(measurements):
        first = group[0]
        if any(dict(other.workload) != dict(first.workload) for other in group):
            raise UsageFailure(
                f'the measurements "{first.name}" of {first.test} are of different workloads, so '
                "they are no baseline: record them anew, with one workload"
            )
        device = first.fingerprint.device
        file = baselines.path_for(folder, device, first.suite)
        known = baselines.load_for(folder, device, first.suite)
        old = known.tests.get(first.test, {}).get(first.name) if known else None
        new = baselines.entry_of(group, created[:10])
        found.append(Proposal(file, device, group, _acceptance(group, old, new, reason)))
    return found


def accept(proposal: Proposal) -> None:
    """Writes one proposal into its file, under a lock: others may be accepting beside us."""
    first = proposal.measurements[0]
    with files.locked(str(proposal.file.resolve())):
        known = baselines.load(proposal.file) or baselines.empty(proposal.device, first.suite)
        entry = baselines.entry_of(proposal.measurements, proposal.acceptance.date)
        changed = baselines.with_entry(known, first.test, first.name, entry, proposal.acceptance)
        baselines.save(changed, proposal.file)


def _by_test(measurements: Iterable[Measurement]) -> list[tuple[Measurement, ...]]:
    groups: dict[tuple[str, str, Device], list[Measurement]] = {}
    for measurement in measurements:
        device = measurement.fingerprint.device
        # Several machines of the same device share a baseline: identity is not part of the key.
        key = (measurement.test, measurement.name, Device(device.arch, device.name, device.slug))
        groups.setdefault(key, []).append(measurement)
    return [tuple(group) for group in groups.values()]


def _acceptance(
    group: Sequence[Measurement],
    old: baselines.Entry | None,
    new: baselines.Entry,
    reason: str,
) -> baselines.Acceptance:
    first = group[0]
    before = dict(old.samples.get(STEP, {})) if old else {}
    after = dict(new.samples.get(STEP, {}))
    return baselines.Acceptance(
        date=new.recorded,
        reason=reason,
        test=first.test,
        name=first.name,
        revision=first.fingerprint.revision,
        processes=len({measurement.process for measurement in group}),
        changes={
            metric: baselines.Change(
                old=centre(before[metric]) if metric in before else None,
                new=centre(after[metric]) if metric in after else None,
            )
            for metric in dict.fromkeys((*after, *before))
        },
    )
