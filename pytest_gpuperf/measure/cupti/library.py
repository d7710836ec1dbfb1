"""The libcupti of this process: its place, its calls, and its errors with remedies.

torch's own copy comes first, because a process has room for one CUPTI. Without a GPU, none is
loaded: CUPTI of CUDA 13.2 ends a process that asks its version without a driver.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_gpuperf.catalogue import yaml_table
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.cupti import abi
from pytest_gpuperf.measure.device import driver

_MAPS = Path("/proc/self/maps")
_TOOLKIT = Path("/usr/local/cuda")
_WHEEL_FOLDERS = ("cu1[0-9]/lib", "cuda_cupti/lib")
_TOOLKIT_FOLDERS = ("extras/CUPTI/lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
_SONAMES = ("libcupti.so.13", "libcupti.so.12")
_COMPANIONS = ("libnvperf_host.so", "libnvperf_target.so")
INSTALL = (
    "Install CUPTI of CUDA 12.6.2 or newer: any CUDA build of torch 2.6 or newer contains it. Or "
    "type `pip install nvidia-cuda-cupti` (CUDA 13), `pip install nvidia-cuda-cupti-cu12` (CUDA "
    "12). Or set CUDA_HOME to a toolkit with extras/CUPTI"
)
"""The remedy for a missing or old CUPTI."""
_REMEDIES = Path(__file__).with_name("remedies.yaml")
_NEEDS_DRIVER = (
    "Check that `nvidia-smi` runs here. CUPTI needs a GPU, and a driver at least as new as the "
    "CUDA release of CUPTI requires"
)
_OTHER_PARAMETERS = (abi.INVALID_PARAMETER, abi.PARAMETER_SIZE_NOT_SUFFICIENT)
"""CUPTI's errors for an unknown structSize."""


class CuptiError(MeasurementError):
    """A CUPTI function failed for a reason that is not the machine's set-up.

    `function` is CUPTI's, `result` its CUptiResult, and `name` what CUPTI calls that.
    """

    def __init__(self, function: str, result: int, name: str) -> None:
        self.function, self.result = function, result
        super().__init__(f"{function} failed with {name} ({result})")


class Cupti:
    """A loaded libcupti. `version` is its API version, `path` the file it came from."""

    def __init__(self, path: Path | str) -> None:
        """Loads the library.

        Raises CountersUnavailable if it cannot be loaded, is too old, or incomplete.
        """
        self.path = Path(path)
        self.available: dict[int, ctypes.Array[ctypes.c_char]] = {}
        """Images of the counters that can be had, by CUcontext."""
        try:
            self._companions = [ctypes.CDLL(file) for file in _companions(self.path)]
            self._library = ctypes.CDLL(os.fspath(path))
            version = ctypes.c_uint32()
            self.check(self._bind("cuptiGetVersion")(ctypes.byref(version)), "cuptiGetVersion")
            self.version = version.value
        except (OSError, AttributeError) as error:
            raise CountersUnavailable(f"CUPTI cannot be loaded ({error})", INSTALL) from error
        except CuptiError as error:
            # Newer releases answer nothing, not even their version, where there is no driver.
            raise CountersUnavailable(
                f"{path} does not work here: {error}", _NEEDS_DRIVER
            ) from error
        if self.version < abi.OLDEST:
            raise CountersUnavailable(
                f"{path} is CUPTI of CUDA {self.release}, which has no range profiler", INSTALL
            )
        try:
            self._functions = {params: self._bind(name) for params, name in abi.FUNCTIONS.items()}
        except AttributeError as error:
            raise self._unfit(f"lacks a function that gpuperf calls ({error})") from error

    @property
    def release(self) -> str:
        """The CUDA release this CUPTI belongs to, like "13.0.1"; the last part is CUPTI's own."""
        return abi.release(self.version)

    def call(self, params: type[abi.Params], **values: Any) -> abi.Params:
        """Calls the function that takes `params`, and returns the struct as CUPTI filled it.

        Raises as `check` does, and CountersUnavailable for a function whose parameters are others
        in a release newer than all that are known.
        """
        name = abi.FUNCTIONS[params]
        struct = params.of(self.version, **values)
        result = self._functions[params](ctypes.byref(struct))
        if result in _OTHER_PARAMETERS and self.version > abi.NEWEST:
            raise self._unfit(f"answers {name} with {self._name_of(result)}")
        self.check(result, name)
        return struct

    def check(self, result: int, call: str) -> None:
        """Returns if `result` is success.

        Raises CountersUnavailable, with the remedy, if the machine or its set-up forbids counters,
        else CuptiError. Codes are those of `cupti_result.h`.
        """
        if result == abi.SUCCESS:
            return
        for name, known in yaml_table(_REMEDIES).items():
            if known["code"] == result:
                remedy = known["remedy"].replace("INSTALL", INSTALL)
                reason = f"{known['reason']} ({call}: CUPTI_{name})"
                raise CountersUnavailable(reason, remedy)
        raise CuptiError(call, result, self._name_of(result))

    def _name_of(self, result: int) -> str:
        """CUPTI's name of a result code, or the number where it does not know it."""
        name = ctypes.c_char_p()
        unknown = self._library.cuptiGetResultString(result, ctypes.byref(name))
        return f"CUptiResult {result}" if unknown else (name.value or b"").decode()

    def _unfit(self, said: str) -> CountersUnavailable:
        newest = abi.release(abi.NEWEST)
        return CountersUnavailable(
            f"CUPTI {self.release} ({self.path}) {said}. This version of pytest-gpuperf knows "
            f"CUPTI up to {newest}",
            f"Update pytest-gpuperf, or use CUPTI of CUDA {newest}: "
            f"`pip install 'nvidia-cuda-cupti=={newest}.*'`",
        )

    def _bind(self, name: str) -> Any:
        function = getattr(self._library, name)
        function.argtypes, function.restype = (ctypes.c_void_p,), ctypes.c_int
        return function


