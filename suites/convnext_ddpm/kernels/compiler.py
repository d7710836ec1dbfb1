"""CUDA C++ to machine code, by NVRTC through NVIDIA's cuda-core. Needs no GPU and no driver."""

from __future__ import annotations

from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from pytest_gpuperf.catalogue.architectures import CPU, matches
from pytest_gpuperf.errors import UsageFailure

SOURCES = Path(__file__).parent / "sources"
FIRST_ARCH = {"convolution_bf16.cu": "sm80"}
"""The sources that need more than sm70: bfloat16 came to the tensor cores with sm80."""


def unavailable(source: str, arch: str) -> str | None:
    """Why the kernels of a source cannot run on an architecture, or None where they can."""
    if arch == CPU:
        return "the kernels are CUDA C++: they need a GPU"
    first = FIRST_ARCH.get(source, "sm70")
    if matches(f"{first}+", arch):
        return None
    return f"{source} needs the bfloat16 tensor cores of {first} or later; this is {arch}"


def cuda_core() -> Any:
    """NVIDIA's cuda-core, which is cuda.core.experimental in its older versions.

    Raises UsageFailure where it is not installed, or older than 0.4, which counted a grid's
    clusters in another way.
    """
    try:
        core = import_module("cuda.core")
        if not hasattr(core, "Program"):
            core = import_module("cuda.core.experimental")
    except ImportError as error:
        raise UsageFailure(
            f"the kernel configurations compile CUDA C++ through cuda-core, which is not there "
            f"({error}): pip install 'cuda-core[cu13]', or [cu12] for CUDA 12"
        ) from error
    version = metadata.version("cuda-core")
    if version.startswith(("0.1.", "0.2.", "0.3.")):
        raise UsageFailure(f"cuda-core {version} is too old: pip install 'cuda-core>=0.4'")
    return core


def options(core: Any, arch: str) -> Any:
    """How NVRTC compiles for an architecture: cuda-core's ProgramOptions."""
    return core.ProgramOptions(
        std="c++17", arch=arch.replace("sm", "sm_"), include_path=str(SOURCES)
    )


@cache
def compiled(source: str, kernel: str, arch: str) -> Any:
    """The machine code (a cuda-core ObjectCode) of one kernel, made once per process.

    Raises UsageFailure with the compiler's words when it refuses.
    """
    reason = unavailable(source, arch)
    if reason:
        raise UsageFailure(reason)
    core = cuda_core()
    try:
        program = core.Program((SOURCES / source).read_text(), "c++", options(core, arch))
        return program.compile("cubin", name_expressions=(kernel,))
    except Exception as error:  # whatever NVRTC's binding raises, and it has changed
        raise UsageFailure(f"{source}: {kernel} does not compile for {arch}: {error}") from error
