"""The protocol of the ICPE '26 paper: 100 kernel launches, after the first 10 of a process.

The paper profiles `ncu --set full --launch-skip 10 --launch-count 100` (section 4). What falls into
that window depends on what a program does first: the conversion of its weights, say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_gpuperf.collect.totals import total
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import PAPER_WINDOW, KernelTable, Sample, Window

SKIPPED = 10
COUNTED = 100


def window(launches: Sequence[Mapping[str, float]], collector: str) -> Window:
    """The window among the `launches` of a process, counted from its start.

    A launch is its values by the catalogue's names. Raises MeasurementError where the process
    launched nothing after the first 10.
    """
    return window_of(launches[SKIPPED : SKIPPED + COUNTED], collector)


def window_of(
    launches: Sequence[Mapping[str, float]], collector: str, kernels: KernelTable | None = None
) -> Window:
    """The window that these launches are. Raises MeasurementError for none."""
    if not launches:
        raise MeasurementError(
            f"the process launched no more than the {SKIPPED} kernels before the paper's window"
        )
    known = {name for launch in launches for name in launch}
    found = {name: total(name, launches) for name in catalogue().metrics if name in known}
    samples = tuple(
        Sample(PAPER_WINDOW, name, (value,))
        for name, value in found.items()
        if not isinstance(value, str)
    )
    return Window(SKIPPED, len(launches), collector, samples, kernels)
