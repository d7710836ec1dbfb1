"""What was measured of a step, one number per metric."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.judge.verdict import samples_by_phase
from pytest_gpuperf.model import STEP, Measurement


def step(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Of each metric of the whole step the median over processes of the medians over their rounds.

    In the metric's unit. `measurements` are those of one test and name, one or more per process.
    """
    series = samples_by_phase(measurements).get(STEP, {})
    return {metric: centre(processes) for metric, processes in series.items()}
