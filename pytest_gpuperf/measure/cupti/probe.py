"""What `gpuperf doctor` asks of CUPTI: whether it is there, and whether counters may be read."""

from __future__ import annotations

from collections.abc import Callable

from pytest_gpuperf.errors import CountersUnavailable, GpuperfError, MeasurementError
from pytest_gpuperf.measure.cupti import driver, library
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.device.checks import Check
from pytest_gpuperf.model.measurement import STEP

_FOUND = "CUPTI"
_READ = "hardware counters"
_METRIC = "sm__cycles_elapsed.max"
_DOCTOR = "Report it with this output: https://developer.nvidia.com/cupti"


def probe(
    *,
    load_cupti: Callable[[], library.Cupti] = library.load,
    load_driver: Callable[[], driver.Driver] = driver.load,
) -> list[Check]:
    """Finds CUPTI and really reads a counter, over an empty range on device 0.

    Leaves the process as it was, except for libraries loaded. Raises nothing: each "no" is a Check
    with its remedy. The parameters are for tests.
    """
    try:
        cupti = load_cupti()
    except CountersUnavailable as error:
        return [
            Check(_FOUND, False, error.reason, error.remedy),
            Check(_READ, False, "not tried, without CUPTI", error.remedy),
        ]
    found = Check(_FOUND, True, f"{cupti.release} (API {cupti.version}), {cupti.path}")
    return [found, _try(cupti, load_driver)]


def _try(cupti: library.Cupti, load_driver: Callable[[], driver.Driver]) -> Check:
    try:
        cuda = load_driver()
        if cuda.device_count() == 0:
            return Check(
                _READ, False, "no GPU is visible", "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
            )
        with cuda.primary_context():
            return _read(cupti, cuda)
    except CountersUnavailable as error:
        return Check(_READ, False, error.reason, error.remedy)
    except GpuperfError as error:
        return Check(_READ, False, str(error), _DOCTOR)


def _read(cupti: library.Cupti, cuda: driver.Driver) -> Check:
    with RangeSession([_METRIC], cupti=cupti, cuda=cuda) as session:
        if session.unsupported:
            return Check(_READ, False, session.unsupported[0].reason, library.INSTALL)

        def empty_range() -> None:
            session.push(STEP)
            cuda.synchronize()
            session.pop()

        try:
            session.round([STEP], empty_range, undefined=True)
        except library.CuptiError:
            raise
        except MeasurementError:
            # CUPTI may leave out a range in which nothing ran. It was allowed to look, which is
            # what was asked.
            pass
        return Check(_READ, True, f"may be read on this {session.chip}")
