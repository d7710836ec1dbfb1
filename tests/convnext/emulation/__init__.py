"""Runs the kernels of the ConvNeXt suite on the CPU: see emulation.h."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest
from torch import Tensor

from pytest_gpuperf.storage import files
from suites.convnext_ddpm.kernels.compiler import SOURCES
from suites.convnext_ddpm.kernels.launches import Argument, Launch

_PATIENCE = 1800.0
"""Seconds for another process that compiles the same."""
HEADER = Path(__file__).parent / "emulation.h"
_DECLARED = (
    "const unsigned* grid, unsigned threads, unsigned cluster, unsigned shared, bool descending, "
    "void** arguments"
)
_OPTIONS = ("-std=c++17", "-Og", "-w", "-shared", "-fPIC")
_PASSED = "grid, threads, cluster, shared, descending, arguments"


class Recorder:
    """A launcher that launches nothing, and knows what it was asked for."""

    def __init__(self, processors: int, arch: str = "sm90") -> None:
        self.processors = processors
        self.arch = arch
        self.launches: list[Launch] = []

    def launch(self, launch: Launch, *_arguments: Argument) -> None:
        self.launches.append(launch)


class Emulator:
    """A launcher that runs a kernel to its end, thread by thread, on tensors of the CPU.

    The kernels that will be launched are compiled together, by gcc, when it is made.
    """

    arch = "sm90"

    def __init__(
        self, launches: Iterable[Launch], temporary: pytest.TempPathFactory, processors: int
    ) -> None:
        # What is compiled, workers beside each other share.
        base = temporary.getbasetemp()
        folder = base.parent if base.name.startswith("popen") else base
        self.processors = processors
        self.descending = False
        self.launched: list[Launch] = []
        by_source: dict[str, list[str]] = {}
        for launch in launches:
            kernels = by_source.setdefault(launch.source, [])
            if launch.kernel not in kernels:
                kernels.append(launch.kernel)
        built = [_started(source, names, folder) for source, names in by_source.items()]
        self._libraries = dict(zip(by_source, (_loaded(*b) for b in built), strict=True))
        self._names = by_source

    def launch(self, launch: Launch, *arguments: Argument) -> None:
        function = self._libraries[launch.source][
            f"launch_{self._names[launch.source].index(launch.kernel)}"
        ]
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        stuck = function(
            (ctypes.c_uint * 3)(*launch.grid),
            ctypes.c_uint(launch.threads),
            ctypes.c_uint(launch.cluster),
            ctypes.c_uint(launch.shared_bytes),
            ctypes.c_bool(self.descending),
            pointers,
        )
        assert not stuck, f"{launch.kernel}: threads wait at a barrier that not all of them reach"
        self.launched.append(launch)


def _value(argument: Argument) -> ctypes.c_void_p | ctypes.c_float | ctypes.c_int:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if argument is None:
        return ctypes.c_void_p(None)
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int(argument)


def _started(
    source: str, kernels: list[str], folder: Path
) -> tuple[subprocess.Popen[bytes] | None, Path, ExitStack]:
    """Starts gcc, unless another process of this test run has made the library already."""
    text = f'#include <utility>\n#include "{HEADER}"\n#include "{SOURCES / source}"\n'
    for number, kernel in enumerate(kernels):
        text += f'extern "C" int launch_{number}({_DECLARED}) '
        text += f"{{ return emulated::launch({kernel}, {_PASSED}); }}\n"
    sources = b"".join(file.read_bytes() for file in (HEADER, *sorted(SOURCES.iterdir())))
    name = hashlib.sha256(text.encode() + sources).hexdigest()[:16]
    library = folder / f"{name}.so"
    (folder / name).mkdir(exist_ok=True)
    lock = ExitStack()
    lock.enter_context(files.locked(folder / name, patience=_PATIENCE))
    if library.exists():
        return None, library, lock
    program = folder / f"{name}.cpp"
    program.write_text(text)
    command = ["g++", *_OPTIONS, "-o", str(library), str(program)]
    return subprocess.Popen(command, stderr=subprocess.PIPE), library, lock


def _loaded(process: subprocess.Popen[bytes] | None, library: Path, lock: ExitStack) -> ctypes.CDLL:
    if process is not None:
        _, said = process.communicate()
        assert process.returncode == 0, said.decode()[:4000]
    lock.close()
    return ctypes.CDLL(str(library))
