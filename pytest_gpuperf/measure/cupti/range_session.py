"""A session of CUPTI's range profiler on the current CUDA context.

The caller repeats the work once per pass (user replay), and marks ranges or lets CUPTI make one per
launch (auto ranges). A session serves any number of rounds. Each begins with a fresh counter data
image, which also resets the pass count.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from pytest_gpuperf.errors import CountersUnavailable, GpuperfError, MeasurementError
from pytest_gpuperf.measure.cupti import abi, library
from pytest_gpuperf.measure.cupti.configuration import Configuration, strings
from pytest_gpuperf.measure.device import driver
from pytest_gpuperf.model.measurement import Unsupported

Values = dict[str, dict[str, float]]
"""Range name -> hardware metric name -> value, in the unit of the metric."""


class RangeSession:
    """A context manager: opening enables the profiler on the current context, closing disables it.

    `metrics` are NVIDIA's names; names that the chip lacks end up in `unsupported`. `max_ranges` is
    the most ranges that one round pushes, or launches if ranges are `automatic`.

    It raises CountersUnavailable without CUPTI or driver. Opening raises it without a current CUDA
    context in this thread, for a chip unknown to CUPTI, and for errors of CUPTI and the device. If
    no metric can be collected it opens with `passes` 0, and `round` must not be called.
    """

    def __init__(
        self, metrics: Sequence[str], max_ranges: int = 1, *, automatic: bool = False
    ) -> None:
        self._cupti = library.load()
        self._cuda = driver.load()
        self._opened = ExitStack()
        self._configuration: Configuration | None = None
        self._wanted = tuple(dict.fromkeys(metrics))
        self._max_ranges = max_ranges
        self._range = abi.AUTO_RANGE if automatic else abi.USER_RANGE
        self._profiler: int | None = None
        self._image: ctypes.Array[ctypes.c_char] | None = None
        self._started = False
        self._open_ranges = 0
        self._fresh = True
        self.chip = ""
        """NVIDIA's name of the chip, "GH100", once open."""
        self.metrics: tuple[str, ...] = ()
        """The metrics that are measured, once open."""
        self.unsupported: tuple[Unsupported, ...] = ()
        self.passes = 0
        """Executions that one round takes, once open."""

    def __enter__(self) -> RangeSession:
        with ExitStack() as opened:
            try:
                self._open(opened)
            except library.CuptiError as error:
                # A set-up that CUPTI has no name for is no reason to lose the times as well.
                raise CountersUnavailable(
                    f"the range profiler cannot be opened: {error}",
                    "Run `gpuperf doctor`: it opens one outside of a test and shows the versions",
                ) from error
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops, disables and releases whatever is open. Never raises; may be called again."""
        self._opened.close()
        self._image = None

    def push(self, name: str) -> None:
        """Begins the range `name` (cuptiRangeProfilerPushRange). Only inside a round's `run`."""
        self._call(abi.RangePushRange, pRangeName=name.encode())
        self._open_ranges += 1

    def pop(self) -> None:
        """Ends the range that was pushed last (cuptiRangeProfilerPopRange)."""
        self._open_ranges -= 1
        self._call(abi.RangePopRange)

    def round(
        self,
        ranges: Sequence[str],
        run: Callable[[], object],
        *,
        prepare: Callable[[], object] | None = None,
    ) -> Values:
        """Runs all passes once: the values of `metrics` over each of `ranges`.

        Per pass, `prepare` is called outside of counting, then `run`, which must push and pop
        exactly `ranges`. Their exceptions pass unchanged, after the profiler has stopped.

        A value that is not defined is NaN: a ratio over a range without work. Raises
        MeasurementError for dropped or missing ranges.
        """
        self._all_passes(run, prepare)
        values = dict(self._decoded(f"the ranges {_quoted(ranges)}"))
        missing = [name for name in ranges if name not in values]
        if missing:
            raise MeasurementError(f"CUPTI returned no values for the ranges {_quoted(missing)}")
        return {name: values[name] for name in ranges}

    def launches(
        self, run: Callable[[], object], *, prepare: Callable[[], object] | None = None
    ) -> list[dict[str, float]]:
        """Runs all passes once with automatic ranges: the values of `metrics` per launch, in order.

        A kernel is a launch, and so is a CUDA graph as a whole. Undefined values (a ratio of a
        kernel without that work) are NaN. `run` must wait for the device. Raises MeasurementError
        for dropped launches.
        """
        self._all_passes(run, prepare)
        return self._by_number()

    def begin(self) -> None:
        """Begins the only pass over all that is launched from now on, with automatic ranges.

        Raises MeasurementError for metrics that need more than one pass.
        """
        if self.passes != 1:
            raise MeasurementError(f"CUPTI needs {self.passes} passes, but only one is possible")
        self._configure()
        self._call(abi.RangeStart)
        self._started = True

    def end(self) -> list[dict[str, float]]:
        """Ends it: the values of the first `max_ranges` launches since `begin`, in order."""
        self._started = False
        self._call(abi.RangeStop)
        return self._by_number(dropping=True)

    def _all_passes(self, run: Callable[[], object], prepare: Callable[[], object] | None) -> None:
        self._configure()
        for _ in range(self.passes):
            if prepare:
                prepare()
            if self._one_pass(run):
                return
        raise MeasurementError(f"CUPTI announced {self.passes} passes, but needs more")

    def _open(self, opened: ExitStack) -> None:
        """Enables the profiler for the chip of the current context; `opened` undoes each step."""
        context = self._cuda.current_context()
        if context is None:
            raise CountersUnavailable(
                "no CUDA context is current in this thread",
                "Run something on the GPU before the measurement",
            )
        device = self._cuda.current_device()
        self._cupti.call(abi.ProfilerInitialize)
        opened.callback(self._release, abi.ProfilerDeInitialize)
        chip = self._cupti.call(abi.DeviceGetChipName, deviceIndex=device).pChipName
        if not chip:
            raise CountersUnavailable(
                f"CUPTI {self._cupti.release} does not know the chip of this GPU", library.INSTALL
            )
        self.chip = chip.decode()
        self._configuration = Configuration(self._cupti, chip, context)
        # After the profiler: CUPTI refers to the configuration image as long as it counts.
        opened.callback(self._configuration.close)
        self._configuration.add(self._wanted)
        self.unsupported = self._configuration.refused
        self.metrics, self.passes = self._configuration.metrics, self._configuration.passes
        if not self.metrics:
            return
        self._profiler = self._cupti.call(abi.RangeEnable, ctx=context).pRangeProfilerObject
        opened.callback(self._release, abi.RangeDisable, pRangeProfilerObject=self._profiler)
        opened.callback(self._abandon_pass)
        size = self._call(
            abi.RangeGetCounterDataSize,
            pMetricNames=strings(self.metrics),
            numMetrics=len(self.metrics),
            maxNumOfRanges=self._max_ranges,
            maxNumRangeTreeNodes=self._max_ranges,
        ).counterDataSize
        # Memory that is only there once it is written to: an image may have gigabytes.
        self._image = (ctypes.c_char * size).from_buffer(mmap.mmap(-1, size))

    def _configure(self) -> None:
        """A fresh counter data image, and pass 0."""
        configuration, image = self._parts()
        if not self._fresh:
            # A clean image, so values that CUPTI leaves untouched are not from an earlier round.
            ctypes.memset(image, 0, len(image))
        self._fresh = False
        self._call(
            abi.RangeCounterDataImageInitialize,
            counterDataSize=len(image),
            pCounterData=ctypes.addressof(image),
        )
        self._call(
            abi.RangeSetConfig,
            configSize=len(configuration.image),
            pConfig=ctypes.addressof(configuration.image),
            counterDataImageSize=len(image),
            pCounterDataImage=ctypes.addressof(image),
            range=self._range,
            replayMode=abi.USER_REPLAY,
            maxRangesPerPass=self._max_ranges,
            # Levels count from 1; ranges here are never nested.
            numNestingLevels=1,
            minNestingLevel=1,
            passIndex=0,
            targetNestingLevel=1,
        )

    def _one_pass(self, run: Callable[[], object]) -> bool:
        """Whether this was the last pass that CUPTI needs."""
        self._call(abi.RangeStart)
        self._started = True
        try:
            run()
        except BaseException:
            self._abandon_pass()
            raise
        self._started = False
        return bool(self._call(abi.RangeStop).isAllPassSubmitted)

    def _abandon_pass(self) -> None:
        """Closes the ranges and the pass that an exception left open. Never raises."""
        while self._open_ranges > 0:
            with suppress(GpuperfError):
                self.pop()
        if self._started:
            self._started = False
            self._release(abi.RangeStop, pRangeProfilerObject=self._profiler)

    def _call(self, params: type[abi.Params], **values: Any) -> abi.Params:
        """Calls a function of the open profiler. Raises as `Cupti.call` does."""
        return self._cupti.call(params, pRangeProfilerObject=self._profiler, **values)

    def _release(self, params: type[abi.Params], **values: Any) -> None:
        """Calls a function that undoes another. Never raises."""
        with suppress(GpuperfError):
            self._cupti.call(params, **values)

    def _by_number(self, *, dropping: bool = False) -> list[dict[str, float]]:
        # CUPTI names automatic ranges by their number, and does not promise an order.
        ranges = {int(name): of for name, of in self._decoded("the launches", dropping=dropping)}
        return [ranges[number] for number in sorted(ranges)]

    def _decoded(self, what: str, *, dropping: bool = False) -> list[tuple[str, dict[str, float]]]:
        """The name and the values of every range of the round; `dropping` allows for more."""
        dropped = self._call(abi.RangeDecodeData).numOfRangeDropped
        if dropped and not dropping:
            raise MeasurementError(
                f"CUPTI dropped {dropped} of {what}: its session has room for {self._max_ranges}"
            )
        configuration, image = self._parts()
        data = {"pCounterDataImage": ctypes.addressof(image), "counterDataImageSize": len(image)}
        total = self._cupti.call(abi.RangeGetCounterDataInfo, **data).numTotalRanges
        ranges = []
        for index in range(total):
            info = self._cupti.call(
                abi.RangeCounterDataGetRangeInfo, **data, rangeIndex=index, rangeDelimiter=b"/"
            )
            name = (info.rangeName or b"").decode()
            ranges.append((name, configuration.evaluate(data, index)))
        return ranges

    def _parts(self) -> tuple[Configuration, ctypes.Array[ctypes.c_char]]:
        if self._configuration is None or self._image is None:
            raise MeasurementError("the range session is not open, or has no metric to collect")
        return self._configuration, self._image


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