@lru_cache(maxsize=1)
def load() -> Cupti:
    """The libcupti of this process, loaded once.

    The first candidate that loads and is new enough is taken. Raises CountersUnavailable with the
    reason of the first that failed, or "not found", and where no GPU is visible.
    """
    if not driver.load().device_count():
        raise CountersUnavailable("no GPU is visible", _NEEDS_DRIVER)
    failures: list[CountersUnavailable] = []
    for path in candidates():
        try:
            return Cupti(path)
        except CountersUnavailable as error:  # noqa: PERF203 -- a few candidates
            # A file that cannot be used explains more than a name that the loader does not find.
            if path.is_absolute():
                failures.append(error)
    if failures:
        raise failures[0]
    raise CountersUnavailable("CUPTI (libcupti) was not found", INSTALL)


def candidates() -> Iterator[Path]:
    """Files that may be the libcupti to use, best first; the last ones are bare names.

    A copy already loaded (torch links libcupti) is the only candidate: a second CUPTI would compete
    for the same driver hooks. Otherwise: the wheels that torch brings, the toolkit of CUDA_HOME,
    CUDA_PATH or /usr/local/cuda, the loader's search path.
    """
    loaded = _loaded(_MAPS)
    if loaded:
        yield from loaded
        return
    for folder in _folders():
        yield from sorted(folder.glob("libcupti.so.1[0-9]"), reverse=True)
    yield from map(Path, _SONAMES)


def _companions(cupti: Path) -> list[str]:
    # libcupti opens these by their bare names when a profiler starts, and wheels are not on the
    # loader's path: a library that is loaded already is found by its SONAME.
    if not cupti.is_absolute():
        return []
    files = [cupti.with_name(name) for name in _COMPANIONS]
    return [os.fspath(file) for file in files if file.is_file()]


def _loaded(maps: Path) -> list[Path]:
    try:
        text = maps.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    paths = re.findall(r"\s(/.*/libcupti\.so[.\d]*)$", text, flags=re.MULTILINE)
    return [Path(path) for path in dict.fromkeys(paths)]


def _folders() -> Iterator[Path]:
    """Folders that may have a libcupti: of wheels, then of toolkits."""
    spec = find_spec("nvidia")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in _WHEEL_FOLDERS:
            yield from sorted(Path(location).glob(pattern), reverse=True)
    named = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for toolkit in (*named, _TOOLKIT):
        yield from (toolkit / folder for folder in _TOOLKIT_FOLDERS)
