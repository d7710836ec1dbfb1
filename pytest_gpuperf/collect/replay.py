"""A recorded run in place of a device: `--gpuperf-replay RUN`."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuperf import runs
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model import Device, Measurement


class RecordedRun:
    """The measurements of a run file, by test. Raises BadFile or UsageFailure when unreadable."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._measurements = runs.load(file).measurements
        if not self._measurements:
            raise UsageFailure(
                f"{file}: this run has no measurements, so there is nothing to judge"
            )
        measured_on = (m.fingerprint.device for m in self._measurements)
        devices = dict.fromkeys(f"{device.name} ({device.arch})" for device in measured_on)
        if len(devices) > 1:
            raise UsageFailure(
                f"{file}: this run was measured on {' and on '.join(devices)}. Each has baselines "
                "of its own: replay the runs of one device at a time"
            )

    @property
    def device(self) -> Device:
        """The device the run was measured on."""
        return self._measurements[0].fingerprint.device

    def measurements(self, test: str, name: str) -> tuple[Measurement, ...]:
        """The measurements `name` of `test`, one per process; empty when the run has none."""
        return tuple(
            measurement
            for measurement in self._measurements
            if (measurement.test, measurement.name) == (test, name)
        )
