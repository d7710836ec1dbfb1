"""The few functions of the CUDA driver (`cuda.h`, libcuda) that the range profiler needs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError

_NAME = "libcuda.so.1"
_REMEDY = "Install NVIDIA's driver; in a container, start it with the GPUs (docker run --gpus all)"
_CUDA_ERROR_NO_DEVICE = 100

_INT = ctypes.POINTER(ctypes.c_int)
_POINTER = ctypes.POINTER(ctypes.c_void_p)
# The _v2 symbol is what cuda.h calls cuDevicePrimaryCtxRelease.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGetCount": (_INT,),
    "cuDeviceGet": (_INT, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_POINTER, ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuCtxGetCurrent": (_POINTER,),
    "cuCtxSetCurrent": (ctypes.c_void_p,),
    "cuCtxGetDevice": (_INT,),
    "cuCtxSynchronize": (),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}


class Driver:
    """A loaded libcuda, initialised."""

    def __init__(self, path: Path | str) -> None:
        """Loads `path`, calls cuInit. Raises CountersUnavailable where either fails."""
        try:
            library = ctypes.CDLL(str(path))
            self._functions = {name: getattr(library, name) for name in _SIGNATURES}
        except (OSError, AttributeError) as error:
            raise CountersUnavailable(f"no CUDA driver: {error}", _REMEDY) from error
        for name, function in self._functions.items():
            function.argtypes, function.restype = _SIGNATURES[name], ctypes.c_int
        result = self._functions["cuInit"](0)
        if result:
            raise CountersUnavailable(f"cuInit failed with {self._name(result)}", _REMEDY)

    def device_count(self) -> int:
        """The number of visible GPUs."""
        count = ctypes.c_int()
        result = self._functions["cuDeviceGetCount"](ctypes.byref(count))
        if result == _CUDA_ERROR_NO_DEVICE:
            return 0
        self._check(result, "cuDeviceGetCount")
        return count.value

    def current_context(self) -> int | None:
        """The calling thread's CUcontext, or None."""
        context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        return context.value

    def current_device(self) -> int:
        """The CUdevice of the current context."""
        device = ctypes.c_int()
        self._call("cuCtxGetDevice", ctypes.byref(device))
        return device.value

    def synchronize(self) -> None:
        """Waits until the current context has done all its work."""
        self._call("cuCtxSynchronize")

    @contextmanager
    def primary_context(self, index: int = 0) -> Iterator[int]:
        """Makes the primary context of device `index` current, and restores what was current."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        before = self.current_context()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self._call("cuCtxSetCurrent", context)
            try:
                yield int(context.value or 0)
            finally:
                self._call("cuCtxSetCurrent", before)
        finally:
            self._call("cuDevicePrimaryCtxRelease_v2", device)

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(self._functions[name](*arguments), name)

    def _check(self, result: int, call: str) -> None:
        if result:
            raise MeasurementError(f"{call} failed with {self._name(result)}")

    def _name(self, result: int) -> str:
        name = ctypes.c_char_p()
        self._functions["cuGetErrorName"](result, ctypes.byref(name))
        return f"{name.value.decode()} ({result})" if name.value else f"CUDA error {result}"


@lru_cache(maxsize=1)
def load() -> Driver:
    """The CUDA driver of this machine, loaded once. Raises CountersUnavailable without one."""
    return Driver(_NAME)
