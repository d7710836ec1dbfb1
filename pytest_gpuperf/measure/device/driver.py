"""The few functions of the CUDA driver (`cuda.h`, libcuda) that CUPTI and the canary need."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError

_NAME = "libcuda.so.1"
_REMEDY = "Install NVIDIA's driver. In a container, start it with the GPUs: docker run --gpus all"
_CUDA_ERROR_NO_DEVICE = 100

SM_COUNT, L2_BYTES, SHARED_BYTES_OF_A_BLOCK = 16, 38, 97
"""CUdevice_attribute: SMs, bytes of L2, the most bytes of shared memory that a block may have."""
_FUNCTION_SHARED_BYTES = 8
"""CUfunction_attribute: max dynamic shared size."""

Argument = ctypes.c_float | ctypes.c_uint | ctypes.c_uint64
"""An argument of a kernel."""


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


_INT = ctypes.POINTER(ctypes.c_int)
_POINTER = ctypes.POINTER(ctypes.c_void_p)
# Each is looked up when it is called: CUPTI does without those of kernels, which are CUDA 11.8's.
# The _v2 symbols are what cuda.h calls cuDevicePrimaryCtxRelease, cuMemAlloc, ...
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
    "cuDeviceGetAttribute": (_INT, ctypes.c_int, ctypes.c_int),
    "cuModuleLoadData": (_POINTER, ctypes.c_char_p),
    "cuModuleUnload": (ctypes.c_void_p,),
    "cuModuleGetFunction": (_POINTER, ctypes.c_void_p, ctypes.c_char_p),
    "cuFuncSetAttribute": (ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
    "cuMemAlloc_v2": (ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t),
    "cuMemFree_v2": (ctypes.c_uint64,),
    "cuMemsetD32_v2": (ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t),
    "cuLaunchKernelEx": (
        ctypes.POINTER(_LaunchConfig),
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ),
}


class Driver:
    """A loaded libcuda, initialised."""

    def __init__(self, path: Path | str) -> None:
        """Loads `path`, calls cuInit. Raises CountersUnavailable where either fails."""
        self._functions: dict[str, Any] = {}
        try:
            self._library = ctypes.CDLL(str(path))
            result = self._function("cuInit")(0)
        except (OSError, MeasurementError) as error:
            raise CountersUnavailable(f"no CUDA driver: {error}", _REMEDY) from error
        if result:
            raise CountersUnavailable(f"cuInit failed with {self._name(result)}", _REMEDY)

    def device_count(self) -> int:
        """The number of visible GPUs."""
        count = ctypes.c_int()
        result = self._function("cuDeviceGetCount")(ctypes.byref(count))
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
    def primary_context(self) -> Iterator[int]:
        """Makes the primary context of device 0 current, and restores what was current."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
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

    def attribute(self, number: int) -> int:
        """The attribute (SM_COUNT, ...) of device 0."""
        device, value = ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    @contextmanager
    def module(self, image: bytes) -> Iterator[int]:
        """Loads machine code into the current context, for the block."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        try:
            yield int(module.value or 0)
        finally:
            self._call("cuModuleUnload", module)

    @contextmanager
    def memory(self, size: int) -> Iterator[int]:
        """Allocates so many bytes of the device, for the block; yields their address."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        try:
            yield address.value
        finally:
            self._call("cuMemFree_v2", address)

    def fill(self, address: int, word: int, size: int) -> None:
        """Fills so many bytes of the device with a word of 32 bits."""
        self._call("cuMemsetD32_v2", address, word, size // 4)

    def copied(self, address: int, size: int) -> bytes:
        """The bytes at this address, once earlier launches have ended."""
        copy = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", copy, address, size)
        return copy.raw

    def kernel(
        self,
        module: int,
        name: str,
        grid: int,
        block: int,
        arguments: Sequence[Argument] = (),
        *,
        shared_bytes: int = 0,
    ) -> Callable[[], None]:
        """A function that launches a kernel of `module` on the default stream at each call.

        With all the `shared_bytes` that a block may have, there is one block per SM.
        """
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared_bytes:
            self._call("cuFuncSetAttribute", function, _FUNCTION_SHARED_BYTES, shared_bytes)
        config = _LaunchConfig((grid, 1, 1), (block, 1, 1), shared_bytes)
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        call = self._function("cuLaunchKernelEx")
        kept = (pointers, arguments)  # the pointers point into the arguments

        def launch() -> None:
            self._check(call(config, function, kept[0], None), f"launching {name}")

        return launch

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(self._function(name)(*arguments), name)

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            try:
                function = getattr(self._library, name)
            except AttributeError:
                raise MeasurementError(f"the CUDA driver lacks {name}. Update it") from None
            function.argtypes, function.restype = _SIGNATURES[name], ctypes.c_int
            self._functions[name] = function
        return self._functions[name]

    def _check(self, result: int, call: str) -> None:
        if result:
            raise MeasurementError(f"{call} failed with {self._name(result)}")

    def _name(self, result: int) -> str:
        name = ctypes.c_char_p()
        self._function("cuGetErrorName")(result, ctypes.byref(name))
        return f"{name.value.decode()} ({result})" if name.value else f"CUDA error {result}"


@lru_cache(maxsize=1)
def load() -> Driver:
    """The CUDA driver of this machine, loaded once. Raises CountersUnavailable without one."""
    return Driver(_NAME)
