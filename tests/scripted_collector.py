"""A collector that runs the step and answers from a script."""

from __future__ import annotations

from collections.abc import Callable

from pytest_gpuperf.measure.collector import Collected, Plan, Work
from pytest_gpuperf.model.measurement import Device, Sample, Scalar, Unsupported
from tests.examples import H200


class ScriptedCollector:
    """Runs the step once, calls `during`, and brings back the samples it was given."""

    name = "scripted"

    def __init__(
        self,
        *samples: Sample,
        device: Device = H200,
        unsupported: tuple[Unsupported, ...] = (),
        settings: dict[str, Scalar] | None = None,
        during: Callable[[], object] = lambda: None,
    ) -> None:
        self._device = device
        self._collected = Collected(samples, unsupported, settings)
        self._during = during
        self.torch_device = "cpu" if device.arch == "cpu" else "cuda"
        self.plans: list[Plan] = []

    def device(self) -> Device:
        """The scripted device."""
        return self._device

    def software(self) -> dict[str, str]:
        """A version that only the collector knows."""
        return {"cupti": "13.0"}

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Runs the step once."""
        self.plans.append(plan)
        work.reset()
        work.step()
        self._during()
        return self._collected
