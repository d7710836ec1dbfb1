"""What any profiling with CUPTI begins and ends with: the context, the chip, and the clean-up."""

from __future__ import annotations

import ctypes
import mmap
from abc import ABC, abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from pytest_gpuperf.collect.cupti import abi, driver, library
from pytest_gpuperf.collect.cupti.codes import ProfilerApi
from pytest_gpuperf.collect.cupti.configuration import Configuration, obstacles
from pytest_gpuperf.errors import CountersUnavailable, GpuperfError
from pytest_gpuperf.model import Unsupported

if TYPE_CHECKING:
    from typing_extensions import Self


class Profiling(ABC):
    """A context manager: opening enables one kind of profiling, closing disables it.

    Opening raises CountersUnavailable where no CUDA context is current in this thread, for a chip
    that CUPTI does not know, and with what CUPTI and the device have against it.
    """

    _what: ClassVar[str]
    """This kind of profiling, as the subject of a sentence."""
    _remedy: ClassVar[str]
    """What to do where it cannot be opened."""
    _api: ClassVar[ProfilerApi]

    def __init__(self, cupti: library.Cupti | None, cuda: driver.Driver | None) -> None:
        self._cupti = cupti or library.load()
        self._cuda = cuda or driver.load()
        self._context = self._device = 0
        self._configuration: Configuration | None = None
        self._initialized = False
        self.chip = ""
        """NVIDIA's name of the chip, "GH100", once open."""
        self.metrics: tuple[str, ...] = ()
        """The metrics that are measured, once open."""
        self.unsupported: tuple[Unsupported, ...] = ()

    def __enter__(self) -> Self:
        try:
            self._initialize()
            self._open()
        except library.CuptiError as error:
            found = obstacles(self._cupti, self._device, self._api)
            self.close()
            # A set-up that CUPTI has no name for is no reason to lose the times as well.
            raise CountersUnavailable(
                f"{self._what} cannot be opened: {error}" + (f"; {found}" if found else ""),
                self._remedy,
            ) from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disables and releases whatever is open. Never raises; may be called again."""
        self._disable()
        # Afterwards: CUPTI refers to the configuration image as long as it counts.
        if self._configuration:
            self._configuration.close()
            self._configuration = None
        if self._initialized:
            self._initialized = False
            with suppress(GpuperfError):
                self._cupti.call(abi.ProfilerDeInitialize)

    @abstractmethod
    def _open(self) -> None:
        """Makes the configuration for `chip`, and enables what is to count."""

    @abstractmethod
    def _disable(self) -> None:
        """Disables what `_open` has enabled. Never raises; may be called again."""

    def _initialize(self) -> None:
        """Finds context, device and chip, and initializes CUPTI's profilers."""
        context = self._cuda.current_context()
        if context is None:
            raise CountersUnavailable(
                "no CUDA context is current in this thread",
                "Run something on the GPU before the measurement",
            )
        self._context, self._device = context, self._cuda.current_device()
        self._cupti.call(abi.ProfilerInitialize)
        self._initialized = True
        chip = self._cupti.call(abi.DeviceGetChipName, deviceIndex=self._device).pChipName
        if not chip:
            raise CountersUnavailable(
                f"CUPTI {self._cupti.release} does not know the chip of this GPU", library.INSTALL
            )
        self.chip = chip.decode()


def zeroes(size: int) -> ctypes.Array[ctypes.c_char]:
    """A buffer whose memory is only there once it is written to: an image may have gigabytes."""
    return (ctypes.c_char * size).from_buffer(mmap.mmap(-1, size))
