"""Launches on a GPU, on the stream that torch works on."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pytest_gpuperf.errors import UsageFailure
from suites.convnext_ddpm.kernels.compiler import compiled, cuda_core
from suites.convnext_ddpm.kernels.launches import Argument, Launch

_LEGACY_STREAM = 1
"""CU_STREAM_LEGACY: how the driver's interface names the default stream, which is torch's 0."""


class DeviceLauncher:
    """See Launcher. Neither waits nor allocates: what it launches can be captured in a CUDA graph.

    A kernel is compiled at its first launch, which loads it too: launch once before capturing.
    Raises UsageFailure without a GPU or without cuda-core, and where a kernel does not compile.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        if not torch.cuda.is_available():
            raise UsageFailure("the kernels are CUDA C++: they need a GPU, and torch sees none")
        index = (
            torch.cuda.current_device() if device is None or device.index is None else device.index
        )
        properties = torch.cuda.get_device_properties(index)
        self.arch = f"sm{properties.major}{properties.minor}"
        self.processors: int = properties.multi_processor_count
        self._index = index
        self._core = cuda_core()
        self._core.Device(index).set_current()
        self._prepared = cache(self._prepare)
        self._stream = cache(self._core.Stream.from_handle)

    def launch(self, launch: Launch, *arguments: Argument) -> None:
        """See Launcher."""
        config, kernel = self._prepared(launch)
        handle = torch.cuda.current_stream(self._index).cuda_stream or _LEGACY_STREAM
        stream = self._stream(handle)
        self._core.launch(stream, config, kernel, *map(_passed, arguments))

    def _prepare(self, launch: Launch) -> tuple[Any, Any]:
        code = compiled(launch.source, launch.kernel, self.arch)
        grid, cluster = launch.grid, {}
        if launch.cluster > 1:
            # cuda-core counts the grid in clusters where there are any.
            grid = (grid[0] // launch.cluster, *grid[1:])
            cluster = {"cluster": (launch.cluster, 1, 1)}
        config = self._core.LaunchConfig(
            grid=grid, block=launch.threads, shmem_size=launch.shared_bytes, **cluster
        )
        return config, code.get_kernel(launch.kernel)


def _passed(argument: Argument) -> Any:
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    if argument is None:
        return 0
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int(argument)
