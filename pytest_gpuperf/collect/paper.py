"""The protocol of the ICPE '26 paper: 100 kernel launches, after the first 10 of a process.

The paper profiles `ncu --set full --launch-skip 10 --launch-count 100` (section 4). What falls into
that window depends on what a program does first: the conversion of its weights, say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_gpuperf.collect.totals import total
from pytest_gpuperf.collect.trace import COUNTED as COUNTED_KINDS
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import PAPER_WINDOW, KernelTable, Sample, Window

SKIPPED = 10
COUNTED = 100


def window(launches: Sequence[Mapping[str, float]], collector: str, kernels: KernelTable) -> Window:
    """The window among the `launches` of a process, counted from its start.

    A launch is its values by the catalogue's names, and `kernels` the table of all of them. Raises
    MeasurementError where the process launched nothing after the first 10.
    """
    found = launches[SKIPPED : SKIPPED + COUNTED]
    return window_of(found, collector, _within(kernels))


def _within(kernels: KernelTable) -> KernelTable:
    """The launches of the window among those of the process; copies and fills are not counted."""
    launches = [launch for launch in kernels.launches if launch.kind in COUNTED_KINDS]
    found = launches[SKIPPED : SKIPPED + COUNTED]
    names = tuple(dict.fromkeys(kernels.names[launch.name] for launch in found))
    return replace(
        kernels,
        names=names,
        launches=tuple(replace(x, name=names.index(kernels.names[x.name])) for x in found),
        # What is idle before the first step is the host's set-up.
        idle=0.0,
    )


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
